"""A wide and deep model on strings of high cardinality, which reads, hashes and forgets files as it trains.

python examples/click_through.py                # assignments in the functions of the Python installation
python examples/click_through.py --data FOLDER --label y --categories a b --numbers c --crosses a*b
python examples/click_through.py --devices 2    # over 2 GPUs; 2 logical CPUs where there are none
"""

import ast
import contextlib
import csv
import pathlib
import sysconfig
import tempfile
import warnings

import _common
import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

CATEGORIES = ["name", "function", "module", "package", "statement", "value", "called", "inside"]
NUMBERS = ["line", "arguments", "depth"]
CROSSES = ["name*package", "name*value", "name*statement", "name*inside", "name*function"]
CROSSES += ["module*function", "value*called", "statement*inside"]


def arguments(argv=None):
    parser = _common.parser(__doc__)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="CSV or Parquet: train* and test*; default: Python's assignments")
    add("--label", default="again", help="the column of 0 and 1")
    add("--categories", nargs="+", default=CATEGORIES, help="columns of strings or whole numbers")
    add("--numbers", nargs="*", default=NUMBERS, help="columns of numbers")
    add("--crosses", nargs="*", default=CROSSES, metavar="A*B", help="two categories that are one together")
    add("--rows", type=int, default=1_000_000, help="assignments, at most")
    add("--epochs", type=int, default=1)
    add("--batch", type=int, default=2048)
    add("--shuffle", type=int, default=100_000, help="rows held in memory to be mixed; 0: none")
    add("--bins", type=int, default=2**22, help="of the wide part")
    add("--deep-bins", type=int, default=2**17, help="of each of the 4 hashes of the deep part")
    add("--vocabulary", type=int, help="values expected; then --deep-bins is the square root of it")
    add("--dim", type=int, default=16, help="width of the embedding")
    args = parser.parse_args(argv)
    if args.data and args.categories is CATEGORIES:
        parser.error("--data goes with --label, --categories, --numbers and --crosses")
    args.crosses = [tuple(pair.split("*")) for pair in args.crosses]
    if args.quick:
        args.rows, args.batch, args.bins, args.deep_bins = 30_000, 512, 2**18, 2**14
    return args


