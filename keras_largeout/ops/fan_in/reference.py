"""The reference of the fan-in ops on NumPy arrays: sums in float64, connections and random numbers
exactly.
"""

import numpy as np

from keras_largeout.ops.fan_in.random import draw, mix32
from keras_largeout.ops.random_bits import random_key, round_stochastically
from keras_largeout.ops.row_update import row_update_reference


def fan_in_logits_reference(inputs, weights, indices, bias=None):
    """Return logits `[B, C]`, float64."""
    inputs, weights = np.asarray(inputs, np.float64), np.asarray(weights).astype(np.float64)
    logits = np.einsum("bck,ck->bc", inputs[:, np.asarray(indices, np.int64)], weights)
    return logits if bias is None else logits + np.asarray(bias, np.float64)


def _targets(labels, row_splits, label_weights, shape, first_class):
    """Return `[B, C]`: whether a class is a label of an example, and the weight of its positive term."""
    positive, weight = np.zeros(shape, bool), np.ones(shape)
    for b in range(shape[0]):
        for at in range(row_splits[b], row_splits[b + 1]):
            c = labels[at] - first_class
            if labels[at] >= 0 and 0 <= c < shape[1] and not positive[b, c]:
                positive[b, c] = True
                weight[b, c] = 1.0 if label_weights is None else label_weights[at]
    return positive, weight


def _terms(loss, z, positive, weight):
    """Return the losses `[B]` and their gradients to the logits `[B, C]`."""
    sign = np.where(positive, 1.0, -1.0)
    weight = np.where(positive, weight, 0.0 if loss == "softmax" else 1.0)
    if loss == "squared_hinge":
        slack = np.maximum(0.0, 1.0 - sign * z)
        return (weight * slack**2).sum(1), -2.0 * weight * sign * slack
    if loss == "binary_crossentropy":
        return (weight * np.logaddexp(0.0, -sign * z)).sum(1), -weight * sign / (1.0 + np.exp(sign * z))
    if loss == "softmax":
        lse = np.logaddexp.reduce(z, axis=1, keepdims=True)
        return (weight * (lse - z)).sum(1), weight.sum(1, keepdims=True) * np.exp(z - lse) - weight
    raise ValueError(f"Unknown loss. Received: loss={loss!r}")


def fan_in_loss_reference(
    inputs,
    labels,
    row_splits,
    weights,
    indices,
    bias=None,
    label_weights=None,
    loss="squared_hinge",
    grad_loss=None,
    first_class=0,
):
    """Return the losses of `fan_in_loss` and their gradients.

    Args:
        grad_loss: The gradient of the losses, `[B]`; `None`: ones. The others as in `fan_in_loss`, as arrays.

    Returns:
        The losses `[B]` and a dict of gradients: `inputs` `[B, I]`, `weights` `[C, K]`, `bias` `[C]` and
        `logits` `[B, C]`, all float64.
    """
    x, w = np.asarray(inputs, np.float64), np.asarray(weights).astype(np.float64)
    indices = np.asarray(indices, np.int64)
    z = fan_in_logits_reference(x, w, indices, bias)
    losses, g = _terms(loss, z, *_targets(labels, row_splits, label_weights, z.shape, first_class))
    if grad_loss is not None:
        g = g * np.asarray(grad_loss, np.float64)[:, None]
    d_inputs = np.zeros_like(x)
    for b in range(len(x)):
        np.add.at(d_inputs[b], indices, g[b][:, None] * w)
    d_weights = np.einsum("bc,bck->ck", g, x[:, indices])
    return losses, {"inputs": d_inputs, "weights": d_weights, "bias": g.sum(0), "logits": g}


def fan_in_candidate_gradient_reference(inputs, d_logits, candidates, first_row=0):
    """Return `[n, M]`: the gradient for connections to `candidates`; `d_logits` `[B, C]` is that of the
    logits.
    """
    rows = slice(first_row, first_row + len(candidates))
    x = np.asarray(inputs, np.float64)
    return np.einsum("bc,bck->ck", np.asarray(d_logits)[:, rows], x[:, np.asarray(candidates, np.int64)])


