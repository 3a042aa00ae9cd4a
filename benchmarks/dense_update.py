"""The optimizer's update of one large dense weight, such as the kernel of a wide layer below an output.

Run it by `python -m benchmarks.dense_update`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import Reach

SHAPES = {"512 x 16,384": (512, 16_384), "512 x 46,544": (512, 46_544)}
QUICK_SHAPES = {"64 x 4,096": (64, 4096)}
OPTIMIZERS = {"SGD": 0, "momentum": 1, "Adagrad": 1, "Adam": 2}  # name: slots
OURS, KERAS, KERAS_XLA, TORCH = "ours", "Keras", "Keras (jit_compile)", "PyTorch (fused)"
LIBRARIES = {  # name: (worker, needs)
    OURS: ("keras_dense_update:ours", ("keras_largeout",)),
    KERAS: ("keras_dense_update:step", ("keras",)),
    KERAS_XLA: ("keras_dense_update:jit_step", ("keras",)),
    TORCH: ("torch_dense_update:step", ("torch",)),
}
REACHES = [
    Reach(f"{shape} {o}: {OURS} vs Keras", (f"{shape} {o}", OURS), (f"{shape} {o}", KERAS), bound)
    for shape in SHAPES
    for o, bound in (("SGD", 1), ("momentum", 1), ("Adagrad", 1), ("Adam", 2))
]


def make_cases(quick):
    return [
        Case(
            problem=f"{size} {optimizer}",
            library=library,
            target=f"benchmarks.peers.{worker}",
            config={"shape": shape, "optimizer": optimizer},
            needs=needs,
            # The weight and its slots are read and written, the gradient is read.
            notes={"bytes": 4 * int(np.prod(shape)) * (2 * (1 + slots) + 1)},
            ours=library == OURS,
            rounds=1 if quick else 3,
            seconds=0.2 if quick else 2.0,
        )
        for size, shape in (QUICK_SHAPES if quick else SHAPES).items()
        for optimizer, slots in OPTIMIZERS.items()
        for library, (worker, needs) in LIBRARIES.items()
    ]


def with_data(quick, folder, cases):
    rng, done = np.random.default_rng(1), []
    shapes = {tuple(case.config["shape"]) for case in cases}
    paths = {
        s: _data.save(folder, **{f"grad_{s[1]}": rng.standard_normal(s, dtype=np.float32)}) for s in shapes
    }
    for case in cases:
        shape = tuple(case.config["shape"])
        done.append(case.but(data={"grad": paths[shape][f"grad_{shape[1]}"]}))
    return done


if __name__ == "__main__":
    sys.exit(
        main("dense_update", __doc__.partition(".")[0], make_cases, with_data, REACHES, {"/ ours": OURS}, 64)
    )
