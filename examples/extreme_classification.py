"""Many labels per row, out of tens of thousands: a sparse output layer on a wide hidden one.

python examples/extreme_classification.py               # what do the functions of Python's library call?
python examples/extreme_classification.py --data DIR    # train.txt[.gz], test.txt[.gz] of the Extreme
                                                        # Classification Repository
python examples/extreme_classification.py --devices 8   # over 8 GPUs; 8 logical CPUs where there are none
"""

import ast
import bisect
import pathlib
import re
import tokenize

import _common
import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer

import keras_largeout as kl


def arguments(argv=None):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--data", metavar="DIR", help="a data set of the repository; default: Python's own functions")
    add("--loss", choices=("binary_crossentropy", "squared_hinge"), default="binary_crossentropy")
    add("--fan-in", type=int, default=32, help="connections of a label")
    add("--hidden", type=int, default=512, help="width of the first layer")
    add("--wide", type=int, default=16_384, help="width of the layer below the output; 0: no such layer")
    add("--epochs", type=int, default=3)
    add("--batch", type=int, default=64)
    add("--learning-rate", type=float, default=1e-3)
    add("--feature-rate", type=float, default=5e-3, help="learning rate of the vectors of the features")
    add("--feature-scale", type=float, default=0.03, help="standard deviation of their first values")
    add("--dropout", type=float, default=0.5, help="share of the hidden values left out")
    add("--rewire", type=float, default=0.1, help="share of the connections exchanged each time; 0: never")
    add("--rewire-every", type=int, default=300, help="steps between two times")
    add("--grow", choices=("random", "gradient"), default="random", help="where connections are regrown")
    args = parser.parse_args(argv)
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.hidden, args.wide, args.rewire_every = 64, min(args.wide, 1024), 10
        args.learning_rate = args.feature_rate = 1e-2
    return args


def functions(path):
    """Yield `(name, labels, text)` of the functions in a file.

    The labels of a function are the names that it calls, as they are written (`len`, `os.path.join`; `.join`
    for a method of some expression), and the modules that it imports. They are cut out of its text.
    """
    with tokenize.open(path) as file:
        source = file.read()
    rest, labels, found = bytearray(source.encode()), [], []
    lines = [0, *(match.end() for match in re.finditer(b"\n", rest))]

    def places(node):
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((*places(node), node.name))
        elif isinstance(node, ast.Import):
            names = [f"import {alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"import {'.' * node.level}{node.module or ''}"]
        elif isinstance(node, ast.Call):
            node = called = node.func
            parts = []
            while isinstance(called, ast.Attribute):
                parts, called = [called.attr, *parts], called.value
            if isinstance(called, ast.Name):
                names = [".".join([called.id, *parts])]
            elif parts:
                names = [f".{parts[-1]}"]
        if names:
            start, end = places(node)
            if names[0].startswith("."):  # a method of some expression: its name alone
                start = end - len(node.attr.encode())
            rest[start:end] = b" " * (end - start)
            labels += [(start, name) for name in names]
    labels.sort()
    starts = [start for start, _ in labels]
    for start, end, name in found:
        inside = labels[bisect.bisect_left(starts, start) : bisect.bisect_left(starts, end)]
        if inside:
            yield name, {label for _, label in inside}, rest[start:end].decode()


def read(args):
    """Return rows to train on and rows to test on, `kl.datasets.LabeledRows`, and the names of the labels."""
    if args.data:
        files = [next(pathlib.Path(args.data).glob(f"{side}.txt*")) for side in ("train", "test")]
        return *(kl.datasets.ExtremeClassification(file).load() for file in files), None
    sides = [], []
    for name, path in _common.library_files(args.share):
        try:
            sides[_common.draw(f"0/test/{name}") < 0.1].extend(functions(path))
        except (SyntaxError, ValueError):  # some files of Python's tests are broken on purpose
            continue
    words = TfidfVectorizer(token_pattern=r"[^\W\d]\w+", min_df=2, sublinear_tf=True, dtype=np.float32)
    words.fit(text for _, _, text in sides[0])
    names = MultiLabelBinarizer(sparse_output=True).fit(labels for _, labels, _ in sides[0])
    known = set(names.classes_)
    rows = []
    for side in sides:
        bags = words.transform(text for _, _, text in side)
        rows.append(kl.datasets.LabeledRows.from_scipy(bags, names.transform(s & known for _, s, _ in side)))
    return *rows, list(names.classes_)


def batches(args, rows, shuffle=False):
    """Return batches of ragged features and of padded labels (-1)."""
    data = rows.dataset(args.batch, shuffle=shuffle, seed=args.seed)
    return data.map(lambda inputs, labels: (inputs, labels.to_tensor(-1)))


def build(args, rows, between, head):
    """Return a model from weighted features over some layers to what `head` scores."""
    ids = keras.Input((None,), dtype="int32", ragged=True, name="ids")
    values = keras.Input((None,), dtype="float32", ragged=True, name="values")
    first = keras.initializers.RandomNormal(stddev=args.feature_scale, seed=args.seed)
    bag = kl.layers.ShardedEmbedding(
        rows.num_features, args.hidden, combiner="sum", embeddings_initializer=first, name="bag"
    )
    x = keras.layers.Activation("relu")(bag(ids, values))
    x = keras.layers.Dropout(args.dropout, seed=args.seed)(x)
    for layer in between:
        x = layer(x)
    return kl.Model({"ids": ids, "values": values}, head(x))


def optimizer(args):
    """Return LazyAdam, with a larger rate for the vectors of features: most features are rare."""
    rest, features = kl.optimizers.LazyAdam(args.learning_rate), kl.optimizers.LazyAdam(args.feature_rate)
    if not hasattr(keras.optimizers, "MultiOptimizer"):  # before Keras 3.14
        return rest
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(rest, {"bag/.*": features}))


