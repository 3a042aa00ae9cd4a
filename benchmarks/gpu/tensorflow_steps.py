"""Training steps under TensorFlow on a GPU: `python3 -m benchmarks.gpu.tensorflow_steps`.

Prints a line of JSON for each model and number of steps per call: the milliseconds of a step, how long the
GPU is busy in it, and how often the host waits for the GPU. Keras's own layers are measured, too. Without a
GPU it runs, and its figures mean nothing.
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import sys
import tempfile
import time

try:
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_largeout as kl
    from benchmarks.profile.recording import OP, events
except ImportError as error:
    print(error)
    sys.exit(77)

# Calls of CUDA in which the host waits, or may: a copy to the host does unless that memory is pinned.
_WAITS = re.compile(r"Synchronize|DtoH|MemcpyD2H|EventQuery|MemFree")
_BATCHES = 10
_STEPS = 64  # of a round
_RECORDED = 32


def main(argv=None):
    """Returns the exit status: 1 if a model failed, 77 without TensorFlow."""
    options = _options(argv)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
        print(tf.config.experimental.get_device_details(gpu))
    failed = 0
    for name, make in MODELS.items():
        if any(pattern in name for pattern in options.only):
            for per_call in options.steps_per_execution:
                try:
                    _measure(name, make(options.quick, per_call), per_call, options)
                except Exception as error:
                    print(f"{name}, {per_call} steps per call: {type(error).__name__}: {error}", flush=True)
                    failed = 1
                keras.backend.clear_session()
    return failed


def _options(argv):
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu.tensorflow_steps", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PATTERN", help="part of a model's name")
    parser.add_argument("--steps-per-execution", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", metavar="FOLDER", help="also keep the profiler's files")
    return parser.parse_args(argv)


def _bags(keras_layer, jit_compile="auto"):
    """Add the steps of 8192 bags of 8 out of 10 million rows, and a regression on them."""

    def make(quick, per_call):
        rows, batch, dim = (2_000, 64, 16) if quick else (10_000_000, 8192, 128)
        ids = keras.Input((8,), dtype="int32")
        if keras_layer:
            x = keras.ops.mean(keras.layers.Embedding(rows, dim)(ids), axis=1)
            optimizer, kind = keras.optimizers.SGD(0.1), keras.Model
        else:
            x = kl.layers.ShardedEmbedding(rows, dim, combiner="mean")(ids)
            optimizer, kind = kl.optimizers.SGD(0.1), kl.Model
        model = kind(ids, keras.layers.Dense(1)(x))
        model.compile(optimizer, loss="mse", jit_compile=jit_compile, steps_per_execution=per_call)
        rng = np.random.default_rng(0)
        x = rng.zipf(1.2, (_BATCHES * batch, 8)) % rows
        return model, x.astype("int32"), rng.normal(size=_BATCHES * batch).astype("float32"), batch

    return make


def _text(words, head, dtype="float32"):
    """Add the steps of 256 x 20 words: an embedding, a GRU, and a head over all words."""

    def make(quick, per_call):
        vocabulary, units, batch = (1_000, 16, 8) if quick else (words, 256, 256)
        tokens = keras.Input((20,), dtype="int32")
        x = kl.layers.ShardedEmbedding(vocabulary, units)(tokens)
        x = keras.layers.GRU(units, return_sequences=True)(x)
        layer, loss = head(vocabulary, dtype)
        model = kl.Model(tokens, layer(x))
        model.compile(kl.optimizers.LazyAdam(1e-3), loss=loss or layer.loss, steps_per_execution=per_call)
        text = np.random.default_rng(0).zipf(1.2, (_BATCHES * batch, 21)) % vocabulary
        return model, text[:, :-1].astype("int32"), text[:, 1:].astype("int32"), batch

    return make


def _tree(words, dtype):
    return kl.layers.HierarchicalSoftmax(words, counts=1e9 / (1.0 + np.arange(words)), dtype=dtype), None


def _fused_tree(words, dtype):
    counts = 1e9 / (1.0 + np.arange(words))
    optimizer = kl.optimizers.LazyAdam(1e-3)
    return kl.layers.HierarchicalSoftmax(words, counts=counts, optimizer=optimizer, dtype=dtype), None


def _full(words, dtype):
    return kl.layers.FullSoftmax(words, dtype=dtype), None


def _dense(words, dtype):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.layers.Dense(words, dtype=dtype), loss


def _labels(quick, per_call):
    """Add the steps of 670 thousand classes of 32 connections each to 1024 units."""
    classes, units, batch = (1_000, 64, 8) if quick else (670_091, 1024, 256)
    rng = np.random.default_rng(0)
    x = keras.Input((units,))
    head = kl.layers.SparseOutput(classes, fan_in=32)
    model = kl.Model(x, head(keras.layers.Dense(units, "relu")(x)))
    model.compile(kl.optimizers.SGD(0.1), loss=head.loss, steps_per_execution=per_call)
    y = rng.integers(0, classes, (_BATCHES * batch, 1))
    return model, rng.normal(size=(_BATCHES * batch, units)).astype("float32"), y, batch


MODELS = {
    "10M rows, ShardedEmbedding": _bags(False),
    "10M rows, Keras Embedding": _bags(True, jit_compile=False),
    "10M rows, Keras Embedding by XLA": _bags(True),
    "1M words, HierarchicalSoftmax": _text(1_000_000, _tree),
    "1M words, HierarchicalSoftmax with its own optimizer": _text(1_000_000, _fused_tree),
    "100K words, HierarchicalSoftmax": _text(100_000, _tree),
    "100K words, FullSoftmax": _text(100_000, _full),
    "100K words, FullSoftmax in bfloat16": _text(100_000, _full, "bfloat16"),
    "100K words, Keras Dense": _text(100_000, _dense),
    "100K words, Keras Dense in mixed_bfloat16": _text(100_000, _dense, "mixed_bfloat16"),
    "1M words, Keras Dense": _text(1_000_000, _dense),
    "670K labels, SparseOutput": _labels,
}


def _measure(name, problem, per_call, options):
    """Print what a step takes, and the longest kernels, waits and ops of it."""
    model, x, y, batch = problem
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True).cache().repeat()
    batches = iter(data.prefetch(4))
    model.make_train_function()

    def steps(count):
        for _ in range(max(1, count // per_call)):
            logs = model.train_function(batches)
        tf.nest.map_structure(lambda x: x.numpy(), logs)  # waits
        return max(1, count // per_call) * per_call

    steps(_BATCHES)
    times = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        done = steps(_STEPS)
        times.append(1e3 * (time.perf_counter() - begin) / done)
    times.sort()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        done = steps(_RECORDED)
        tf.profiler.experimental.stop()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        if options.keep:
            target = pathlib.Path(options.keep, re.sub(r"\W+", "_", f"{name} {per_call}") + ".xplane.pb")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        note, *longest = told(file, done)
    row = {"bench": "tensorflow", "case": name, "part": f"step, {per_call} per call"}
    row |= {"ms": times[len(times) // 2], "low": times[0], "high": times[-1], "note": note}
    print(*longest, json.dumps(row), sep="\n", flush=True)


def told(file, steps):
    """Return lines of text about a recording of so many steps: a summary, kernels, waits and ops."""
    kernels, waits, ops = (collections.defaultdict(list) for _ in range(3))
    for plane, line, name, event in events(file):
        on_gpu = plane.name.startswith("/device:GPU")
        if on_gpu and line.name.startswith("Stream"):
            kernels[name].append(event.duration_ps)
        elif not on_gpu and _WAITS.search(name):
            waits[name].append(event.duration_ps)
        elif not on_gpu and event.duration_ps and OP.fullmatch(name):
            ops[name.rpartition(":")[2]].append(event.duration_ps)
    counts = [sum(map(len, group.values())) / steps for group in (kernels, waits)]
    busy = 1e-9 * sum(map(sum, kernels.values())) / steps
    return [
        f"GPU busy {busy:.3f} ms, {counts[0]:.0f} kernels and copies, {counts[1]:.3g} waits of the host",
        f"kernels and copies: {_longest(kernels, steps)}",
        f"calls in which the host may wait: {_longest(waits, steps)}",
        f"ops on the host: {_longest(ops, steps)}",
    ]


def _longest(groups, steps, most=8):
    """Return names, times per step and milliseconds per step; the longest first."""
    found = sorted(groups.items(), key=lambda item: -sum(item[1]))[:most]
    said = [f"{name[:60]} {len(t) / steps:.3g}x {1e-9 * sum(t) / steps:.3f} ms" for name, t in found]
    return "; ".join(said) or "none"


if __name__ == "__main__":
    sys.exit(main())
