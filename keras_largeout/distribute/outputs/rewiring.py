"""Pruning and regrowing the connections of a layer, and keeping the batch whose gradient says where."""

import functools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.outputs.fan_in_losses import FanInLoss
from keras_largeout.ops._gradients import with_gradient
from keras_largeout.ops.fan_in.rewire import (
    fan_in_candidate_gradient,
    fan_in_candidates,
    fan_in_prune_threshold,
    fan_in_rewire,
)
from keras_largeout.ops.labels import LabelLists, on_the_host
from keras_largeout.replicas.collectives import all_gather, all_gather_scalar, all_reduce_sum
from keras_largeout.replicas.devices import plain_variable, replica_index
from keras_largeout.replicas.hosts import ALONE
from keras_largeout.tables.chunks import chunk_ranges
from keras_largeout.tables.shard import outside_tables


class Batch(NamedTuple):
    """A batch whose loss gradient tells where to grow: `hidden` `[n, dim]`, its targets, `upstream` `[n]`."""

    hidden: tf.Tensor
    targets: LabelLists
    upstream: tf.Tensor


class BatchKeeper:
    """Keeps the batch of a training step for a moment, when asked to.

    Args:
        dim: int, width of the hidden vectors.
        dtype: their dtype.
        devices: names of the devices, one per replica of this process.
        hosts: the `Hosts`.
    """

    def __init__(self, dim, dtype, devices=(None,), hosts=ALONE):
        self._kept, self._hosts = [], hosts
        for device in devices:
            with tf.init_scope(), tf.device(device):
                kept = {"hidden": _empty([dim], dtype), "upstream": _empty([], tf.float32)}
                with on_the_host():
                    kept["wanted"] = plain_variable(False, trainable=False)
                    kept["labels"], kept["lengths"] = _empty([], tf.int64), _empty([], tf.int64)
                    kept["weights"] = _empty([], tf.float32)
                self._kept.append(kept)

    def want(self, wanted):
        """Set whether each backward pass leaves its batch here."""
        for kept in self._kept:
            kept["wanted"].assign(wanted)

    def keeping(self, losses, hidden, targets):
        """Return `losses`; a gradient of them keeps the batch if that is wanted."""
        kept = self._kept[replica_index() if len(self._kept) > 1 else 0]
        values = {"hidden": hidden, "labels": targets.labels, "weights": targets.weights}
        with on_the_host():
            values["lengths"] = targets.row_splits[1:] - targets.row_splits[:-1]
            if targets.weights is None:
                values["weights"] = tf.ones_like(targets.labels, tf.float32)

        def gradient(upstream):
            tf.cond(
                kept["wanted"],
                lambda: _assign(kept, {**values, "upstream": upstream}),
                lambda: False,
            )
            return [upstream]

        return with_gradient(gradient, losses, [losses])

    def batch(self):
        """Return the `Batch` that was kept last, of all replicas, or None."""
        parts = {key: [kept[key].numpy() for kept in self._kept] for key in self._kept[0] if key != "wanted"}
        whole = {key: tf.constant(np.concatenate(arrays)) for key, arrays in parts.items()}
        # In this order on all hosts.
        whole = {key: all_gather(self._hosts, whole[key])[0] for key in sorted(whole)}
        if not len(whole["lengths"]):
            return None
        splits = tf.concat([[0], tf.cumsum(whole["lengths"])], axis=0)
        targets = LabelLists(whole["labels"], splits, whole["weights"])
        return Batch(whole["hidden"], targets, whole["upstream"])

    def clear(self):
        """Gives the memory back."""
        for kept in self._kept:
            _assign(
                kept,
                {key: tf.zeros([0, *v.shape[1:]], v.dtype) for key, v in kept.items() if key != "wanted"},
            )


def _empty(row, dtype):
    return plain_variable(tf.zeros([0, *row], dtype), shape=[None, *row], trainable=False)


