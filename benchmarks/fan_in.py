"""An output layer with fixed fan-in: forward pass, training step, best labels, memory, growth with labels.

670,091 labels with 32 connections each to 32,768 inputs, batch 32, beside a dense layer of 768 inputs. All
train by the squared hinge with every label inside its margin, so that nothing is skipped: the dearest case.

Run it by `python -m benchmarks.fan_in`.
"""

import sys

import numpy as np

from benchmarks import _data
from benchmarks._cli import main
from benchmarks._harness import Case
from benchmarks._report import MemoryReach, Reach, TimeReach

FAN_IN, BATCH, LABELS_EACH, BATCHES = 32, 32, 5, 4
INPUTS, DENSE_INPUTS = 32_768, 768
MAIN = "670K"
SIZES = {"300K": 300_000, MAIN: 670_091, "1.5M": 1_500_000, "3M": 3_000_000}
QUICK_INPUTS, QUICK_DENSE_INPUTS = 1024, 64
QUICK_MAIN, QUICK_SIZES = "4K", {"2K": 2000, "4K": 4000}

FORWARD, TOP, TRAIN = "forward", "top 10", "training"
DENSE, SPARSE, CSR = "dense (tf.matmul)", "tf.sparse.sparse_dense_matmul", "PyTorch CSR"
BASELINE = ("baseline", "TensorFlow, one small step")
LOGITS, LOSS, LOSS_BF16 = "ours, logits (op)", "ours, loss (op)", "ours, loss, bfloat16 (op)"
TAPE_OPS, TAPE = "ours, gradients, Adam (ops)", "ours, gradients, LazyAdam (Keras layer)"
FUSED_OPS, FUSED = "ours, fused Adam (ops)", "ours, fused Adam (Keras layer)"
SGD_OPS, SGD = "ours, fused SGD, bfloat16 (ops)", "ours, fused SGD, bfloat16 (Keras layer)"
TOP_K = "ours, top_k (op)"

OURS = {  # problem: {library: (function of peers/ours_fan_in.py, dtype of the weights)}
    FORWARD: {
        LOGITS: ("logits", "float32"),
        LOSS: ("loss", "float32"),
        LOSS_BF16: ("loss", "bfloat16"),
    },
    TOP: {TOP_K: ("top_k", "float32")},
    TRAIN: {
        TAPE_OPS: ("gradients_ops", "float32"),
        TAPE: ("gradients_keras", "float32"),
        FUSED_OPS: ("fused_ops", "float32"),
        FUSED: ("fused_keras", "float32"),
        SGD_OPS: ("fused_ops", "bfloat16"),
        SGD: ("fused_keras", "bfloat16"),
    },
}
PEERS = {  # problem: {library: (worker, needs)}
    FORWARD: {
        DENSE: ("tf_fan_in:dense_forward", "tensorflow"),
        SPARSE: ("tf_fan_in:sparse_forward", "tensorflow"),
        CSR: ("torch_fan_in:forward", "torch"),
    },
    TOP: {DENSE: ("tf_fan_in:dense_top_k", "tensorflow")},
    TRAIN: {
        DENSE: ("tf_fan_in:dense_train", "tensorflow"),
        SPARSE: ("tf_fan_in:sparse_train", "tensorflow"),
        CSR: ("torch_fan_in:train", "torch"),
    },
}

# Bytes to and from memory for each connection in a step: its weight and its index (2 bytes) in both passes.
# Then a gradient is written and read back (not where the step is fused); Adam reads and writes the weight and
# two moments.
_FORWARD = {"float32": 6, "bfloat16": 4}
_GRADIENTS = {"float32": 6 + 6 + 4 + 4 + 8 + 16}
_FUSED = {"float32": 6 + 2 + 8 + 16, "bfloat16": 4 + 2 + 4}
_BYTES = {
    "logits": _FORWARD,
    "loss": _FORWARD,
    "top_k": _FORWARD,
    "gradients_ops": _GRADIENTS,
    "gradients_keras": _GRADIENTS,
    "fused_ops": _FUSED,
    "fused_keras": _FUSED,
}


