"""Training steps under TensorFlow on a GPU: `python -m benchmarks.gpu.tensorflow_steps`.

For each model: the milliseconds of a step, how long the GPU is busy in it, and each call in which the host
waits for the GPU. Keras's own layers stand beside ours. Without a GPU it runs, and its figures mean nothing.
"""

import argparse
import collections
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl
from examples._profile.recording import OP, events

# Calls of CUDA in which the host waits, or may: a copy to the host does unless that memory is pinned.
_WAITS = re.compile(r"Synchronize|DtoH|MemcpyD2H|EventQuery|MemFree")
_BATCHES = 10
_STEPS = 40  # of a round
_RECORDED = 20


def main(argv=None):
    """Returns the exit status: 1 if a model failed."""
    options = _options(argv)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
        print(tf.config.experimental.get_device_details(gpu))
    failed = 0
    for name, make in MODELS.items():
        if not options.only or any(pattern in name for pattern in options.only):
            try:
                lines = _measured(name, make(options.quick), options)
            except Exception as error:
                lines, failed = [f"{type(error).__name__}: {error}"], 1
            print(name, *("    " + line for line in lines), sep="\n", flush=True)
            keras.backend.clear_session()
    return failed


def _options(argv):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.tensorflow_steps", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="models whose name has PATTERN")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", metavar="FOLDER", help="also keep the profiler's files")
    return parser.parse_args(argv)


def _bags(keras_layer):
    """Add the steps of 8192 bags of 8 out of 10 million rows, and a regression on them."""

    def make(quick):
        rows, batch, dim = (2_000, 64, 16) if quick else (10_000_000, 8192, 128)
        ids = keras.Input((8,), dtype="int32")
        if keras_layer:
            x = keras.ops.mean(keras.layers.Embedding(rows, dim)(ids), axis=1)
            optimizer = keras.optimizers.SGD(0.1)
        else:
            x = kl.layers.ShardedEmbedding(rows, dim, combiner="mean")(ids)
            optimizer = kl.optimizers.SGD(0.1)
        model = keras.Model(ids, keras.layers.Dense(1)(x))
        model.compile(optimizer, loss="mse")
        rng = np.random.default_rng(0)
        x = rng.zipf(1.2, (_BATCHES * batch, 8)) % rows
        return model, x.astype("int32"), rng.normal(size=_BATCHES * batch).astype("float32"), batch

    return make


def _text(words, head, dtype="float32"):
    """Add the steps of 256 x 20 words: an embedding, a GRU, and a head over all words."""

    def make(quick):
        vocabulary, units, batch = (1_000, 16, 8) if quick else (words, 256, 256)
        tokens = keras.Input((20,), dtype="int32")
        x = kl.layers.ShardedEmbedding(vocabulary, units)(tokens)
        x = keras.layers.GRU(units, return_sequences=True)(x)
        layer, loss = head(vocabulary, dtype)
        model = kl.Model(tokens, layer(x))
        model.compile(kl.optimizers.LazyAdam(1e-3), loss=loss or layer.loss)
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


def _labels(quick):
    """Add the steps of 670 thousand classes of 32 connections each to 1024 units."""
    classes, units, batch = (1_000, 64, 8) if quick else (670_091, 1024, 256)
    rng = np.random.default_rng(0)
    x = keras.Input((units,))
    head = kl.layers.SparseOutput(classes, fan_in=32)
    model = kl.Model(x, head(keras.layers.Dense(units, "relu")(x)))
    model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    y = rng.integers(0, classes, (_BATCHES * batch, 1))
    return model, rng.normal(size=(_BATCHES * batch, units)).astype("float32"), y, batch


MODELS = {
    "10M rows, ShardedEmbedding": _bags(False),
    "10M rows, Keras Embedding": _bags(True),
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


def _measured(name, problem, options):
    """Return lines of text about a step."""
    model, x, y, batch = problem
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True).cache().repeat()
    batches = iter(data.prefetch(4))
    model.make_train_function()

    def steps(count):
        for _ in range(count):
            logs = model.train_function(batches)
        tf.nest.map_structure(lambda x: x.numpy(), logs)  # waits

    steps(_BATCHES)
    times = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        steps(_STEPS)
        times.append((time.perf_counter() - begin) / _STEPS)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        steps(_RECORDED)
        tf.profiler.experimental.stop()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        if options.keep:
            target = pathlib.Path(options.keep, re.sub(r"\W+", "_", name) + ".xplane.pb")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        return [f"{1e3 * statistics.median(times):.3f} ms per step", *told(file)]


def told(file):
    """Return lines of text about a recording of `_RECORDED` steps."""
    kernels, waits, ops = (collections.defaultdict(list) for _ in range(3))
    for plane, line, name, event in events(file):
        on_gpu = plane.name.startswith("/device:GPU")
        if on_gpu and line.name.startswith("Stream"):
            kernels[name].append(event.duration_ps)
        elif not on_gpu and _WAITS.search(name):
            waits[name].append(event.duration_ps)
        elif not on_gpu and event.duration_ps and OP.fullmatch(name):
            ops[name.rpartition(":")[2]].append(event.duration_ps)
    busy = 1e-9 * sum(map(sum, kernels.values())) / _RECORDED
    count = sum(map(len, kernels.values())) / _RECORDED
    return [
        f"GPU busy {busy:.3f} ms, {count:.0f} kernels and copies: {_longest(kernels)}",
        f"calls in which the host may wait: {_longest(waits) or 'none'}",
        f"ops on the host: {_longest(ops)}",
    ]


def _longest(groups, most=8):
    """Name, times per step, milliseconds per step; the longest first."""
    found = sorted(groups.items(), key=lambda item: -sum(item[1]))[:most]
    said = [
        f"{name[:60]} {len(times) / _RECORDED:.3g}x {1e-9 * sum(times) / _RECORDED:.3f} ms"
        for name, times in found
    ]
    return "; ".join(said)


if __name__ == "__main__":
    sys.exit(main())