def _assign(variables, values):
    for key, value in values.items():
        variables[key].assign(tf.cast(value, variables[key].dtype))
    return True


def rewire(weights, seed, fraction, per_class=True, slots=None, batch=None, candidates=0, loss=None):
    """Prunes the weakest connections and regrows as many, in place.

    Args:
        weights: `FanInWeights`.
        seed: `(seed, step)`.
        fraction: float in [0, 1], of the connections that are pruned.
        per_class: bool: the weakest of every class, or of all classes together.
        slots: None, or for each part a list of variables of its kernel's shape and any float dtype, which are
            set to zero where a connection is regrown.
        batch: None: grow at random; a `Batch`: where its gradient is largest.
        candidates: int, how many inputs are looked at for each class when growing by gradient.
        loss: str, as in `fan_in_loss`; needed with `batch`.

    Returns:
        int, how many connections changed.
    """
    parts, hosts = weights.parts(), weights.kernel.hosts
    slots = slots or [()] * len(parts)
    forward = [None] * len(parts)
    if batch is not None:
        _, forward = FanInLoss(weights, loss).forward([batch.hidden] * len(parts), batch.targets)
    pruning = {"fraction": fraction}
    if not per_class:
        kernels, firsts = [part.kernel for part in parts], [part.first_class for part in parts]
        all_of_them = {
            "connections": math.prod(weights.kernel.shape),
            "summed": functools.partial(all_reduce_sum, hosts),
        }
        threshold = fan_in_prune_threshold(kernels, fraction, seed, first_class=firsts, **all_of_them)
        pruning = {"threshold": threshold}
    changed = 0
    for part, moments, found in zip(parts, slots, forward):
        place = (part.kernel, part.connections, weights.num_inputs, seed)
        ours = [slot for slot in moments if slot.dtype == tf.float32]
        options = {"slots": ours, "first_class": part.first_class, **pruning}
        with part.on_its_device():
            for rows in _growth(weights, part, seed, batch, found, candidates, loss):
                changed += int(fan_in_rewire(*place, **options, **rows))
            for slot in moments:
                if slot.dtype != tf.float32:  # Keras's own, of bfloat16 weights
                    slot.assign(tf.where(part.kernel == 0, tf.zeros([], slot.dtype), slot))
    return int(all_gather_scalar(hosts, changed).sum())


def _growth(weights, part, seed, batch, forward, candidates, loss):
    """Yields arguments of `fan_in_rewire`: which rows, and where to grow. Uses what is there before each."""
    candidates = min(candidates, weights.num_inputs - weights.fan_in)
    if batch is None or not candidates:
        yield {}
        return
    first = {"first_class": part.first_class}
    # Candidates and their scores take memory of their own: some classes at a time.
    for start, stop in chunk_ranges((part.kernel.shape[0], candidates), itemsize=8):
        rows = {"first_row": start, "num_rows": stop - start}
        places = fan_in_candidates(part.connections, weights.num_inputs, seed, candidates, **first, **rows)
        scores = fan_in_candidate_gradient(
            batch.hidden,
            batch.targets.labels,
            batch.targets.row_splits,
            part.kernel,
            part.connections,
            places,
            bias=part.bias,
            label_weights=batch.targets.weights,
            loss=loss,
            grad_loss=batch.upstream,
            forward=forward,
            first_row=start,
            num_classes=weights.kernel.shape[0],
            **first,
        )
        yield {**rows, "candidates": places, "scores": scores}


def slots_of(optimizer, variable):
    """Return the variables of the shape of `variable` that an optimizer keeps for it: moments, and the like.

    Args:
        optimizer: any Keras optimizer.
        variable: a part of a table.
    """
    slots = variable.slots()  # of this package's optimizers
    prefix = variable.path.replace("/", "_") + "_"  # the names that Keras gives
    slots += [slot for slot in outside_tables(optimizer.variables) if slot.name.startswith(prefix)]
    return [slot.value for slot in slots if tuple(slot.shape) == tuple(variable.shape)]
