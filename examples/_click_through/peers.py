"""Others on the same rows: scikit-learn's FeatureHasher with SGDClassifier, and Vowpal Wabbit.

They get the same categories and crosses, in one pass, and 2**22 weights. Numbers come as their logarithms.
"""

import pathlib
import re
import time

import numpy as np

BITS = 22


def sklearn(table, train, test):
    """Return `(labels, probabilities, rows per second)`. Hashing is a part of the time, reading is not."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    hasher = FeatureHasher(2**BITS, input_type="pair", alternate_sign=False)
    model = SGDClassifier(loss="log_loss", alpha=1e-7, learning_rate="invscaling", eta0=0.5, power_t=0.25)
    rows = seconds = 0
    for columns, labels in train:
        begun = time.perf_counter()
        model.partial_fit(hasher.transform(_pairs(table, columns)), labels, classes=[0.0, 1.0])
        seconds += time.perf_counter() - begun
        rows += len(labels)
    found = [(y, model.predict_proba(hasher.transform(_pairs(table, x)))[:, 1]) for x, y in test]
    return (*map(np.concatenate, zip(*found)), rows / seconds)


def _pairs(table, columns):
    """Return for each row its features as pairs of a name and a number."""
    words = {name: [v.decode("utf-8", "replace") for v in columns[name]] for name in table.categories}
    named = [[(f"{name}={value}", 1.0) for value in values] for name, values in words.items()]
    for parts in table.crosses:
        both = zip(*(words[name] for name in parts))
        named.append([("|".join((*parts, *values)), 1.0) for values in both])
    for name in table.numbers:
        named.append([(name, float(x)) for x in _scaled(columns[name])])
    return zip(*named)


def _scaled(numbers):
    numbers = np.nan_to_num(numbers)
    return np.sign(numbers) * np.log1p(np.abs(numbers))


def vowpal_wabbit(table, train, test, folder):
    """Return `(labels, probabilities, rows per second)`. Writing its text is not a part of the time."""
    import vowpalwabbit

    paths = [pathlib.Path(folder) / f"{side}.vw" for side in ("train", "test")]
    rows, labels = (_write(table, batches, path) for batches, path in zip((train, test), paths))
    letters = {name: _letter(i) for i, name in enumerate(table.categories)}
    crosses = " ".join(f"-q {letters[a]}{letters[b]}" for a, b in table.crosses)
    common = "--loss_function logistic --link logistic --quiet"
    begun = time.perf_counter()
    _run(vowpalwabbit, f"-d {paths[0]} -b {BITS} {common} {crosses} -f {folder}/model.vw")
    seconds = time.perf_counter() - begun
    _run(vowpalwabbit, f"-d {paths[1]} -t -i {folder}/model.vw -p {folder}/answers.txt --quiet")
    return labels, np.loadtxt(f"{folder}/answers.txt"), len(rows) / seconds


def _run(vowpalwabbit, options):
    workspace = vowpalwabbit.Workspace(options)
    workspace.run_parser()
    workspace.finish()


def _letter(i):
    """Return the first letter of a namespace, by which crosses name it."""
    return chr(ord("a") + i) if i < 26 else chr(ord("A") + i - 26)


def _write(table, batches, path):
    """Writes rows as Vowpal Wabbit reads them, and returns their labels."""
    found = []
    with open(path, "wb") as file:
        for columns, labels in batches:
            parts = []
            for i, name in enumerate(table.categories):
                space = f"|{_letter(i)} ".encode()
                parts.append([space + re.sub(rb"[\s|:]", b"_", v or b"none") for v in columns[name]])
            for i, name in enumerate(table.numbers):
                opening = "|0numbers " if i == 0 else ""
                parts.append([f"{opening}{name}:{x:.4g}".encode() for x in _scaled(columns[name])])
            for label, *row in zip(labels, *parts):
                file.write((b"1 " if label else b"-1 ") + b" ".join(row) + b"\n")
            found.append(labels)
    return np.concatenate(found)
