"""A training step of the exact softmax, and of one over sampled classes: loss, gradients, SGD update.

Run it by `python -m benchmarks.softmax`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import MemoryReach, Reach

DIM, TOKENS, ZIPF, BATCHES = 304, 3200, 1.0, 16
SIZES, QUICK_SIZES = {"100K": 100_000, "1M": 1_000_000}, {"10K": 10_000}
SAMPLES = 4096
OURS_OPS, OURS = "FullSoftmax (ops)", "FullSoftmax (Keras head, optimizer)"
SAMPLED_OPS, SAMPLED = "SampledSoftmax (ops)", "SampledSoftmax (Keras head, optimizer)"
GEMMS, TABLE = "the three matrix products alone", "the table and its gradient alone"
TF_FULL, TORCH_FULL = "TensorFlow full softmax", "PyTorch full softmax"
TF_SAMPLED, SAMPLED_GEMMS = "tf.nn.sampled_softmax_loss", "its three matrix products alone"

FULL = {  # name: (worker, needs, sizes)
    OURS_OPS: ("ours_dense_heads:full_ops", "keras_largeout", ("10K", "100K", "1M")),
    OURS: ("ours_dense_heads:full", "keras_largeout", ("10K", "100K", "1M")),
    GEMMS: ("tf_softmax:products", "tensorflow", ("10K", "100K")),
    TABLE: ("tf_softmax:table_and_gradient", "tensorflow", ("10K", "100K")),
    TF_FULL: ("tf_softmax:full", "tensorflow", ("10K", "100K")),
    TORCH_FULL: ("torch_softmax:full", "torch", ("10K", "100K")),
}
OF_SAMPLES = {
    SAMPLED: ("ours_dense_heads:sampled", "keras_largeout"),
    TF_SAMPLED: ("tf_softmax:sampled", "tensorflow"),
    SAMPLED_GEMMS: ("tf_softmax:sampled_products", "tensorflow"),
}

# What layers of the policy "mixed_bfloat16" do: weights are float32, products are of bfloat16 where the
# processor has them.
HALF = ", bfloat16"
IN_BFLOAT16 = (OURS, TF_FULL, TORCH_FULL)
_FULL, _SAMPLED = "100K", f"{SAMPLES} of 100K"
REACHES = [
    *(
        reach
        for ours in (OURS_OPS, OURS)
        for reach in (
            Reach(f"{ours} vs TensorFlow", (_FULL, ours), (_FULL, TF_FULL), 1),
            Reach(f"{ours} over the three products", (_FULL, ours), (_FULL, GEMMS), 1.3, growth=True),
            MemoryReach(f"{ours}, memory beyond table and gradient", (_FULL, ours), 0.2, (_FULL, TABLE)),
        )
    ),
    Reach(f"{SAMPLED} vs TensorFlow", (_SAMPLED, SAMPLED), (_SAMPLED, TF_SAMPLED), 2),
    Reach("in bfloat16, FullSoftmax vs TensorFlow", (_FULL + HALF, OURS), (_FULL + HALF, TF_FULL), 1),
    Reach("FullSoftmax: bfloat16 vs float32", (_FULL + HALF, OURS), (_FULL, OURS), 1.5),
]


def _case(problem, library, worker, needs, classes, options, samples=0, bfloat16=False):
    columns = samples or classes
    config = {"classes": classes, "dim": DIM, "tokens": TOKENS, "lr": 0.1, "samples": samples}
    config["bfloat16"] = bfloat16
    return Case(
        problem + HALF * bfloat16,
        library,
        f"benchmarks.peers.{worker}",
        config,
        notes={"flops": 6 * TOKENS * columns * DIM},
        needs=(needs,),
        ours=needs == "keras_largeout",
        **options,
    )


def make_cases(quick):
    usual = {"rounds": 1, "seconds": 0.2} if quick else {"rounds": 3, "seconds": 12.0}
    large = usual if quick else {"rounds": 1, "seconds": 30.0, "min_steps": 1}
    cases = []
    for size, classes in (QUICK_SIZES if quick else SIZES).items():
        options = large if size == "1M" else usual
        samples = min(SAMPLES, classes // 4)
        for library, (worker, needs, sizes) in FULL.items():
            if size in sizes:
                cases.append(_case(size, library, worker, needs, classes, options))
        if size != "1M":
            for library in IN_BFLOAT16:
                cases.append(_case(size, library, *FULL[library][:2], classes, options, bfloat16=True))
        for library, (worker, needs) in OF_SAMPLES.items():
            problem = f"{samples} of {size}"
            cases.append(_case(problem, library, worker, needs, classes, usual, samples))
        cases.append(_case(problem, SAMPLED, *OF_SAMPLES[SAMPLED], classes, usual, samples, bfloat16=True))
    return cases


def with_data(quick, folder, cases):
    """Return the cases with their batches."""
    hidden = 0.5 * np.random.default_rng(2).standard_normal((2, TOKENS, DIM), np.float32)
    paths = _data.save(folder, hidden=hidden)
    for classes in {case.config["classes"] for case in cases}:
        targets = _data.zipf_ranks(classes, ZIPF, (BATCHES, TOKENS), seed=1)
        paths.update(_data.save(folder, **{f"targets_{classes}": targets}))
    return [
        case.but(data={"hidden": paths["hidden"], "targets": paths[f"targets_{case.config['classes']}"]})
        for case in cases
    ]


if __name__ == "__main__":
    columns = {"/ FullSoftmax": OURS, "/ SampledSoftmax": SAMPLED}
    sys.exit(main("softmax", __doc__.partition(".")[0], make_cases, with_data, REACHES, columns, DIM))
