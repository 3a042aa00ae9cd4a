"""Calls that the ops of fan_in accept."""

import numpy as np
import tensorflow as tf

from tests.fuzz.recipes import FLOATS, INTS, RECIPES, _floats, _ids, _splits

_RULES = {"none": (0, 0), "sgd": (0, 2), "adagrad": (1, 3), "adam": (2, 5), "lazy_adam": (2, 5)}
_LOSSES = ("squared_hinge", "binary_crossentropy", "softmax")


class _Layer:
    def __init__(self, d):
        self.inputs = d.size(1, 60)
        self.classes, self.fan_in = d.size(0, 150), d.size(0, self.inputs)
        self.dtype, self.index_dtype = d.pick(FLOATS), d.pick([tf.uint16, tf.uint32])
        self.batch, self.use_bias = d.size(0, 40), d.chance(0.6)
        shape = (self.classes, self.fan_in)
        order = d.rng.permuted(np.tile(np.arange(self.inputs), (self.classes, 1)), axis=1)
        indices = order[:, : self.fan_in].reshape(shape).astype(self.index_dtype.as_numpy_dtype)
        if indices.size and d.chance(0.05):
            indices[tuple(d.rng.integers(0, shape))] = d.pick([self.inputs, 60000])
        self.weights = d.variable(_floats(d, shape, self.dtype))
        self.indices = d.variable(tf.constant(indices))
        self.bias = d.variable(_floats(d, (self.classes,)))
        self.x = _floats(d, (self.batch, self.inputs), d.pick(FLOATS))
        self.seed = tf.constant([d.size(), d.size()], tf.int64)

    @property
    def operands(self):
        return {"weights": self.weights, "indices": self.indices, "bias": self.bias}

    @property
    def attributes(self):
        return {"dtype": self.dtype, "Tindices": self.index_dtype, "use_bias": self.use_bias}

    def slots(self, d, rule):
        n = _RULES[rule][0]
        shapes = [(self.classes, self.fan_in)] * n + [(self.classes,)] * (n if self.use_bias else 0)
        return [d.variable(tf.ones(shape)) for shape in shapes]

    def update(self, d, rule):
        hyper = tf.constant([0.1] * _RULES[rule][1], tf.float32)
        return {"slots": self.slots(d, rule), "hyper": hyper, "seed": self.seed, "rule": rule}

    def labels(self, d):
        n, first = d.size(0, 90), d.size(0, 5)
        return {
            "inputs": self.x,
            "labels": _ids(d, (n,), self.classes + first, d.pick(INTS)),
            "row_splits": _splits(d, n, self.batch) if self.batch else tf.zeros([1], tf.int64),
            "label_weights": _floats(d, (n,)) if d.chance(0.4) else tf.zeros([0]),
            "classes": tf.constant([first, first + max(1, self.classes)], tf.int64),
        }

    def saved(self, d, loss):
        """What the loss op would leave behind; `active` says that any class may have a gradient."""
        blocks = -(-self.batch // (16 if self.batch <= 16 else 32))
        of_softmax = (self.batch if loss == "softmax" else 0,)
        active = blocks * ((self.classes + 7) // 8) if loss == "squared_hinge" else 0
        return {
            "grad_loss": _floats(d, (self.batch,)),
            "lse": _floats(d, of_softmax),
            "mass": _floats(d, of_softmax),
            "active": tf.constant(d.rng.integers(0, 256, active), tf.uint8),
            "loss": loss,
        }


def _plain(d, **more):
    layer = _Layer(d)
    return layer, {"inputs": layer.x, **layer.operands, **layer.attributes, **more}


def _logits(d):
    return _plain(d)[1]


def _logits_grad(d):
    layer, arguments = _plain(d, input_gradient=d.chance(0.7))
    return {**arguments, "d_logits": _floats(d, (layer.batch, layer.classes))}


def _top_k(d):
    layer, arguments = _plain(d, out_type=d.pick(INTS))
    return {**arguments, "k": tf.constant(d.size(0, layer.classes), tf.int32)}


def _loss(d):
    layer, rule = _Layer(d), d.pick(sorted(_RULES))
    wanted = {"input_gradient": d.chance(0.7), "weight_gradient": d.chance(0.7)}
    more = {**layer.labels(d), **layer.operands, **layer.attributes, **layer.update(d, rule), **wanted}
    return {**more, "trigger": tf.zeros([0]), "loss": d.pick(_LOSSES)}


def _backward(d, layer):
    saved = layer.saved(d, d.pick(_LOSSES))
    return {**layer.labels(d), **layer.operands, **layer.attributes, **saved}


def _loss_grad(d):
    wanted = {"input_gradient": d.chance(0.7), "weight_gradient": d.chance(0.7)}
    return {**_backward(d, _Layer(d)), **wanted}


def _step(d):
    layer, rule = _Layer(d), d.pick(sorted(_RULES.keys() - {"none"}))
    return {**_backward(d, layer), **layer.update(d, rule), "input_gradient": d.chance(0.7)}


def _some_rows(d, layer):
    first = int(d.rng.integers(0, layer.classes + 1))
    return first, int(d.rng.integers(0, layer.classes - first + 1))


def _candidate_grad(d):
    layer = _Layer(d)
    first, rows = _some_rows(d, layer)
    return {
        **_backward(d, layer),
        "candidates": _ids(d, (rows, d.size(0, 9)), layer.inputs, tf.int32),
        "first_row": tf.constant(first, tf.int64),
    }


def _scalars(**values):
    return {name: tf.constant(value, tf.int64) for name, value in values.items()}


def _connections(d):
    inputs, seed = d.size(1, 200), tf.constant([d.size(), d.size()], tf.int64)
    sizes = {"num_rows": d.size(0, 60), "fan_in": d.size(0, inputs), "num_inputs": inputs}
    return {**_scalars(**sizes, first_class=d.size()), "seed": seed, "dtype": d.pick([tf.uint16, tf.uint32])}


def _candidates(d):
    layer = _Layer(d)
    count = d.size(0, layer.inputs - layer.fan_in)
    return {
        "indices": layer.indices,
        "rows": tf.constant(_some_rows(d, layer), tf.int64),
        **_scalars(num_inputs=layer.inputs, first_class=d.size(), count=count),
        "seed": layer.seed,
        "Tindices": layer.index_dtype,
    }


def _key_counts(d):
    layer = _Layer(d)
    return {
        "weights": layer.weights,
        **_scalars(prefix=d.pick([0, 1, 200]), first_class=d.size()),
        "seed": layer.seed,
        "dtype": layer.dtype,
        "digit": d.size(0, 6),
    }


def _rewire(d):
    layer = _Layer(d)
    first, rows = _some_rows(d, layer)
    candidates = _ids(d, (rows, d.size(0, 9)), layer.inputs, tf.int32)
    threshold = d.pick([0, 2**60, 2**62, -1])
    numbers = {"num_inputs": layer.inputs, "first_class": d.size(), "threshold": threshold}
    return {
        "weights": layer.weights,
        "indices": layer.indices,
        "slots": [d.variable(tf.ones([layer.classes, layer.fan_in])) for _ in range(d.size(0, 2))],
        "rows": tf.constant([first, rows], tf.int64),
        **_scalars(**numbers, count=int(d.rng.integers(-1, layer.fan_in + 1))),
        "seed": layer.seed,
        "candidates": candidates,
        "scores": _floats(d, candidates.shape),
        "dtype": layer.dtype,
        "Tindices": layer.index_dtype,
    }


def _degrees(d):
    layer = _Layer(d)
    return {"indices": layer.indices, **_scalars(num_inputs=layer.inputs), "Tindices": layer.index_dtype}


RECIPES.update(
    FanInLogits=_logits,
    FanInLogitsGrad=_logits_grad,
    FanInTopK=_top_k,
    FanInLoss=_loss,
    FanInLossGrad=_loss_grad,
    FanInStep=_step,
    FanInCandidateGrad=_candidate_grad,
    FanInConnections=_connections,
    FanInCandidates=_candidates,
    FanInKeyCounts=_key_counts,
    FanInRewire=_rewire,
    FanInDegrees=_degrees,
)