def write_assignments(folder, most):
    """Write train.csv and test.csv: assignments to local names. Is the name assigned again further down?

    A tenth of the modules is for the test. Files differ between machines, and so do the rows.
    """
    roots = [pathlib.Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib")]
    files = [(root, path) for root in roots for path in sorted(root.rglob("*.py"))]
    with contextlib.ExitStack() as stack:
        paths = [f"{folder}/{side}.csv" for side in ("train", "test")]
        sides = [csv.writer(stack.enter_context(open(path, "w", newline=""))) for path in paths]
        for side in sides:
            side.writerow([*CATEGORIES, *NUMBERS, "again"])
        for root, path in (file for first in range(97) for file in files[first::97]):  # mixes the packages
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # invalid escapes in other people's strings
                    rows = list(rows_of(ast.parse(path.read_text("utf-8")), module))[:most]
            except (SyntaxError, ValueError, RecursionError):
                continue  # a template, or of another Python
            sides[_common.draw(module) < 0.1].writerows(rows)
            most -= len(rows)
            if not most:
                return


def rows_of(tree, module):
    """Yield the rows of a module."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = list(assignments(function.body, ()))
            last = {name: i for i, (name, *_) in enumerate(found)}
            for i, (name, node, inside) in enumerate(found):
                value = getattr(node, "value", None) or getattr(node, "iter", None)
                called = ast.unparse(value.func)[:60] if isinstance(value, ast.Call) else ""
                kinds = module.split(".")[0], type(node).__name__, type(value).__name__, called
                numbers = node.lineno - function.lineno, len(function.args.args), len(inside)
                again = int(last[name] > i)
                yield [name, function.name, module, *kinds, ">".join(inside[-3:]), *numbers, again]


def assignments(body, inside):
    """Yield `(name, statement, the blocks around it)` in the order of the text."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        parts = [getattr(node, "target", None), *getattr(node, "targets", ())]
        parts += [item.optional_vars for item in getattr(node, "items", ())]
        for name in (leaf for part in parts if part for leaf in ast.walk(part)):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                yield name.id, node, inside
        for block in ("body", "orelse", "handlers", "finalbody"):
            yield from assignments(getattr(node, block, ()), (*inside, type(node).__name__))


class Data:
    """Batches from files: of strings and numbers, or of what the model takes.

    Every category is hashed twice: to one bin, with crosses, for the wide part, and to four for the deep one.
    """

    def __init__(self, args, folder):
        self.args, uses = args, {"categories": args.categories, "numbers": args.numbers, "target": args.label}
        self.train = kl.datasets.TabularFiles(f"{folder}/train*", **uses)
        self.test = kl.datasets.TabularFiles(f"{folder}/test*", **uses)
        self.wide = kl.layers.CategoryHashing(args.bins, hash="xxhash64", crosses=args.crosses or None)
        rule = {"rule": "sqrt", "vocabulary_size": args.vocabulary} if args.vocabulary else {}
        bins = None if args.vocabulary else args.deep_bins
        self.deep = kl.layers.CategoryHashing(bins, num_hashes=4, hash="xxhash64", **rule)

    def hashed(self, columns, label):
        strings = {name: columns[name] for name in self.args.categories}
        inputs = {
            "wide": tf.stack(list(self.wide(strings).values()), axis=1),
            "deep": tf.stack(list(self.deep(strings).values()), axis=1),
        }
        if self.args.numbers:
            numbers = tf.stack([columns[name] for name in self.args.numbers], axis=1)
            known = tf.where(tf.math.is_nan(numbers), 0.0, numbers)
            scaled = tf.sign(known) * tf.math.log1p(tf.abs(known))
            inputs["numbers"] = tf.concat([scaled, tf.cast(tf.math.is_nan(numbers), tf.float32)], axis=1)
        return inputs, label[:, None]

    def batches(self, files, shuffle=0):
        data = files.dataset(self.args.batch, shuffle, self.args.seed)
        return data.map(self.hashed, num_parallel_calls=2).prefetch(4)


def build(args, data):
    """Return a compiled model (Cheng et al., 2016, "Wide & Deep Learning for Recommender Systems")."""
    features = len(args.categories)
    inputs = {
        "wide": keras.Input((features + len(args.crosses),), dtype="int64", name="wide"),
        "deep": keras.Input((features, 4), dtype="int64", name="deep"),
    }
    ftrl = kl.optimizers.Ftrl(0.05, initial_accumulator_value=1e-7, l1_regularization_strength=1e-6)
    bins = data.wide.total_bins
    linear = kl.layers.SparseDense(1, bins, kernel_initializer="zeros", optimizer=ftrl, name="linear")
    vectors = kl.layers.ShardedEmbedding(
        data.deep.total_bins, args.dim, combiner="sum", embeddings_initializer="normal"
    )
    x = keras.layers.Flatten()(vectors(inputs["deep"]))
    if args.numbers:
        inputs["numbers"] = keras.Input((2 * len(args.numbers),), name="numbers")
        x = keras.layers.Concatenate()([x, inputs["numbers"]])
    for width in (64, 32):
        x = keras.layers.Dense(width, activation="relu")(x)
    score = keras.layers.Add()([linear(inputs["wide"]), keras.layers.Dense(1)(x)])
    model = kl.Model(inputs, keras.layers.Activation("sigmoid")(score))
    auc = keras.metrics.AUC(num_thresholds=1000, name="auc")
    model.compile(kl.optimizers.LazyAdam(2e-3), "binary_crossentropy", metrics=[auc])
    return model


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    with tempfile.TemporaryDirectory() as folder, strategy.scope():
        if not args.data:
            write_assignments(folder, args.rows)
        data = Data(args, args.data or folder)
        model, clock = build(args, data), _common.Clock()
        rows = data.batches(data.train, args.shuffle)
        model.fit(rows, epochs=args.epochs, callbacks=[clock], shuffle=False, verbose=2)
        linear = model.get_layer("linear")
        print(f"{clock.steps * args.batch / clock.seconds:,.0f} rows per second, hashing included")
        print(f"{linear.count_nonzero():,} of {linear.input_dim:,} weights of the wide part are not zero")
        found = model.evaluate(data.batches(data.test), return_dict=True, verbose=0)
        mean = np.concatenate([label for _, label in data.batches(data.test)]).mean()
        predicted = model.predict(data.batches(data.test), verbose=0).mean()
        found |= {"base rate": mean, "calibration": predicted / mean}
        print(", ".join(f"{name} {value:.4f}" for name, value in found.items()))

        path = args.save or f"{folder}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        inputs = {name: array[:256] for name, array in next(iter(data.batches(data.test)))[0].items()}
        np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-5)
        named = keras.Model(model.input, {"click": model.output})
        _common.check_export(args.export, named, {name: array.numpy() for name, array in inputs.items()})
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
