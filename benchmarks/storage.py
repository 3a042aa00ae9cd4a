"""A training step of an embedding table in memory, in host memory, and in files, up to tables beyond memory.

Run it by `python -m benchmarks.storage`. Files go to the system's folder of temporary files (`TMPDIR`).
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import LimitReach, MemoryReach, Reach, TimeReach

DIM, BATCH, COMBINED, ZIPF = 64, 4096, 8, 1.2
SIZES, QUICK_SIZES = {"10M": 10_000_000, "400M": 400_000_000}, {"20K": 20_000}
BATCHES, QUICK_BATCHES, COLD_BATCHES = 64, 8, 8

MEMORY, HOST, FILE, COLD = "ours, device memory", "ours, host memory", "ours, files", "ours, files, cold"
TORCH, NUMPY, KERAS = (
    "PyTorch SparseAdam on torch.from_file",
    "NumPy memmap, SGD by hand",
    "Keras Embedding, Adam",
)
LIBRARIES = {  # library: (worker, needs, sizes)
    MEMORY: ("ours_embedding:keras_step", "keras_largeout", ("20K", "10M")),
    HOST: ("ours_embedding:keras_step", "keras_largeout", ("20K", "10M")),
    FILE: ("ours_embedding:keras_step", "keras_largeout", ("20K", "10M", "400M")),
    COLD: ("ours_embedding:cold_step", "keras_largeout", ("20K", "400M")),
    TORCH: ("mapped_embedding:torch_step", "torch", ("20K", "10M")),
    NUMPY: ("mapped_embedding:numpy_step", "numpy", ("20K", "10M", "400M")),
    KERAS: ("keras_embedding:step", "keras", ("20K", "10M")),
}
LAWS = {"zipf": set(LIBRARIES) - {COLD}, "uniform": {COLD}}

REACHES = [
    Reach("10M: host over device memory", ("10M zipf", HOST), ("10M zipf", MEMORY), 1.1, growth=True),
    Reach("10M: files over device memory", ("10M zipf", FILE), ("10M zipf", MEMORY), 1.2, growth=True),
    TimeReach("400M: 20 steps/s", ("400M zipf", FILE), 50),
    LimitReach("400M: cold rows over pages of the disk", ("400M uniform", COLD), "disk", 0.7),
    MemoryReach("400M: memory without the page cache", ("400M zipf", FILE), 1.0, anonymous=True),
]


def make_cases(quick):
    options = {"rounds": 1, "seconds": 0.2} if quick else {"rounds": 3, "seconds": 6.0}
    cases = []
    for law, of_law in LAWS.items():
        for size, rows in (QUICK_SIZES if quick else SIZES).items():
            config = {"rows": rows, "dim": DIM, "init": 0.01, "optimizer": "adam", "lr": 0.001}
            for library, (worker, needs, sizes) in LIBRARIES.items():
                if size in sizes and library in of_law:
                    storage = {HOST: "host", FILE: "file", COLD: "file"}.get(library, "device")
                    cases.append(
                        Case(
                            problem=f"{size} {law}",
                            library=library,
                            target=f"benchmarks.peers.{worker}",
                            config={**config, "storage": storage, "law": law},
                            needs=(needs,),
                            ours=library in (MEMORY, HOST, FILE, COLD),
                            **options,
                        )
                    )
    return cases


def with_data(quick, folder, cases):
    """Return the cases with their batches, and a place for their files."""
    rng = np.random.default_rng(1)
    arrays = {"grad": 0.01 * rng.standard_normal((BATCH, DIM), dtype=np.float32)}
    batches = {"zipf": QUICK_BATCHES if quick else BATCHES, "uniform": COLD_BATCHES}
    for rows, law in {(case.config["rows"], case.config["law"]) for case in cases}:
        shape = (batches[law], BATCH, COMBINED)
        ids = rng.integers(0, rows, shape) if law == "uniform" else _zipf(rng, rows, shape)
        arrays[f"{law}_{rows}"] = ids
    paths = _data.save(folder, **arrays)
    done = []
    for i, case in enumerate(cases):
        config = {**case.config, "folder": f"{folder}/case{i}"}
        if config["storage"] == "file":
            config["storage"] = f"file:{config['folder']}"
        data = {"grad": paths["grad"], "ids": paths[f"{config['law']}_{config['rows']}"]}
        done.append(case.but(config=config, data=data))
    return done


def _zipf(rng, rows, shape):
    """Return ranks by the continuous law, rounded down: the table of probabilities of 400 million rows takes
    long.
    """
    top = (rows + 1.0) ** (1 - ZIPF) - 1
    ranks = np.floor((1 + rng.random(shape) * top) ** (1 / (1 - ZIPF))).astype(np.int64) - 1
    return _data.spread(np.clip(ranks, 0, rows - 1), rows)


if __name__ == "__main__":
    text, columns = __doc__.partition(".")[0], {"/ memory": MEMORY}
    sys.exit(main("storage", text, make_cases, with_data, REACHES, columns, DIM))
