"""Who clicks? DCN-v2 or DLRM on 13 numbers and 26 categorical features of up to five million rows.

python examples/ranking.py                  # on a generated log, of which the best possible AUC is known
python examples/ranking.py --model dlrm     # the other model
python examples/ranking.py --data FILE      # Criteo's lines (plain or .gz): a label, 13 integers, 26 strings
python examples/ranking.py --devices 8      # over 8 GPUs; 8 logical CPUs where there are none
"""

import pathlib

import _common
import keras
import numpy as np
import tensorflow as tf
from keras import ops

import keras_largeout as kl

NUMBERS, FEATURES, BLOCK = 13, 26, 4096
BAGS = {8: 5, 15: 4, 22: 5}  # generated features of several ids: how many at most. Their id 0 is padding
#: Different strings in each column of Criteo's train.txt (Kaggle, 2014). A table has four times as many rows.
CRITEO = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194)
CRITEO += (27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)


def arguments(argv=None):
    parser = _common.parser(__doc__)
    add = parser.add_argument
    add("--data", metavar="FILE", help="Criteo's lines, of which a tenth is held out; default: a log")
    add("--model", choices=("dcn", "dlrm"), default="dcn")
    add("--stacking", choices=("auto", "none"), default="auto", help="tables in one variable, or separate")
    add("--rows", type=int, default=2_000_000, help="train on at most so many; test on a tenth of them")
    add("--most-rows", type=int, default=5_000_000, help="of the largest table")
    add("--dim", type=int, default=16, help="width of the tables")
    add("--batch", type=int, default=2048)
    add("--learning-rate", type=float, default=0.02, help="of the tables; Adam's own for the dense layers")
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.most_rows, args.batch = 60_000, min(args.most_rows, 20_000), 512
    return args


def generate(rows, seed, blocks):
    """Yield blocks of `(inputs, labels, probabilities)`. Ids follow Zipf's law, clicks a hidden model.

    That model is a factorisation machine whose weights are hashes of the ids: nothing is stored, and a log
    of any length follows from its seed.
    """
    rng = np.random.default_rng(seed)
    effect, strength = rng.normal(0, 0.14, (FEATURES, 4)), rng.uniform(0.08, 0.26, FEATURES)
    of_numbers = rng.normal(0, 0.17, NUMBERS)
    for block in blocks:
        rng = np.random.default_rng([seed, block])
        numbers = rng.normal(0, 1, (BLOCK, NUMBERS)).astype("float32")
        inputs, logit, total, squares = {"numbers": numbers}, numbers @ of_numbers - 1.9, 0, 0
        for i, count in enumerate(rows):
            width, first = BAGS.get(i, 1), int(i in BAGS)
            ranks = (count - first) ** rng.random((BLOCK, width)) - 1  # log-uniform: Zipf's law
            ids = first + ranks.astype(np.int64) * 7919 % (count - first)  # frequent rows are anywhere
            taken = np.arange(width) < rng.geometric(0.3, (BLOCK, 1)) if first else np.ones((1, 1))
            vectors = np.sin(ids[..., None] * np.array([12.9898, 78.233, 37.719, 93.989]) + i) * 2**0.5
            vector = (vectors * taken[..., None]).sum(1) / taken.sum(1, keepdims=True)
            logit = logit + vector @ effect[i]
            vector = vector * strength[i]
            total, squares = total + vector, squares + vector**2
            inputs[f"c{i + 1}"] = (ids * taken).astype("int32") if first else ids[:, 0].astype("int32")
        probability = 1 / (1 + np.exp(-logit - 0.5 * (total**2 - squares).sum(1)))
        yield inputs, (rng.random(BLOCK) < probability).astype("float32"), probability.astype("float32")


