"""A training step of keras_hub's GPT-2 over 256 thousand words: dense logits, or a `FullSoftmax`.

Run it by `python -m benchmarks.keras_hub_models`. Both train the same model from the same weights, with its
table as the matrix of the logits. Behind the table of what was measured stands what the output layer of T
tokens, V words and D columns has to hold beside the weights, the hidden vectors and the gradients of both,
by `held`.
"""

import importlib.util
import math
import sys

import numpy as np

from benchmarks import _data, _table
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import MemoryReach, Reach

ROWS, BATCHES = 8, 4
SIZES = {"256K words": {"words": 256_000, "dim": 128, "length": 256, "layers": 2}}
QUICK_SIZES = {"4K words": {"words": 4_000, "dim": 16, "length": 8, "layers": 1}}
DENSE, XLA = "keras_hub, dense logits", "keras_hub, dense logits (jit_compile)"
OURS, OUR_ADAM = "FullSoftmax", "FullSoftmax, optimizers.LazyAdam"
ALONE = "the model without logits"
WORKERS = {
    ALONE: "without_logits",
    DENSE: "dense",
    XLA: "dense_under_xla",
    OURS: "full_softmax",
    OUR_ADAM: "full_softmax_and_adam",
}
_SIZE = "256K words"
REACHES = [
    Reach(f"{OURS} vs keras_hub", (_SIZE, OURS), (_SIZE, DENSE), 1),
    MemoryReach(f"{OURS}, memory beyond the model without logits", (_SIZE, OURS), 0.3, (_SIZE, ALONE)),
]


def make_cases(quick):
    usual = {"rounds": 1, "seconds": 0.2} if quick else {"rounds": 3, "seconds": 20.0}
    return [
        Case(
            size,
            library,
            f"benchmarks.keras_hub_models.models:{worker}",
            {**config, "lr": 1e-3},
            needs=("keras_hub",),
            ours=library in (OURS, OUR_ADAM),
            **usual,
        )
        for size, config in (QUICK_SIZES if quick else SIZES).items()
        for library, worker in WORKERS.items()
    ]


def with_data(quick, folder, cases):
    """Return the cases with their batches."""
    config = cases[0].config
    tokens = _data.zipf_ranks(config["words"], 1.0, (BATCHES, ROWS, config["length"] + 1), seed=1)
    tokens = tokens.astype(np.int32)
    paths = _data.save(folder, tokens=tokens[..., :-1], targets=tokens[..., 1:])
    return [case.but(data=paths) for case in cases]


def held(tokens, words, dim, size=4):
    """Return what output layers hold beside weights, hidden vectors and the gradients of both.

    - Dense logits: the logits and their gradient, both until the backward pass.
    - Liger's fused linear cross-entropy: the logits of a chunk of tokens, in whose place their gradient
      comes. `ceil(V / D)` chunks, or fewer, of a power of two of tokens each
      (https://github.com/linkedin/Liger-Kernel, `src/liger_kernel/ops/fused_linear_cross_entropy.py`,
      `fused_linear_cross_entropy_forward`), and a float32 loss of each token.
    - Cut cross-entropy: two float32 numbers of each token, and of each word its mean logit and its place in
      their order (https://arxiv.org/abs/2411.09009, sections 4.2 and 4.3;
      https://github.com/apple/ml-cross-entropy, `cut_cross_entropy/cce.py`). Logits stay in a GPU's registers
      and shared memory. Its page says 1.1 MB for 8192 tokens and 256 thousand words.
    - `FullSoftmax` on a processor: the exponentials of all logits of a chunk of tokens, up to 128 MiB, and 16
      partial gradients of each of their hidden vectors. Where 96 tokens would take more, it computes logits a
      second time instead (`custom_ops/full_softmax/full_softmax.cc`, `KeptTokens` and `Reserve`).

    Args:
        tokens, words, dim: int.

    Returns:
        A dict from the output layer to `(formula, bytes)`, of float32.
    """
    liger = min(tokens, 2 ** math.ceil(math.log2(math.ceil(tokens / math.ceil(words / dim)))))
    ours = min(tokens, (128 << 20) // (4 * words))
    return {
        "dense logits": ("8 T V", 8 * tokens * words),
        "Liger, fused linear cross-entropy": (
            f"4 C V + 4 T, C = {liger} tokens a chunk",
            4 * liger * words + 4 * tokens,
        ),
        "cut cross-entropy": ("8 T + 8 V", 8 * (tokens + words)),
        "FullSoftmax": (f"4 n V + 64 n D, n = {ours} tokens a chunk", 4 * ours * words + 64 * ours * dim),
    }


def print_held(quick):
    """Print `held` for what was measured."""
    for size, config in (QUICK_SIZES if quick else SIZES).items():
        tokens = ROWS * config["length"]
        found = held(tokens, config["words"], config["dim"])
        print(f"\n{size}, {tokens} tokens, {config['dim']} columns, by arithmetic:\n")
        rows = [[name, formula, f"{size / 1e6:,.1f}"] for name, (formula, size) in found.items()]
        print(_table.aligned(["output layer", "holds", "MB"], rows))


def run(argv):
    """Measures and reports. Returns the exit status: 0 where keras_hub is not installed."""
    if importlib.util.find_spec("keras_hub") is None:
        print('skipped: keras_hub is not installed (pip install "keras-largeout[hub]")')
        return 0
    description = __doc__.partition(".")[0]
    references, baseline = {"/ FullSoftmax": OURS}, (_SIZE, ALONE)
    status = main(
        "keras_hub_models", description, make_cases, with_data, REACHES, references, 128, argv, baseline
    )
    print_held("--quick" in argv)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
