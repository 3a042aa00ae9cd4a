"""A training step of two towers, and of a ranking model of 26 features; beside it building and saving.

Run it by `python -m benchmarks.recommenders`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case, run_worker
from benchmarks._report import MemoryReach, Reach, TimeReach

ZIPF = 1.1
TOWER_DIM, TOWER_BATCH = 32, 1024
TOWERS, QUICK_TOWERS = {"70K": 70_000, "1M": 1_000_000, "5M": 5_000_000}, {"2K": 2_000}
EPOCH = 100  # steps
RANKING_DIM, RANKING_BATCH, DENSE = 16, 4096, 13
FEATURES, MOST_ROWS, QUICK_ROWS = 26, 5_000_000, 2_000
BATCHES, QUICK_BATCHES = 32, 4
OPTIMIZERS = {"Adagrad": ("adagrad", 0.05), "Adam": ("adam", 0.001)}

LAYER = "ours (ShardedEmbedding)"
STACKED, SEPARATE = "ours (DistributedEmbedding)", "ours (DistributedEmbedding, not stacked)"
KERAS, KERAS_RS, TF_KERAS = "Keras", "keras_rs", "tf_keras"
TFRS, TORCH, TORCHREC = "TFRS on tf_keras", "PyTorch (sparse)", "TorchRec"
_LEGACY = {"TF_USE_LEGACY_KERAS": "1"}

TWO_TOWER = {  # library: (worker, needs)
    LAYER: ("of_ours:two_tower", ("keras_largeout",)),
    STACKED: ("of_ours:two_tower_stacked", ("keras_largeout",)),
    SEPARATE: ("of_ours:two_tower_separate", ("keras_largeout",)),
    KERAS: ("of_keras:two_tower", ("keras",)),
    KERAS_RS: ("of_keras_rs:two_tower", ("keras_rs",)),
    TFRS: ("of_tfrs:two_tower", ("tf_keras", "tensorflow_recommenders")),
    TORCH: ("of_torch:two_tower", ("torch",)),
    TORCHREC: ("of_torchrec:two_tower", ("torchrec",)),
}
RANKING = {
    STACKED: ("of_ours:ranking_stacked", ("keras_largeout",)),
    SEPARATE: ("of_ours:ranking_separate", ("keras_largeout",)),
    KERAS: ("of_keras:ranking", ("keras",)),
    KERAS_RS: ("of_keras_rs:ranking", ("keras_rs",)),
    TF_KERAS: ("of_tfrs:ranking", ("tf_keras",)),
    TORCH: ("of_torch:ranking", ("torch",)),
    TORCHREC: ("of_torchrec:ranking", ("torchrec",)),
}
SEVERAL = (STACKED, SEPARATE, KERAS)
TRAINED, SAVED, LOADED = "ours, training", "ours, training and saving", "ours, loading and training"
BUILD, MEMORY = f"{FEATURES} features, build", f"{FEATURES} features, memory"

REACHES = [
    *(
        reach
        for o in OPTIMIZERS
        for ours in (LAYER, STACKED)
        for reach in (
            Reach(f"70K {o}, epoch: {ours} vs TFRS", (f"70K {o}, epoch", ours), (f"70K {o}, epoch", TFRS), 1),
            Reach(f"5M {o}: {ours} vs Keras", (f"5M {o}", ours), (f"5M {o}", KERAS), 40),
        )
    ),
    *(
        Reach(f"{problem}: stacked over separate", (problem, STACKED), (problem, SEPARATE), 1, growth=True)
        for problem in (*(f"{size} {o}" for size in TOWERS for o in OPTIMIZERS), f"{FEATURES} features")
    ),
    TimeReach(BUILD, (BUILD, STACKED), 2000),
    *(
        MemoryReach(f"{case}, beyond training", (MEMORY, case), 0.3, over=(MEMORY, TRAINED))
        for case in (SAVED, LOADED)
    ),
]


def rows_of_features(quick):
    """Return the rows of the 26 tables: from 10 on, each table larger than the one before by the same
    factor.
    """
    return np.geomspace(10, QUICK_ROWS if quick else MOST_ROWS, FEATURES).round().astype(int).tolist()


def _case(problem, library, worker, needs, config, options):
    return Case(
        problem,
        library,
        f"benchmarks.peers.recommenders.{worker}",
        config,
        needs=needs,
        ours=library.startswith("ours"),
        environment=_LEGACY if library in (TFRS, TF_KERAS) else {},
        **options,
    )


def make_cases(quick):
    options = {"rounds": 1, "seconds": 0.2} if quick else {"rounds": 3, "seconds": 4.0}
    epoch = 4 if quick else EPOCH
    cases = []
    for size, rows in (QUICK_TOWERS if quick else TOWERS).items():
        for name, (optimizer, rate) in OPTIMIZERS.items():
            config = {"rows": rows, "dim": TOWER_DIM, "optimizer": optimizer, "lr": rate}
            tower = {k: v for k, v in TWO_TOWER.items() if (name, k) != ("Adam", TORCHREC)}  # CPUs: no Adam
            for library, (worker, needs) in tower.items():
                cases.append(_case(f"{size} {name}", library, worker, needs, config, options))
            for library in (LAYER, STACKED, KERAS, TFRS) if rows <= 70_000 else ():
                worker, needs = TWO_TOWER[library]
                case = config | {"steps_of_fit": epoch}
                cases.append(_case(f"{size} {name}, epoch", library, worker, needs, case, options))
    tables = {"rows": rows_of_features(quick), "dim": RANKING_DIM, "optimizer": "adagrad", "lr": 0.02}
    for library, (worker, needs) in RANKING.items():
        cases.append(_case(f"{FEATURES} features", library, worker, needs, tables, options))
    for library in SEVERAL:
        config = tables | {"devices": 4}
        problem = f"{FEATURES} features, 4 devices"
        cases.append(_case(problem, library, *RANKING[library], config, options))
    for library in (STACKED, SEPARATE, KERAS, KERAS_RS):
        worker, needs = RANKING[library]
        worker = worker.replace(":ranking", ":build")
        cases.append(_case(BUILD, library, worker, needs, tables, options))
    once = {"rounds": 1, "seconds": 0.2 if quick else 2.0}
    for library, worker in ((TRAINED, "ranking_stacked"), (SAVED, "saved"), (LOADED, "loaded")):
        cases.append(_case(MEMORY, library, f"of_ours:{worker}", ("keras_largeout",), tables, once))
    return cases


def with_data(quick, folder, cases):
    """Return the cases with their batches: ids by Zipf's law, spread over the tables."""
    count = QUICK_BATCHES if quick else BATCHES
    arrays = {}
    for rows in {case.config["rows"] for case in cases if isinstance(case.config["rows"], int)}:
        for i, side in enumerate(("user", "item")):
            ranks = _data.zipf_ranks(rows, ZIPF, (count, TOWER_BATCH), seed=i)
            arrays[f"{side}_{rows}"] = _data.spread(ranks, rows)
    if any(not isinstance(case.config["rows"], int) for case in cases):
        rng = np.random.default_rng(3)
        shape, tables = (count, RANKING_BATCH), rows_of_features(quick)
        ids = [_data.spread(_data.zipf_ranks(n, ZIPF, shape, seed=i), n) for i, n in enumerate(tables)]
        arrays["ids"] = np.stack(ids, axis=-1)
        arrays["numbers"] = rng.standard_normal((*shape, DENSE), dtype=np.float32)
        arrays["labels"] = (rng.random((*shape, 1)) < 0.25).astype(np.float32)
    paths = _data.save(folder, **arrays)
    done = []
    for case in cases:
        rows, config = case.config["rows"], case.config
        if isinstance(rows, int):
            data = {side: paths[f"{side}_{rows}"] for side in ("user", "item")}
        else:
            data = {name: paths[name] for name in ("ids", "numbers", "labels")}
        if case.library in (SAVED, LOADED):
            config = config | {"path": f"{folder}/{case.library}.keras"}
        if case.library == LOADED:  # what it loads, another process saves
            run_worker("benchmarks.peers.recommenders.of_ours:saved", config, data, 0.0, 1, 1)
        done.append(case.but(data=data, config=config))
    return done


if __name__ == "__main__":
    text, columns = __doc__.partition(";")[0], {"/ ours": STACKED}
    sys.exit(main("recommenders", text, make_cases, with_data, REACHES, columns, TOWER_DIM))
