"""A data set that every Python brings along: what do the functions of its standard library call?

Each function is a row. Its labels are the names that it calls, as they are written (`len`, `os.path.join`,
`self.assertEqual`; `.join` where a method of some expression is called), and the modules that it imports
(`import os.path`). Its features are the words of the rest of its text: the called names and the import
statements are cut out first, wherever they stand in the function.
"""

import ast
import bisect
import dataclasses
import hashlib
import pathlib
import re
import sysconfig
import tokenize

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import TfidfVectorizer

import keras_largeout as kl


@dataclasses.dataclass
class Task:
    """Rows to learn from and rows to be judged by.

    Attributes:
        name: what the data are, for people.
        train, test: `kl.datasets.LabeledRows`.
        label_names: list of str, or None where labels are mere numbers.
        test_names: list of str, what each row of `test` is called, or None.
    """

    name: str
    train: kl.datasets.LabeledRows
    test: kl.datasets.LabeledRows
    label_names: list = None
    test_names: list = None


def standard_library(seed=0, test=0.1, share=1.0):
    """Return the functions of the running Python's standard library, without what was installed into it.

    Whether a file is for training or for the test, or is left out when `share` is below 1, follows from a
    hash of its path and the seed. A label is a name that occurs in the training files.
    """
    sides = {False: [], True: []}
    files = 0
    for name, path in library_files(seed, share):
        try:
            found = list(functions_of(path))
        except (SyntaxError, UnicodeDecodeError, ValueError):  # some test files are meant to be broken
            continue
        files += 1
        sides[_draw(f"{seed}/test/{name}") < test] += [(f"{name}: {what}", *rest) for what, *rest in found]
    python = sysconfig.get_python_version()
    title = f"functions in {files} files of the Python {python} standard library, and what they call"
    return index(title, sides[False], sides[True])


def library_files(seed=0, share=1.0):
    """Yields `(name, path)` of the Python files of the standard library, or of a share of them."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not re.match(r"(site|dist)-packages/", name) and _draw(f"{seed}/share/{name}") < share:
            yield name, path


def functions_of(path, nested=True):
    """Yields `(name, labels, text)` of every function in a file that calls or imports anything.

    `labels` is a set of str, `text` the function without its labels. A function has the labels of those
    within it too.

    Args:
        path: of a Python file.
        nested: bool, whether functions within functions are functions of their own, too.

    Raises:
        SyntaxError, UnicodeDecodeError, ValueError: the file is no Python.
    """
    with tokenize.open(path) as file:
        source = file.read()
    rest, labels, functions = bytearray(source.encode()), [], []
    line_starts = [0, *(match.end() for match in re.finditer(b"\n", rest))]

    def place(line, column):
        return line_starts[line - 1] + column

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append((place(node.lineno, node.col_offset), _end(node, place), node.name))
            continue
        names = _names(node)
        if not names:
            continue
        part = node.func if isinstance(node, ast.Call) else node
        end = _end(part, place)
        # Of a method of some expression only the method's name is cut out.
        start = place(part.lineno, part.col_offset)
        if names[0].startswith("."):
            start = end - len(names[0].encode()) + 1
        rest[start:end] = b" " * (end - start)
        labels += [(start, name) for name in names]
    labels.sort()
    starts, last = [start for start, _ in labels], 0
    for start, end, name in functions if nested else sorted(functions):
        if not nested and start < last:
            continue
        last = end
        inside = labels[bisect.bisect_left(starts, start) : bisect.bisect_left(starts, end)]
        if inside:
            yield name, {label for _, label in inside}, rest[start:end].decode()


def _end(node, place):
    return place(node.end_lineno, node.end_col_offset)


def _names(node):
    """Return the labels that a node of the syntax tree stands for."""
    if isinstance(node, ast.Import):
        return [f"import {alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"import {'.' * node.level}{node.module or ''}"]
    if not isinstance(node, ast.Call):
        return []
    called, parts = node.func, []
    while isinstance(called, ast.Attribute):
        parts.append(called.attr)
        called = called.value
    if isinstance(called, ast.Name):
        return [".".join([called.id, *reversed(parts)])]
    return ["." + parts[0]] if parts else []


def index(name, train, test):
    """Return a `Task` from lists of (name, labels, text); the labels and words of `train` are all there
    are.
    """
    if not train or not test:
        raise ValueError(f"No functions to {'judge by' if train else 'learn from'} in: {name}")
    label_names = sorted(set().union(*(labels for _, labels, _ in train)))
    ids = {label: i for i, label in enumerate(label_names)}
    words = TfidfVectorizer(token_pattern=r"[^\W\d]\w+", min_df=2, sublinear_tf=True, dtype=np.float32)
    bags = words.fit_transform(text for _, _, text in train), words.transform(text for _, _, text in test)
    rows = [
        kl.datasets.LabeledRows.from_scipy(bag, _multi_hot([labels for _, labels, _ in side], ids))
        for bag, side in zip(bags, (train, test))
    ]
    return Task(name, *rows, label_names, [what for what, _, _ in test])


def _multi_hot(label_sets, ids):
    known = [sorted(ids[label] for label in labels if label in ids) for labels in label_sets]
    splits = np.concatenate([[0], np.cumsum([len(row) for row in known])])
    columns = np.array([label for row in known for label in row], np.int32)
    return scipy.sparse.csr_array(
        (np.ones(len(columns), np.int8), columns, splits), shape=(len(known), len(ids))
    )


def _draw(name):
    """Return a number in [0, 1) that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48