def read(args):
    """Return the rows of the tables, datasets to train and to test on, and the best AUC, if it is known."""
    if args.data:
        return *read_criteo(args), None
    rows = np.geomspace(10, args.most_rows, FEATURES).round().astype(int).tolist()
    train, test = range(-(-args.rows // BLOCK)), range(10**6, 10**6 - (-args.rows // (10 * BLOCK)))
    best = keras.metrics.AUC(num_thresholds=1000)
    for _, labels, probabilities in generate(rows, args.seed, test):
        best.update_state(labels, probabilities)
    ids = {f"c{i + 1}": (BLOCK, BAGS[i]) if i in BAGS else (BLOCK,) for i in range(FEATURES)}
    signature = {name: tf.TensorSpec(shape, tf.int32) for name, shape in ids.items()}
    signature = {"numbers": tf.TensorSpec((BLOCK, NUMBERS)), **signature}, tf.TensorSpec((BLOCK,))

    def dataset(blocks):
        data = tf.data.Dataset.from_generator(
            lambda: (block[:2] for block in generate(rows, args.seed, blocks)), output_signature=signature
        )
        return data.rebatch(args.batch).prefetch(4)

    return rows, dataset(train), dataset(test), float(best.result())


def read_criteo(args):
    """Return the rows of the tables, and the two datasets. Strings are hashed; none is kept in memory."""
    rows = [min(args.most_rows, max(64, 4 * different)) for different in CRITEO]
    lines = tf.data.TextLineDataset(args.data, "GZIP" if args.data.endswith(".gz") else "").enumerate()

    def parse(lines):
        defaults = [tf.zeros([0])] + [[0.0]] * NUMBERS + [[""]] * FEATURES  # a label must be there
        label, *fields = tf.io.decode_csv(lines, defaults, "\t", use_quote_delim=False)
        inputs = {"numbers": tf.math.log1p(tf.maximum(tf.stack(fields[:NUMBERS], -1), 0.0))}
        for i, strings in enumerate(fields[NUMBERS:]):
            inputs[f"c{i + 1}"] = tf.cast(tf.strings.to_hash_bucket_fast(strings, rows[i]), tf.int32)
        return inputs, label

    def side(test, most):
        chosen = lines.filter(lambda i, _: (i % 10 == 0) == test).map(lambda _, line: line).take(most)
        return chosen.batch(args.batch).map(parse, num_parallel_calls=2).prefetch(4)

    return rows, side(False, args.rows), side(True, args.rows // 10)


def build(args, rows):
    """Return a compiled model. Row-wise Adagrad trains the tables, in the backward pass of their layer."""
    bags = {} if args.data else BAGS
    rate, exact = args.learning_rate, {"initial_accumulator_value": 0.0, "epsilon": 1e-16}
    own = {"combiner": "mean", "optimizer": kl.optimizers.RowWiseAdagrad(rate, **exact)}
    features, inputs = {}, {"numbers": keras.Input((NUMBERS,), name="numbers")}
    for i, count in enumerate(rows):
        name, bound = f"c{i + 1}", count**-0.5
        own["initializer"] = keras.initializers.RandomUniform(-bound, bound)
        table = kl.layers.TableConfig(name, count, args.dim, mask_zero=i in bags, **own)
        features[name] = kl.layers.FeatureConfig(name, table)
        inputs[name] = keras.Input((bags[i],) if i in bags else (), dtype="int32", name=name)
    stacking = None if args.stacking == "none" else args.stacking
    tables = kl.layers.DistributedEmbedding(features, table_stacking=stacking, name="tables")
    vectors = tables({name: inputs[name] for name in features})
    last = (dcn if args.model == "dcn" else dlrm)(inputs["numbers"], [vectors[name] for name in features])
    model = kl.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="click")(last))
    # Adam is for the dense layers.
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(num_thresholds=1000, name="auc")])
    return model


def tower(x, *widths):
    for width in widths:
        x = keras.layers.Dense(width, activation="relu")(x)
    return x


def dcn(numbers, vectors, layers=2, rank=32):
    """Return cross layers of low rank beside a deep tower (Wang et al., 2021, "DCN V2", figure 1 b)."""
    crossed = first = keras.layers.Concatenate()([numbers, *vectors])
    for _ in range(layers):
        narrow = keras.layers.Dense(rank, use_bias=False)(crossed)
        crossed = first * keras.layers.Dense(first.shape[-1])(narrow) + crossed
    return keras.layers.Concatenate()([crossed, tower(first, 128, 64)])


def dlrm(numbers, vectors):
    """Return a tower of the dot products of all pairs of features (Naumov et al., 2019, "DLRM")."""
    below = tower(numbers, 64, vectors[0].shape[-1])
    x = ops.stack([below, *vectors], axis=1)
    count = 1 + len(vectors)
    rows, columns = np.tril_indices(count, -1)
    dots = ops.reshape(ops.matmul(x, ops.transpose(x, (0, 2, 1))), (-1, count**2))
    return tower(keras.layers.Concatenate()([below, ops.take(dots, rows * count + columns, axis=1)]), 128, 64)


def measure(model, test, best=None):
    """Return a dict of numbers of the test."""
    found = model.evaluate(test, return_dict=True, verbose=0)
    labels = np.concatenate([labels for _, labels in test])
    predictions = model.predict(test, verbose=0)[:, 0]
    for metric in (kl.metrics.NormalizedEntropy("entropy"), kl.metrics.Calibration()):
        metric.update_state(labels, predictions)
        found[metric.name] = float(metric.result())
    for part in np.array_split(np.argsort(predictions), 10):
        print(f"predicted {predictions[part].mean():.4f}, observed {labels[part].mean():.4f}")
    return found if best is None else {**found, "best AUC": best}


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    rows, train, test, best = read(args)
    with strategy.scope():
        model = build(args, rows)
    print(f"{sum(rows):,} rows in {len(rows)} tables, {model.count_params():,} weights")
    use, clock = kl.callbacks.FeatureReport(), _common.Clock()
    model.fit(train, callbacks=[use, clock], shuffle=False, verbose=2)  # one pass: the dataset is a stream
    print(f"{clock.steps * args.batch / clock.seconds:,.0f} rows per second")
    print(", ".join(f"{name} {value:.4f}" for name, value in measure(model, test, best).items()))
    print(f"of the largest table {use.features['c26'].untouched:.1%} were never used")

    with strategy.scope(), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        inputs = {name: array[:256] for name, array in next(iter(test))[0].items()}
        np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-5)
        named = keras.Model(model.input, {"click": model.output})
        _common.check_export(args.export, named, {name: array.numpy() for name, array in inputs.items()})
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
