"""Strings hashed into ids, and a logistic regression on wide sparse rows.

Run it by `python -m benchmarks.sparse_inputs`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import Reach, TimeReach

STRINGS, QUICK_STRINGS = 1_000_000, 10_000
SHORTEST, LONGEST, BINS = 8, 20, 1 << 20  # bytes; bins of each hash
FEATURES, QUICK_FEATURES, NON_ZEROS, BATCH = 1 << 24, 1 << 16, 40, 4096
BATCHES, QUICK_BATCHES, FEW_ROWS = 50, 2, 16
# Frequent features as of words, and every feature as rare as the others: the caches help with the first only.
SPREADS = {"Zipf 1.1": 1.1, "uniform": 0.0}

HASH, OURS_XX, OURS_FARM = "hash", "ours (xxhash64)", "ours (farmhash64)"
OURS_SPLIT, OURS_OP = "ours (xxhash64, 4 hashes)", "ours (xxhash64, the op)"
TF_FAST, KERAS_HASH, PACKAGE = "tf.strings.to_hash_bucket_fast", "Keras Hashing", "xxhash, a Python loop"
HASHERS = {  # library: (worker, needs, settings)
    OURS_OP: ("of_ours:hash_op", ("keras_largeout",), {}),
    OURS_XX: ("of_ours:hash_layer", ("keras_largeout",), {"hash": "xxhash64"}),
    OURS_SPLIT: ("of_ours:hash_layer", ("keras_largeout",), {"hash": "xxhash64", "num_hashes": 4}),
    OURS_FARM: ("of_ours:hash_layer", ("keras_largeout",), {"hash": "farmhash64"}),
    TF_FAST: ("of_keras:hash_fast", ("tensorflow",), {}),
    KERAS_HASH: ("of_keras:hash_layer", ("keras",), {}),
    PACKAGE: ("of_xxhash:hash_each", ("xxhash",), {}),
}
OURS, KERAS, KERAS_DENSE = "ours (SparseDense)", "Keras Dense, tf.sparse", "Keras Dense, dense rows"
VW, VW_TEXT, VW_FTRL = "Vowpal Wabbit (its cache)", "Vowpal Wabbit (text)", "Vowpal Wabbit (--ftrl)"
PASSES = {
    OURS: ("of_ours:one_pass", ("keras_largeout",), {}),
    KERAS: ("of_keras:one_pass", ("keras",), {}),
    VW: ("of_vw:one_pass", ("vowpalwabbit",), {"file": "cache"}),
    VW_TEXT: ("of_vw:one_pass", ("vowpalwabbit",), {"file": "text"}),
    VW_FTRL: ("of_vw:one_pass", ("vowpalwabbit",), {"file": "cache", "ftrl": True}),
}
STEPS = {
    OURS: ("of_ours:few_rows", ("keras_largeout",), {}),
    KERAS: ("of_keras:few_rows", ("keras",), {}),
    KERAS_DENSE: ("of_keras:few_dense_rows", ("keras",), {}),
}
FEW = f"{FEW_ROWS} rows"


def pass_over(spread):
    """Return the problem's name."""
    return f"one pass, {spread}"


REACHES = [
    # 40 million strings per second.
    *(TimeReach(f"{STRINGS:,} strings: {o}", (HASH, o), 1e3 * STRINGS / 40e6) for o in (OURS_XX, OURS_SPLIT)),
    *(Reach(f"{o} vs to_hash_bucket_fast", (HASH, o), (HASH, TF_FAST), 3) for o in (OURS_OP, OURS_XX)),
    *(
        Reach(f"{problem}: vs {peer}", (problem, OURS), (problem, peer), bound)
        for problem in map(pass_over, SPREADS)
        for peer, bound in ((VW, 1), (VW_FTRL, 1), (VW_TEXT, 1), (KERAS, 10))
    ),
    *(Reach(f"{FEW}: vs {peer}", (FEW, OURS), (FEW, peer), 10) for peer in (KERAS, KERAS_DENSE)),
]


