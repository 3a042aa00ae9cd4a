"""How small may tables be? A click model trains on full ones, then on compact ones.

python examples/compact_tables.py                  # a generated log, of which the best log loss is known
python examples/compact_tables.py --only quotient  # one way for all large tables: width, quotient or prune
python examples/compact_tables.py --devices 8      # over 8 GPUs; 8 logical CPUs where there are none

Small tables stay. A table whose rows were mostly seen a few times or never keeps the others. A table that
is used evenly gets narrower rows, and a matrix that makes them wide. Another becomes two small ones.
"""

import pathlib

import _common
import keras
import numpy as np

import keras_largeout as kl

#: Rows of the generated features, and how uneven their use is: 0 is even, 1 is Zipf's law.
FEATURES = {
    "hour": (24, 0),
    "ad": (40_000, 0.8),
    "user": (60_000, 0),
    "page": (400_000, 1),
    "site": (2000, 1),
}
WAYS = ("width", "quotient", "prune")


def arguments(argv=None):
    parser = _common.parser(__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=1_500_000, help="train on so many; test on a tenth of them")
    add("--only", choices=WAYS, help="make all large tables compact in one way")
    add("--large", type=int, default=10_000, help="rows from which on a table is made compact")
    add("--least", type=int, default=4, help="a row that was seen less often is hardly seen")
    add("--smaller", type=int, default=4, help="by what factor width and quotient make a table smaller")
    add("--dim", type=int, default=16, help="width of the full tables")
    add("--batch", type=int, default=1024)
    args = parser.parse_args(argv)
    if args.quick:
        args.rows = 60_000
    return args


def generate(count, seed):
    """Return `(inputs, labels, probabilities)` of a hidden model: effects of rows, and of pairs of rows."""
    rng, inputs, logit, total, squares = np.random.default_rng(seed), {}, -1.5, 0, 0
    for i, (name, (rows, skew)) in enumerate(FEATURES.items()):
        uniform = rng.random(count)
        ranks = rows**uniform - 1 if skew == 1 else (rows ** (1 - skew) * uniform) ** (1 / (1 - skew))
        ids = inputs[name] = np.int32(ranks.astype(np.int64) * 7919 % rows)  # frequent rows are anywhere
        vectors = np.sin(ids[:, None] * np.array([12.9898, 78.233, 37.719, 93.989]) + i)
        logit = logit + 0.6 * vectors[:, 0] + 0.3 * vectors[:, 1]
        total, squares = total + 0.35 * vectors, squares + (0.35 * vectors) ** 2
    probability = 1 / (1 + np.exp(-logit - 0.5 * (total**2 - squares).sum(1)))
    return inputs, (rng.random(count) < probability).astype("float32"), probability


def log_loss(labels, probabilities):
    return float(-np.mean(np.log(np.where(labels == 1, probabilities, 1 - probabilities))))


