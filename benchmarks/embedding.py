"""A training step of a large embedding table: lookup, sum of 8, gradient, update.

Run it by `python -m benchmarks.embedding`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import Reach

DIM, BATCH, COMBINED, ZIPF = 64, 4096, 8, 1.2
SIZES = {"1M": 1_000_000, "10M": 10_000_000}
QUICK_SIZES = {"20K": 20_000}
# Enough batches that the rows of one are no longer in the cache when its turn comes again.
BATCHES, QUICK_BATCHES = 64, 8

OPTIMIZERS = {  # name: (in the workers, slots per row, learning rate)
    "SGD": ("sgd", 0, 0.1),
    "Adagrad": ("adagrad", 1, 0.1),
    "RowWiseAdagrad": ("rowwise_adagrad", 0, 0.1),
    "Adam": ("adam", 2, 0.001),
}
OPS, LAYER = "ours (ops)", "ours (Keras layer, optimizer)"
FIT = "ours (fit, 20 steps per call)"
KERAS, KERAS_XLA = "Keras Embedding", "Keras Embedding (jit_compile)"
TORCH, FBGEMM = "PyTorch EmbeddingBag(sparse)", "FBGEMM CPU"
LIBRARIES = {  # name: (worker, needs, optimizers)
    OPS: ("ours_embedding:ops_step", ("keras_largeout",), tuple(OPTIMIZERS)),
    LAYER: ("ours_embedding:keras_step", ("keras_largeout",), tuple(OPTIMIZERS)),
    FIT: ("ours_embedding:fit_step", ("keras_largeout",), tuple(OPTIMIZERS)),
    KERAS: ("keras_embedding:step", ("keras",), ("SGD", "Adagrad", "Adam")),
    KERAS_XLA: ("keras_embedding:jit_step", ("keras",), ("SGD", "Adagrad", "Adam")),
    TORCH: ("torch_embedding:step", ("torch",), ("SGD", "Adagrad", "Adam")),
    FBGEMM: ("fbgemm_embedding:step", ("torch", "fbgemm_gpu"), ("SGD", "Adagrad", "RowWiseAdagrad")),
}
REACHES = [
    *(Reach(f"10M Adam: {o} vs Keras Adam", ("10M Adam", o), ("10M Adam", KERAS), 600) for o in (LAYER, OPS)),
    *(Reach(f"Adam: {o}, 10M vs 1M", ("10M Adam", o), ("1M Adam", o), 1.3, True) for o in (LAYER, OPS)),
    *(Reach(f"1M Adam: {o} vs SparseAdam", ("1M Adam", o), ("1M Adam", TORCH), 4) for o in (LAYER, OPS)),
    *(
        Reach(f"{s} {k}: {o} vs FBGEMM", (f"{s} {k}", o), (f"{s} {k}", FBGEMM), 1)
        for s in SIZES
        for k in ("SGD", "Adagrad")
        for o in (LAYER, OPS)
    ),
    *(
        Reach(f"1M {k}: {FIT} vs FBGEMM", (f"1M {k}", FIT), (f"1M {k}", FBGEMM), times)
        for k, times in (("SGD", 1.5), ("Adagrad", 3))
    ),
]


def traffic(unique, dim, outputs, ids, slots):
    """Return bytes that must move in a step, and the random rows behind them.

    Each touched row is read once forward; the row and each of its slots are read and written once backward.
    """
    row = 4 * dim
    moved = unique * row * (1 + 2 * (1 + slots)) + 2 * outputs * row + 2 * 8 * ids
    return {"bytes": moved, "rows_read": unique, "rows_updated": unique * (1 + slots), "unique_rows": unique}


def make_cases(quick):
    return [
        Case(
            problem=f"{size} {optimizer}",
            library=library,
            target=f"benchmarks.peers.{worker}",
            config={"rows": rows, "dim": DIM, "init": 0.01, "optimizer": name, "lr": rate},
            needs=needs,
            ours=library in (OPS, LAYER, FIT),
            rounds=1 if quick else 3,
            seconds=0.2 if quick else 3.0,
        )
        for size, rows in (QUICK_SIZES if quick else SIZES).items()
        for optimizer, (name, _, rate) in OPTIMIZERS.items()
        for library, (worker, needs, optimizers) in LIBRARIES.items()
        if optimizer in optimizers
    ]


def with_data(quick, folder, cases):
    """Return the cases with their batches, the same for all of one table size, and the traffic of a step."""
    grad = 0.01 * np.random.default_rng(2).standard_normal((BATCH, DIM), dtype=np.float32)
    arrays, unique = {"grad": grad}, {}
    for rows in {case.config["rows"] for case in cases}:
        shape = (QUICK_BATCHES if quick else BATCHES, BATCH, COMBINED)
        ids = _data.spread(_data.zipf_ranks(rows, ZIPF, shape, seed=1), rows)
        unique[rows] = float(np.mean([len(np.unique(batch)) for batch in ids]))
        arrays[f"ids_{rows}"] = ids
    paths = _data.save(folder, **arrays)
    slots = {name: slots for name, slots, _ in OPTIMIZERS.values()}
    done = []
    for case in cases:
        rows, optimizer = case.config["rows"], case.config["optimizer"]
        data = {"grad": paths["grad"], "ids": paths[f"ids_{rows}"]}
        notes = traffic(unique[rows], DIM, BATCH, BATCH * COMBINED, slots[optimizer])
        done.append(case.but(data=data, notes=notes))
    return done


if __name__ == "__main__":
    sys.exit(
        main("embedding", __doc__.partition(".")[0], make_cases, with_data, REACHES, {"/ ours": LAYER}, DIM)
    )