def _reaches():
    forward, train, speedup = f"{MAIN} {FORWARD}", f"{MAIN} {TRAIN}", 184 / 60
    for library in (LOGITS, LOSS):
        yield TimeReach(f"forward: {library}", (forward, library), 60)
        yield Reach(f"forward: {library} vs dense", (forward, library), (forward, DENSE), round(speedup, 2))
    for library in (FUSED, FUSED_OPS, TAPE, TAPE_OPS):
        yield Reach(f"training: {library} vs dense, Keras Adam", (train, library), (train, DENSE), 6)
    for library, bound in ((FUSED, 0.7), (FUSED_OPS, 0.7), (SGD, 0.35), (SGD_OPS, 0.35)):
        yield MemoryReach(f"memory over TensorFlow: {library}", (train, library), bound, BASELINE)
    small, *larger = SIZES
    for size in larger:
        grown = round(1.2 * SIZES[size] / SIZES[small], 2)  # a fifth more a label at most
        cases = [(f"{s} {TRAIN}", FUSED) for s in (size, small)]
        yield Reach(f"{FUSED}: {SIZES[size]:,} labels vs {SIZES[small]:,}", *cases, grown, growth=True)


REACHES = list(_reaches())


def traffic(function, dtype, labels, batch):
    """Return what a step moves: bytes to and from memory, bytes of inputs gathered, of their gradients
    added to.
    """
    connections = labels * FAN_IN
    moved = connections * _BYTES[function][dtype]
    if function == "logits":
        moved += 4 * labels * batch
    rows = 4 * connections * batch
    trains = function.startswith(("fused", "gradients"))  # the weights' gradient gathers once more
    return {
        "labels": labels,
        "bytes": moved,
        "gathered": rows * (2 if trains else 1),
        "gathered_and_added": rows if trains else 0,
    }


def _ours(size, what, library, labels, inputs, options):
    function, dtype = OURS[what][library]
    return Case(
        f"{size} {what}",
        library,
        f"benchmarks.peers.ours_fan_in:{function}",
        {"labels": labels, "inputs": inputs, "fan_in": FAN_IN, "dtype": dtype, "k": 10, "lr": 1e-5},
        notes=traffic(function, dtype, labels, BATCH),
        needs=("keras_largeout",),
        ours=True,
        **options,
    )


def make_cases(quick):
    """Return the baseline, all of the main size, and fused training of the other sizes."""
    options = {"rounds": 1, "seconds": 0.2} if quick else {"rounds": 3, "seconds": 4.0}
    main_size, sizes = (QUICK_MAIN, QUICK_SIZES) if quick else (MAIN, SIZES)
    inputs, dense = (QUICK_INPUTS, QUICK_DENSE_INPUTS) if quick else (INPUTS, DENSE_INPUTS)
    target, config = "benchmarks.peers.tf_fan_in:baseline", {"labels": 64, "inputs": 8, "lr": 1e-5}
    cases = [Case(*BASELINE, target, config, needs=("tensorflow",), **options)]
    for what, libraries in OURS.items():
        cases += [_ours(main_size, what, library, sizes[main_size], inputs, options) for library in libraries]
        for library, (worker, package) in PEERS[what].items():
            config = {"labels": sizes[main_size], "inputs": dense if library == DENSE else inputs}
            config |= {"fan_in": FAN_IN, "k": 10, "lr": 1e-5}
            target = f"benchmarks.peers.{worker}"
            cases.append(Case(f"{main_size} {what}", library, target, config, needs=(package,), **options))
    for size, labels in sizes.items():
        if size != main_size:
            cases.append(_ours(size, TRAIN, FUSED, labels, inputs, options))
    return cases


def with_data(quick, folder, cases):
    """Return the cases with their batches: inputs as a relu leaves them, and labels of each example."""
    widths, sizes = ({case.config[name] for case in cases} for name in ("inputs", "labels"))
    hidden = {width: _data.save(folder, **{f"hidden_{width}": _hidden(width)}) for width in widths}
    targets = {size: _data.save(folder, **{f"targets_{size}": _targets(size)}) for size in sizes}
    done = []
    for case in cases:
        width, size = case.config["inputs"], case.config["labels"]
        data = {"hidden": hidden[width][f"hidden_{width}"], "targets": targets[size][f"targets_{size}"]}
        done.append(case.but(data=data))
    return done


def _hidden(inputs):
    return np.maximum(np.random.default_rng(1).standard_normal((BATCHES, BATCH, inputs), np.float32), 0)


def _targets(labels):
    return np.random.default_rng(2).integers(0, labels, (BATCHES, BATCH, LABELS_EACH), np.int32)


if __name__ == "__main__":
    sys.exit(
        main(
            "fan_in",
            __doc__.partition(":")[0],
            make_cases,
            with_data,
            REACHES,
            {"/ dense": DENSE},
            BATCH,
            baseline=BASELINE,
            gather_rows=INPUTS,
        )
    )