def _cases(problem, workers, config, options):
    return [
        Case(
            problem,
            library,
            f"benchmarks.peers.sparse_inputs.{worker}",
            config | settings,
            needs=needs,
            ours=library.startswith("ours"),
            **options,
        )
        for library, (worker, needs, settings) in workers.items()
    ]


def make_cases(quick):
    options = {"rounds": 1, "seconds": 0.1} if quick else {"rounds": 3, "seconds": 3.0}
    features = QUICK_FEATURES if quick else FEATURES
    cases = _cases(HASH, HASHERS, {"bins": BINS}, options)
    config = {"features": features, "batch": BATCH}
    for spread in SPREADS:
        cases += _cases(pass_over(spread), PASSES, config | {"spread": spread}, options)
    return cases + _cases(FEW, STEPS, config | {"spread": "uniform", "batch": FEW_ROWS}, options)


def sparse_rows(rows, features, exponent, seed=0):
    """Return ids and values `[rows, NON_ZEROS]`, and labels of a logistic model of them."""
    rng = np.random.default_rng(seed)
    shape = (rows, NON_ZEROS)
    if exponent:
        ids = _data.spread(_data.zipf_ranks(features, exponent, shape, seed), features)
    else:
        ids = rng.integers(0, features, shape)
    while len(again := np.argwhere(np.diff(ids := np.sort(ids, axis=1)) == 0)):
        ids[tuple(again.T)] = rng.integers(0, features, len(again))  # each feature of a row once
    values = rng.uniform(0.1, 1, shape).astype(np.float32).round(4)
    weights = rng.standard_normal(features, dtype=np.float32)
    scores = (weights[ids] * values).sum(1)
    labels = rng.random(rows) < 1 / (1 + np.exp(-scores))
    return {"ids": ids, "values": values, "labels": labels.astype(np.float32)}


def _write_text(path, ids, values, labels):
    """Write the rows in the format of Vowpal Wabbit."""
    with open(path, "w") as file:
        for row, numbers, label in zip(ids.tolist(), values, labels):
            pairs = " ".join(f"{i}:{x:.4f}" for i, x in zip(row, numbers.tolist()))
            file.write(f"{'1' if label else '-1'} | {pairs}\n")


def with_data(quick, folder, cases):
    """Return the cases with their strings or rows: the same for all of a problem."""
    paths, made = {}, {}
    if any(case.problem == HASH for case in cases):
        rng = np.random.default_rng(1)
        lengths = rng.integers(SHORTEST, LONGEST + 1, QUICK_STRINGS if quick else STRINGS)
        letters = rng.integers(97, 123, lengths.sum(), dtype=np.uint8)
        paths = _data.save(folder, lengths=lengths, letters=letters)
    for spread in {case.config["spread"] for case in cases if case.problem != HASH}:
        features = QUICK_FEATURES if quick else FEATURES
        arrays = sparse_rows((QUICK_BATCHES if quick else BATCHES) * BATCH, features, SPREADS[spread])
        key = spread.replace(" ", "_")
        made[spread] = {n.partition("-")[2]: p for n, p in _save(folder, key, arrays).items()}
        made[spread]["text"] = f"{folder}/{key}.vw"
        if any(case.needs == ("vowpalwabbit",) for case in cases):
            _write_text(made[spread]["text"], **arrays)
    return [case.but(data=paths if case.problem == HASH else made[case.config["spread"]]) for case in cases]


def _save(folder, key, arrays):
    return _data.save(folder, **{f"{key}-{name}": array for name, array in arrays.items()})


if __name__ == "__main__":
    text, columns = __doc__.partition("\n")[0], {"/ ours": OURS, "/ ours (xxhash64)": OURS_XX}
    sys.exit(main("sparse_inputs", text, make_cases, with_data, REACHES, columns, 16))
