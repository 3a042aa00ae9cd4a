"""Steps per second of the neural model by the memory of its tables, beside Keras's and PyTorch's layers."""

import gc
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from _filtering import models
from _report import stage

import keras_largeout as kl

try:
    from _filtering import torch_peer
except ImportError as error:
    torch_peer, no_torch = None, error

KERAS, TORCH = "Keras Embedding, Adam", "PyTorch Embedding(sparse), SparseAdam"
JOINED = "ours, host, joined there and then moved"
OURS = {storage: f"ours, {storage}, LazyAdam" for storage in models.STORAGES}


def print_table(args, strategy, folder):
    """Measures all, one after the other, and says what it means."""
    few, narrow = max(10, args.rows // 10), max(1, args.dim // 4)
    sizes = [(few, narrow), (args.rows, narrow), (args.rows, 4 * narrow)]
    cases = {KERAS: _keras, TORCH: _torch, **dict.fromkeys(OURS.values(), _ours), JOINED: _joined}
    speeds = {name: [] for name in cases}
    pairs = args.batch * (1 + args.negatives)
    with stage(f"Steps per second: {pairs:,} pairs in a step, the median of {args.rounds} rounds"):
        for rows, dim in sizes:
            batches = draw(rows, pairs, 4 * args.ahead, args.seed)
            for name, steps in cases.items():
                seen = Rounds(args.rounds, 0.1 if args.quick else 1.0)
                storage = next((storage for storage, ours in OURS.items() if ours == name), None)
                with strategy.scope():
                    steps(args, (rows, dim), batches, seen, storage, folder / f"{rows}x{dim}")
                speeds[name].append(seen.median)
                gc.collect()
        _print(speeds, sizes)
    _answer(speeds, args)


def draw(rows, pairs, batches, seed):
    """Return int32 `[2, batches, pairs]`: users and items, some of them far more often than others."""
    return (rows * np.random.default_rng(seed).random((2, batches, pairs)) ** 3).astype(np.int32)


class Rounds(keras.callbacks.Callback):
    """Times the steps of a training and ends it after some rounds; the first steps do not count.

    Args:
        rounds: int; seconds: float, a round takes as long at least.

    Attributes:
        least: int, a round has so many steps at least; there are as many before the first one, and 3.
        speeds: list of float, steps per second of each round.
    """

    def __init__(self, rounds, seconds):
        super().__init__()
        self.rounds, self.seconds, self.least, self.speeds = rounds, seconds, 1, []
        self._steps, self._begun = 0, None

    @property
    def median(self):
        """Of the speeds; None where nothing was measured."""
        return statistics.median(self.speeds) if self.speeds else None

    def step(self):
        """Count a step, and return whether it was the last one."""
        now = time.perf_counter()
        self._steps += 1
        if self._begun is None:
            begins = self._steps >= max(3, self.least)
        else:
            begins = self._steps >= self.least and now - self._begun >= self.seconds
            if begins:
                self.speeds.append(self._steps / (now - self._begun))
        if begins:
            self._steps, self._begun = 0, time.perf_counter()
        return len(self.speeds) >= self.rounds

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = self.step()


def _fit(args, model, optimizer, batches, seen):
    models.compiled(model, optimizer)
    label = np.zeros([batches.shape[2], 1], np.float32)
    label[: args.batch] = 1
    data = tf.data.Dataset.from_tensor_slices(dict(zip(("user", "item"), batches)))
    data = data.map(lambda ids: (ids, tf.constant(label))).repeat().prefetch(4)
    data = kl.distribute.prefetch_rows(data, model, args.ahead)
    model.fit(data, steps_per_epoch=10**9, callbacks=[seen], shuffle=False, verbose=0)


def _keras(args, shape, batches, seen, storage, folder):
    rows, dim = shape
    model = models.build("neural", (rows, rows), dim, None)
    _fit(args, model, keras.optimizers.Adam(2e-3), batches, seen)


def _ours(args, shape, batches, seen, storage, folder):
    rows, dim = shape
    where = models.place(storage, folder, min(rows, 2 * args.ahead * batches.shape[2]))
    model = models.build("neural", (rows, rows), dim, (where, where))
    if storage == "cached":
        seen.least = args.ahead  # a whole chunk of batches
    _fit(args, model, models.optimizer("lazy_adam"), batches, seen)


def _joined(args, shape, batches, seen, storage, folder):
    rows, dim = shape
    ids = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item")}
    x = JoinFirst([kl.layers.ShardedEmbedding(rows, dim, storage="host") for _ in ids])(list(ids.values()))
    for layer in models.hidden_layers(models.score("neural", dim)):
        x = layer(x)
    _fit(args, kl.Model(ids, x), models.optimizer("lazy_adam"), batches, seen)


class JoinFirst(keras.layers.Layer):
    """The rows of several tables, joined in host memory: what is moved from there is one tensor."""

    def __init__(self, tables):
        super().__init__()
        self.tables = tables

    def call(self, ids):
        with tf.device("CPU:0"):
            return tf.concat([table(some) for table, some in zip(self.tables, ids)], axis=-1)


def _torch(args, shape, batches, seen, storage, folder):
    if torch_peer is not None:
        torch_peer.train(*shape, batches, args.batch, seen.step)


def _print(speeds, sizes):
    heads = [f"{rows:,} x {dim}" for rows, dim in sizes]
    print(f"   {'rows of either table x width':42}" + "".join(f"{head:>16}" for head in heads))
    for name, row in speeds.items():
        said = "".join(f"{'not installed' if speed is None else f'{speed:.1f}':>16}" for speed in row)
        print(f"   {name:42}{said}")
    if torch_peer is None:
        print(f"   PyTorch was left out: {no_torch}")
    if not tf.config.list_logical_devices("GPU"):
        print(
            "   There is no GPU here: device and host are the same memory, and a cache has nothing to bring."
        )


def _answer(speeds, args):
    keras_few, keras_all, _ = speeds[KERAS]
    few, all_rows, wide = speeds[OURS["device"]]
    host, cached, joined = (speeds[name][1] for name in (OURS["host"], OURS["cached"], JOINED))
    after = host / joined
    longer = f"{few / all_rows:.1f} and {keras_few / keras_all:.1f} times as long"
    print(
        f"""
Tables in CPU memory? Yes, storage="host": the same losses, {host / all_rows:.2f} times the steps of "device".
Is an update O(batch) or O(matrix)? LazyAdam's is O(batch), that of Keras's Adam O(matrix). For ten times
   the rows a step takes {longer}; rows four times as wide: LazyAdam {all_rows / wide:.1f} times.
Load the rows of {args.ahead} batches together? cache_rows= and kl.distribute.prefetch_rows do that while
   other batches train: {cached / host:.2f} times the steps of "host".
Join the rows of the tables before or after they are moved? After: {after:.2f} times the steps.
Does Adam still work? As LazyAdam or PyTorch's SparseAdam: a row's moments change when a batch has it.
Two optimizers? --two-optimizers shows how. One LazyAdam does the same: for dense layers it is Adam."""
    )