def measure(args, predictor, train, test):
    """Return metrics of what a predictor answers to the rows to test on."""
    share = kl.metrics.propensities(train.label_counts(), len(train))
    metrics = [kl.metrics.PrecisionAtK(k, name=f"P@{k}") for k in (1, 3, 5)]
    metrics += [kl.metrics.NDCGAtK(5, name="nDCG@5")]
    metrics += [kl.metrics.PropensityScoredPrecisionAtK(share, 5, name="PSP@5")]
    return _common.measure(metrics, predictor, batches(args, test))


def fit(args, model, predictor, train, test, data=None, callbacks=()):
    """Train, and measure after each epoch. Return what Keras recorded."""
    clock = _common.Clock(measure=lambda: measure(args, predictor, train, test))
    data = batches(args, train, shuffle=True) if data is None else data
    callbacks = [clock, *callbacks]
    return model.fit(data, epochs=args.epochs, shuffle=False, callbacks=callbacks, verbose=2).history


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    train, test, names = read(args)
    print(f"{len(train):,} rows, {train.num_labels:,} labels, {train.num_features:,} features")
    with strategy.scope():
        # The optimizer of the head is a part of its backward pass.
        adam = keras.optimizers.Adam(args.learning_rate)
        head = kl.layers.SparseOutput(train.num_labels, args.fan_in, loss=args.loss, optimizer=adam)
        wide = keras.layers.Dense(args.wide, activation="relu", kernel_initializer="he_normal", name="wide")
        model = build(args, train, [wide] if args.wide else [], head)
        share = (train.label_counts() + 0.1) / (len(train) + 1)
        head.bias.assign(np.log(share / (1 - share)))  # it begins with the frequencies of the labels
        model.compile(optimizer(args), loss=head.loss)
        predictor = head.predictor(model, k=5)
    callbacks = []
    if args.rewire:
        callbacks = [kl.callbacks.Rewire(head, args.rewire, args.rewire_every, until=0.66, grow=args.grow)]
    fit(args, model, predictor, train, test, callbacks=callbacks)

    inputs, labels = test.take(np.arange(5)).batch()
    answers = predictor(inputs)
    if names:
        for truth, ids in zip(labels.to_list(), answers["ids"].numpy()):
            print(f"of {len(truth)} names:", "   ".join(names[i] + "*" * (i in truth) for i in ids))

    with strategy.scope(), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        again = loaded.layers[-1].predictor(loaded, k=5)(inputs)
        np.testing.assert_allclose(again["scores"], answers["scores"], atol=1e-4)
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
