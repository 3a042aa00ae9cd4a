"""What several examples share: options, data that every Python brings along, a clock, a test of an export."""

import argparse
import ast
import collections
import gzip
import hashlib
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
import tokenize
import types
import warnings

# The examples import this file first: TensorFlow then keeps its notes on the machine to itself.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_largeout as kl

# Keras warns at the end of each dataset of unknown size, as of files that are read while a model trains.
warnings.filterwarnings("ignore", message="Your input ran out of data")


def parser(description, export=True):
    """Return a parser of the options that most examples have."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="little data, few steps: does everything work?")
    add("--save", metavar="FILE.keras", help="keep the model")
    if export:
        add("--export", metavar="DIR", help="keep the exported model")
    return parser


def draw(name):
    """Return a number in [0, 1) that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def library_files(share=1.0):
    """Yield `(name, path)` of the files of Python's standard library, or of a share of them."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not re.match(r"(site|dist)-packages/", name) and draw(f"0/share/{name}") < share:
            yield name, path


def interactions(data=None, share=1.0, least=2):
    """Return what users did: `users`, a list of int32 arrays, and `names` and `counts` of the items.

    Without a path, a user is a function of Python's standard library, and an item is a name that it uses: a
    parameter, a variable, an attribute. A user has each item once, in the order of the text. The last two
    items of a user are held out; `counts` are those of the others, and fall: item 0 is the most frequent one.

    Args:
        data: path of a file, or of a folder with train, valid and test files, of lines `user item item ...`.
        share: float, of the files of Python's library.
        least: int, how many functions must use a name.
    """
    found = collections.defaultdict(list)
    for file in lists_in(data) if data else ():
        for user, items in lists(file).items():
            found[user] += items
    if not data:
        for _, path in library_files(share):
            try:
                with tokenize.open(path) as file:
                    found.update(
                        ((path, i), used) for i, used in enumerate(names_used(ast.parse(file.read())))
                    )
            except (SyntaxError, ValueError):  # some files of Python's tests are broken on purpose
                continue
        common = collections.Counter(name for names in found.values() for name in dict.fromkeys(names))
        found = {user: [n for n in names if common[n] >= least] for user, names in found.items()}
    users = [list(dict.fromkeys(items)) for items in found.values()]
    users = [items for items in users if len(items) >= 5]
    counted = collections.Counter(item for items in users for item in items[:-2])
    counted.update({item: 0 for items in users for item in items})
    names = [item for item, _ in counted.most_common()]
    number = {item: i for i, item in enumerate(names)}
    users = [np.int32([number[item] for item in items]) for items in users]
    print(f"{len(users):,} users, {len(names):,} items, {sum(map(len, users)):,} pairs")
    return types.SimpleNamespace(users=users, names=names, counts=np.array([counted[name] for name in names]))


def names_used(tree):
    """Return for each function of a syntax tree the names that it uses, in the order of the text."""
    functions, nodes = [], [(tree, [])]
    while nodes:
        node, used = nodes.pop()
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Name):
            used.append((node.lineno, node.col_offset, node.id))
        elif isinstance(node, ast.arg):
            used.append((node.lineno, node.col_offset, node.arg))
            parts = []  # the name of a type is not used
        elif isinstance(node, ast.Attribute):
            used.append((node.end_lineno, node.end_col_offset, node.attr))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append(used := [])
            parts = [part for part in ast.walk(node.args) if isinstance(part, ast.arg)] + node.body
        nodes += [(part, used) for part in parts]
    return [[name for *_, name in sorted(used)] for used in functions]


def lists_in(path):
    """Return the files of a path: itself, or train, valid and test of a folder, plain or `.gz`."""
    path = pathlib.Path(path)
    names = [f"{side}.txt{end}" for side in ("train", "valid", "test") for end in ("", ".gz")]
    return [path] if path.is_file() else [path / name for name in names if (path / name).exists()]


def lists(path):
    """Return a dict from users to lists of items, from a file of lines `user item item ...` of integers."""
    found = collections.defaultdict(list)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
        for line in lines:
            if line.strip():
                user, *items = map(int, line.split())
                found[user] += items
    return found


def likes(args):
    """Return lists of arrays, the items of each user to train and to test on; and the number of items."""
    if args.data:
        parts = {file.name.split(".")[0]: lists(file) for file in lists_in(args.data)}
        tests = parts.pop("test")
        users = sorted(set(tests).union(*parts.values()))
        train = [np.int32([i for part in parts.values() for i in part.get(user, ())]) for user in users]
        test = [np.setdiff1d(np.int32(tests.get(user, ())), own) for user, own in zip(users, train)]
        return train, test, 1 + max(int(items.max(initial=0)) for items in [*train, *test])
    data, rng = interactions(share=args.share, least=5), np.random.default_rng(args.seed)
    users = [rng.permutation(items) for items in data.users]
    return [u[len(u) // 5 :] for u in users], [u[: len(u) // 5] for u in users], len(data.names)


def padded(rows, width=None):
    """Return int32 `[rows, width]`, filled up with -1. None: the width of the longest row."""
    out = np.full((len(rows), width or max(map(len, rows))), -1, np.int32)
    for filled, row in zip(out, rows):
        filled[: len(row)] = row
    return out


class Clock(keras.callbacks.Callback):
    """Time the training without validation, measure after each epoch, and end after some minutes.

    Args:
        minutes: float.
        measure: function that returns a dict of numbers for the logs of an epoch. None: there is nothing.
        clock: function that returns seconds. `time.process_time` counts those of the processor.

    Attributes:
        seconds, steps: of all epochs together. `seconds` is in the logs of each epoch, too.
    """

    def __init__(self, minutes=math.inf, measure=None, clock=time.perf_counter):
        super().__init__()
        self.minutes, self.measure, self.clock, self.seconds, self.steps = minutes, measure, clock, 0.0, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._since = self.clock()

    def on_train_batch_end(self, batch, logs=None):
        now = self.clock()
        self.seconds, self.steps, self._since = self.seconds + now - self._since, self.steps + 1, now
        if self.seconds > 60 * self.minutes:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs):
        logs["seconds"] = round(self.seconds, 1)
        if self.measure:
            logs.update(self.measure())


def measure(metrics, predictor, data):
    """Return the values of metrics of what a predictor answers to a dataset of (inputs, labels)."""
    for metric in metrics:
        metric.reset_state()
    for inputs, labels in data:
        found = predictor(inputs, training=False)
        for metric in metrics:
            metric.update_state(labels, found)
    return {metric.name: float(metric.result()) for metric in metrics}


def check_export(path, model, inputs):
    """Export a model, and compare its answers with those of a process that has TensorFlow alone.

    Args:
        path: folder for the export. None: it is removed at the end.
        model: `keras.Model` whose output is a dict of arrays.
        inputs: dict of arrays, by the names of the model's inputs.
    """
    given = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    expected = model.predict(given, verbose=0)
    with kl.distribute.shared_folder() as shared, tempfile.TemporaryDirectory() as own:
        path = path or f"{shared}/export"
        kl.export_saved_model(model, path)
        np.savez(f"{own}/inputs.npz", **inputs)
        serve = pathlib.Path(__file__).with_name("serve.py")
        command = [sys.executable, serve, path, f"{own}/inputs.npz", f"{own}/answers.npz"]
        subprocess.run(command, check=True)
        answers = np.load(f"{own}/answers.npz")
        for name, array in expected.items():
            np.testing.assert_allclose(answers[name], array, atol=1e-4, err_msg=name)
    print("The export answers as the model does")


def peak_memory():
    """Return the most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