def way(args, use):
    """Return how the table of a feature is made compact, by its entry in a `FeatureReport`."""
    if use.rows < args.large:
        return "full"
    if args.only:
        return args.only
    if len(seen(args, use)) < use.rows / 2:
        return "prune"
    of_tenth = sum(share for _, share in use.top[: use.rows // 10])
    return "width" if of_tenth < 0.25 else "quotient"


def seen(args, use):
    """Return the rows that the training used often enough."""
    return np.array([row for row, share in use.top if share * use.ids > args.least - 0.5], np.int64)


class Kept(keras.layers.Layer):
    """Give ids the rows of a pruned table: 1, 2, ... of the rows that it kept, and 0 of all others.

    Args:
        num_ids: int, the rows of the full table.
        kept: int array, the rows to keep. A loaded model, where it is None, has them in its weights.
    """

    def __init__(self, num_ids, kept=None, **kwargs):
        super().__init__(**kwargs)
        self.num_ids, self.kept = num_ids, kept

    def build(self, input_shape=None):
        self.rows = self.add_weight(
            shape=(self.num_ids,), dtype="int32", initializer="zeros", trainable=False
        )
        if self.kept is not None:
            rows = np.zeros(self.num_ids, "int32")
            rows[self.kept] = 1 + np.arange(len(self.kept))
            self.rows.assign(rows)

    def call(self, ids):
        return keras.ops.take(self.rows, ids)

    def get_config(self):
        return {**super().get_config(), "num_ids": self.num_ids}


def build(args, ways, report=None):
    """Return a compiled model, and the bytes of its tables with what belongs to them.

    Args:
        ways: dict from the names of features to "full" or one of `WAYS`.
        report: dict of the features of a `FeatureReport`, where a table is pruned.
    """
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in FEATURES}
    ids, tables, values = {}, {}, []  # of 4 bytes

    def table(name, rows, width, given, initializer=None):
        values.append(rows * width)
        initializer = initializer or keras.initializers.RandomUniform(-(rows**-0.5), rows**-0.5)
        own = kl.optimizers.RowWiseAdagrad(0.03, initial_accumulator_value=0.0, epsilon=1e-16)
        tables[name], ids[name] = kl.layers.TableConfig(name, rows, width, initializer, own), given

    for name, (rows, _) in FEATURES.items():
        if ways[name] == "full":
            table(name, rows, args.dim, inputs[name])
        elif ways[name] == "width":  # Ginart et al., 2019, "Mixed dimension embeddings"
            width = max(1, args.dim // args.smaller)
            table(name, rows, width, inputs[name])
            values.append(width * args.dim)
        elif ways[name] == "quotient":  # Shi et al., 2020, arXiv:1909.02107: ids stay different
            buckets = -(-rows // args.smaller)
            table(f"{name}_remainder", buckets, args.dim, inputs[name] % buckets)
            ones = keras.initializers.Ones()
            table(f"{name}_quotient", args.smaller, args.dim, inputs[name] // buckets, ones)
        else:
            kept = seen(args, report[name])
            table(name, 1 + len(kept), args.dim, Kept(rows, kept, name=f"{name}_rows")(inputs[name]))
            values.append(rows)
    features = {name: kl.layers.FeatureConfig(name, config) for name, config in tables.items()}
    found = kl.layers.DistributedEmbedding(features, name="tables")(ids)
    vectors = []
    for name in FEATURES:
        if ways[name] == "quotient":
            vectors.append(found[f"{name}_remainder"] * found[f"{name}_quotient"])
        elif ways[name] == "width":
            vectors.append(keras.layers.Dense(args.dim, use_bias=False, name=f"{name}_wide")(found[name]))
        else:
            vectors.append(found[name])
    stack = keras.ops.stack(vectors, axis=1)
    pairs = 0.5 * (keras.ops.sum(stack, 1) ** 2 - keras.ops.sum(stack**2, 1))
    x = keras.layers.Concatenate()([pairs, *vectors])
    for width in (64, 32):
        x = keras.layers.Dense(width, activation="relu")(x)
    model = kl.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="click")(x))
    model.compile("adam", "binary_crossentropy")
    return model, 4 * sum(values)


def main():
    args = arguments()
    strategy = kl.distribute.strategy(args.devices)
    x, y, _ = generate(args.rows, args.seed)
    test_x, test_y, truth = generate(args.rows // 10, args.seed + 1)
    ways, report = dict.fromkeys(FEATURES, "full"), None
    for name in ("full", "compact"):
        keras.utils.set_random_seed(args.seed)
        with strategy.scope():
            model, number_of_bytes = build(args, ways, report)
        use = kl.callbacks.FeatureReport(top=max(rows for rows, _ in FEATURES.values()))
        callbacks = [use] if name == "full" else []
        model.fit(x, y, batch_size=args.batch, callbacks=callbacks, verbose=0)
        loss = log_loss(test_y, np.float64(model.predict(test_x, batch_size=4096, verbose=0)[:, 0]))
        print(f"{name} tables: {number_of_bytes / 1e6:.1f} MB, log loss {loss:.4f}", flush=True)
        if name == "full":
            report = use.features
            ways = {feature: way(args, used) for feature, used in report.items()}
            for feature, used in report.items():
                print(f"  {feature}: {used.rows:,} rows, {used.untouched:.0%} untouched: {ways[feature]}")
    constant = log_loss(test_y, y.mean())
    print(f"best possible log loss {log_loss(test_y, truth):.4f}, of a constant {constant:.4f}")

    with strategy.scope(), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path, custom_objects={"Kept": Kept})
        inputs = {name: ids[:256] for name, ids in test_x.items()}
        np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-5)
        named = keras.Model(model.input, {"click": model.output})
        _common.check_export(args.export, named, inputs)


if __name__ == "__main__":
    main()