def fan_in_update_reference(rule, weights, slots, gradient, hyper, seed=(0, 0), first_class=0):
    """Return what the fused step does to weights (or a bias) of the given gradient.

    Args:
        rule: One of `RULES`.
        weights: `[C, K]`, float32 or bfloat16, or a bias `[C]` (give it a `hyper` without decay).
        slots: List of float32 arrays of that shape.
        gradient: float32 array of that shape.
        hyper: As in `FanInUpdate`.
        seed, first_class: Of the stochastic rounding of bfloat16.

    Returns:
        `(weights, slots)` after the step: new arrays.
    """
    weights, gradient = np.asarray(weights), np.asarray(gradient, np.float32)
    rows = np.arange(len(weights))
    if rule == "lazy_adam":
        rows = np.flatnonzero(gradient.reshape(len(weights), -1).any(1))
    row_rule = "lazy_adam" if rule == "adam" else rule
    out, slots = row_update_reference(
        row_rule, weights.astype(np.float32), slots, rows, gradient[rows], np.asarray(hyper)
    )
    if weights.dtype == np.float32:
        return out, slots
    return _rounded(out, seed, first_class), slots


def _rounded(values, seed, first_class=0):
    """Return float32 `[C, K]` rounded stochastically to bfloat16, by the op's random numbers."""
    element = np.arange(values.size, dtype=np.uint64) + np.uint64(first_class * values.shape[1])
    return round_stochastically(values, mix32(element, random_key(seed)).reshape(values.shape))


def fan_in_top_k_reference(inputs, weights, indices, bias, k):
    """Return the `k` largest logits of every example: `scores` and `ids`, `[B, k]`; ties by the smaller
    id.
    """
    logits = fan_in_logits_reference(inputs, weights, indices, bias)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(logits, ids, 1), ids


def fan_in_connections_reference(num_rows, fan_in, num_inputs, seed, first_class=0):
    """Return int64 `[num_rows, fan_in]`: what `fan_in_connections` draws."""
    key = random_key(seed)
    rows = [draw(key, first_class + r, num_inputs, [], fan_in) for r in range(num_rows)]
    return np.array(rows, np.int64).reshape(num_rows, fan_in)


def fan_in_candidates_reference(indices, num_inputs, seed, count, first_class=0):
    """Return int64 `[C, count]`: what `fan_in_candidates` draws."""
    key = random_key(seed)
    rows = [draw(key, first_class + r, num_inputs, row, count) for r, row in enumerate(np.asarray(indices))]
    return np.array(rows, np.int64).reshape(len(indices), count)


def _prune_keys(weights, seed, first_class):
    """Return the order in which connections are pruned: |weight|, then a random number. uint64 `[C, K]`."""
    bits = np.abs(np.asarray(weights).astype(np.float32)).view(np.uint32).astype(np.uint64)
    element = np.arange(bits.size, dtype=np.uint64) + np.uint64(first_class * bits.shape[1])
    return (bits << np.uint64(32)) | mix32(element, random_key(seed)).reshape(bits.shape).astype(np.uint64)


def fan_in_prune_threshold_reference(weights, fraction, seed, first_class=0):
    """Return the key of the last connection to prune; -1 where there is none."""
    keys = np.sort(_prune_keys(weights, seed, first_class), axis=None)
    count = int(fraction * keys.size + 0.5)
    return int(keys[count - 1]) if count else -1


def fan_in_rewire_reference(
    weights,
    indices,
    num_inputs,
    seed,
    slots=(),
    fraction=None,
    threshold=None,
    candidates=None,
    scores=None,
    first_class=0,
):
    """Return what `fan_in_rewire` does, out of place: new `(weights, indices, slots, number of changes)`."""
    weights, indices, slots = np.array(weights), np.array(indices), [np.array(s) for s in slots]
    keys, random, changes = _prune_keys(weights, seed, first_class), random_key(seed), 0
    for row in range(len(weights)):
        order = np.argsort(keys[row])
        if threshold is None:
            pruned = order[: int(fraction * weights.shape[1] + 0.5)]
        else:
            pruned = np.flatnonzero(keys[row].astype(np.int64) <= threshold)
        pruned = np.sort(pruned)
        old, new = indices[row].tolist(), []
        if candidates is not None:
            for at in np.argsort(-np.abs(scores[row]), kind="stable"):
                candidate = int(candidates[row][at])
                if len(new) < len(pruned) and candidate not in old and candidate not in new:
                    new.append(candidate)
        missing = len(pruned) - len(new)
        if num_inputs - len(old) - len(new) >= missing:
            taken = old + new
        else:
            taken = [i for k, i in enumerate(old) if k not in pruned] + new
        new += draw(random, first_class + row, num_inputs, taken, missing)
        indices[row, pruned] = new
        weights[row, pruned] = 0
        for slot in slots:
            slot[row, pruned] = 0
        changes += len(pruned)
    return weights, indices, slots, changes
