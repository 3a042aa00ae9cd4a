"""A training step of an output layer over many classes: loss, gradients, SGD update.

Run it by `python -m benchmarks.tree_softmax`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case, run_worker
from benchmarks._report import MemoryReach, Reach

DIM, TOKENS, ZIPF, BATCHES = 304, 3200, 1.0, 16
SIZES = {"100K": 100_000, "1M": 1_000_000, "10M": 10_000_000}
QUICK_SIZES = {"10K": 10_000}
# 9 million words as 3000 x 3000, 400 sequences of 100 tokens.
# The table and the gradients of its touched rows take 20 GB. TensorFlow's oneDNN allocator grows by powers of
# two and gives up; the plain one does not.
_LARGE = {"TF_ENABLE_ONEDNN_OPTS": "0"}
TWO_LEVEL, TWO_LEVEL_CLASSES, TWO_LEVEL_TOKENS = "9M in 3000 x 3000, 40000 tokens", 9_000_000, 40_000
QUICK_TWO_LEVEL = ("10K in 100 x 100, 1000 tokens", 10_000, 1000)

OURS = {
    f"ours, {name} ({way})": (tree, f"ours_softmax:{function}")
    for name, tree in (("huffman(8)", "huffman"), ("head_tail", "head_tail"))
    for way, function in (
        ("ops", "ops_step"),
        ("Keras head, optimizer", "keras_step"),
        ("Keras head, fused optimizer", "fused_step"),
    )
}
HUFFMAN_OPS, HUFFMAN, HUFFMAN_FUSED, HEAD_TAIL_OPS, HEAD_TAIL, HEAD_TAIL_FUSED = OURS
TF_FULL, TORCH_FULL = "TensorFlow full softmax", "PyTorch full softmax"
ADAPTIVE = "PyTorch AdaptiveLogSoftmaxWithLoss"
SAMPLED, GATHER = "tf.nn.sampled_softmax_loss(4096)", "two levels by tf.gather"
PEERS = {  # name: (worker, needs, sizes)
    TF_FULL: ("tf_softmax:full", ("tensorflow",), ("10K", "100K")),
    TORCH_FULL: ("torch_softmax:full", ("torch",), ("10K", "100K")),
    ADAPTIVE: ("torch_softmax:adaptive", ("torch",), ("10K", "100K", "1M")),
    SAMPLED: ("tf_softmax:sampled", ("tensorflow",), ("10K", "100K", "1M")),
    GATHER: ("tf_softmax:two_level_gather", ("tensorflow",), ("10K", "100K", "1M")),
}
# The fastest of those tried for each size.
CUTOFFS = {"10K": [500, 2000], "100K": [1000, 5000, 20000], "1M": [2000, 10000, 50000, 200000]}


def _goals(tree, libraries, full, adaptive_100k, adaptive_1m):
    for library in libraries:
        way = f"{tree}, {library.partition('(')[2].split('(')[-1].rstrip(')')}"
        small, middle, large = ((size, library) for size in SIZES)
        yield Reach(f"100K: {way} vs tf full", small, ("100K", TF_FULL), full)
        yield Reach(f"100K: {way} vs adaptive", small, ("100K", ADAPTIVE), adaptive_100k)
        yield Reach(f"1M: {way} vs adaptive", middle, ("1M", ADAPTIVE), adaptive_1m)
        yield Reach(f"{way}: 10M vs 100K", large, small, 2, growth=True)
        yield MemoryReach(f"10M: {way}, memory of the process", large, 15.5)


REACHES = [
    *_goals("huffman(8)", (HUFFMAN, HUFFMAN_OPS), 150, 10, 60),
    *_goals("head_tail", (HEAD_TAIL, HEAD_TAIL_OPS), 80, 6, 30),
    Reach("huffman(8), fused: 10M vs 100K", ("10M", HUFFMAN_FUSED), ("100K", HUFFMAN_FUSED), 2, growth=True),
    Reach("10M: head_tail, fused vs the plain step", ("10M", HEAD_TAIL_FUSED), ("10M", HEAD_TAIL), 1.5),
    MemoryReach("10M: huffman(8), fused, memory of the process", ("10M", HUFFMAN_FUSED), 14.5),
    Reach(
        "9M: fused vs the plain step",
        (TWO_LEVEL, "ours, two_level (Keras head, fused optimizer)"),
        (TWO_LEVEL, "ours, two_level (Keras head, optimizer)"),
        2,
    ),
    MemoryReach(
        "9M: fused, memory of the process", (TWO_LEVEL, "ours, two_level (Keras head, fused optimizer)"), 12
    ),
]


def _config(classes, tokens, tree=None, size=None):
    return {
        "classes": classes,
        "dim": DIM,
        "tokens": tokens,
        "lr": 0.1,
        "tree": tree,
        "arity": 8,
        "samples": min(4096, classes // 4),
        "gather_bytes": 1 << 29,
        "cutoffs": CUTOFFS.get(size),
    }


def _our_case(problem, library, tree, worker, classes, tokens, **options):
    config = _config(classes, tokens, tree)
    return Case(
        problem,
        library,
        f"benchmarks.peers.{worker}",
        config,
        ours=True,
        needs=("keras_largeout",),
        **options,
    )


def _size_cases(size, classes, options):
    for library, (tree, worker) in OURS.items():
        yield _our_case(size, library, tree, worker, classes, TOKENS, **options)
    for library, (worker, needs, sizes) in PEERS.items():
        if size in sizes:
            config = _config(classes, TOKENS, size=size)
            yield Case(size, library, f"benchmarks.peers.{worker}", config, needs=needs, **options)


def _two_level_cases(problem, classes, tokens, options):
    for library, (tree, worker) in OURS.items():
        if tree == "huffman":  # the same two ways, on the other tree
            name = library.replace("huffman(8)", "two_level")
            yield _our_case(problem, name, "two_level", worker, classes, tokens, **options)


def make_cases(quick):
    usual = {"rounds": 1, "seconds": 0.2} if quick else {"rounds": 3, "seconds": 4.0}
    huge = usual if quick else {"rounds": 2, "seconds": 4.0}
    cases = []
    for size, classes in (QUICK_SIZES if quick else SIZES).items():
        cases += _size_cases(size, classes, huge if size == "10M" else usual)
    problem, classes, tokens = QUICK_TWO_LEVEL if quick else (TWO_LEVEL, TWO_LEVEL_CLASSES, TWO_LEVEL_TOKENS)
    cases += _two_level_cases(problem, classes, tokens, {**huge, "rounds": 1, "environment": _LARGE})
    return cases


def with_data(quick, folder, cases):
    """Return the cases with their batches, and ours with the bytes and flops of their trees."""
    data = {}
    for classes, tokens in {(case.config["classes"], case.config["tokens"]) for case in cases}:
        rotation = 4 if tokens <= TOKENS else 1  # 40 thousand vectors alone are more than any cache holds
        arrays = {
            "hidden": 0.5 * np.random.default_rng(2).standard_normal((rotation, tokens, DIM), np.float32),
            "targets": _data.zipf_ranks(classes, ZIPF, (BATCHES, tokens), seed=1),
            "counts": _data.zipf_counts(classes, ZIPF),
        }
        paths = _data.save(folder, **{f"{name}_{classes}_{tokens}": array for name, array in arrays.items()})
        data[classes, tokens] = {name: paths[f"{name}_{classes}_{tokens}"] for name in arrays}
    notes, done = {None: {}}, []
    for case in cases:
        classes, tokens, tree = (case.config[name] for name in ("classes", "tokens", "tree"))
        files = data[classes, tokens]
        key = tree and (tree, classes, tokens)
        if key not in notes:
            report = run_worker("benchmarks.peers.ours_softmax:tree_notes", case.config, files, 0.0, 1, 1)
            notes[key] = report.get("notes", {})
        done.append(case.but(data=files, notes=notes[key]))
    return done


if __name__ == "__main__":
    columns = {"/ huffman": HUFFMAN, "/ head_tail": HEAD_TAIL}
    sys.exit(main("tree_softmax", __doc__.partition(".")[0], make_cases, with_data, REACHES, columns, DIM))
