"""A softmax over all classes for tests: one problem, its numbers and their float64 truth."""

import ml_dtypes
import numpy as np
import tensorflow as tf
from ops._products import in_bfloat16

from keras_largeout.ops.full_softmax import wrapper as fs

BFLOAT16 = ml_dtypes.bfloat16
TERMS = ("lse", "ce", "sum")


class Problem:
    """Random hidden vectors, targets (some of them none), a table and the gradients of the three terms."""

    def __init__(self, rng, classes, dim, tokens, dtype=np.float32, hidden_dtype=np.float32, bias=True):
        self.hidden = rng.normal(size=(tokens, dim)).astype(hidden_dtype)
        self.table = (rng.normal(size=(classes, dim)) / np.sqrt(max(dim, 1))).astype(dtype)
        self.bias = rng.normal(size=classes).astype(np.float32) if bias else None
        self.targets = rng.integers(0, classes, tokens)
        self.targets[1::5] = -1
        self.upstream = rng.normal(size=(3, tokens)).astype(np.float32)

    def arguments(self, targets_dtype=np.int32, make=tf.Variable):
        """`(hidden, targets, table, bias)` as the op takes them."""
        bias = None if self.bias is None else make(self.bias)
        return tf.constant(self.hidden), self.targets.astype(targets_dtype), make(self.table), bias

    def run(self, graph=False, targets_dtype=np.int32, make=tf.Variable, upstream=None, **options):
        """The terms, `[3, tokens]`, and the gradients by name."""
        hidden, targets, table, bias = self.arguments(targets_dtype, make)
        sources = [hidden, table] if bias is None else [hidden, table, bias]
        upstream = self.upstream if upstream is None else upstream

        def step():
            with tf.GradientTape() as tape:
                tape.watch([x for x in sources if not isinstance(x, tf.Variable)])
                terms = fs.full_softmax_terms(hidden, targets, table, bias, **options)
                total = tf.reduce_sum(tf.stack(terms) * upstream)
            return tf.stack(terms), tape.gradient(total, sources)

        terms, gradients = (tf.function(step) if graph else step)()
        gradients = dict(zip(("hidden", "table", "bias"), gradients))
        return terms.numpy(), {k: None if g is None else g.numpy() for k, g in gradients.items()}

    def truth(self, skip_target=False, upstream=None):
        """The same in float64."""
        upstream = self.upstream if upstream is None else upstream
        terms, gradients = fs.full_softmax_reference(
            self.hidden, self.targets, self.table, self.bias, skip_target, upstream
        )
        return np.stack(terms), gradients

    def check(self, device="cpu", skip_target=False, upstream=None, **options):
        terms, gradients = self.run(skip_target=skip_target, upstream=upstream, **options)
        want_terms, want = self.truth(skip_target, upstream)
        # On GPUs those of the kernel's own test: tensor cores take bfloat16 tables.
        tolerance = 3e-6 if device == "cpu" else 5e-5 if self.table.dtype == BFLOAT16 else 5e-6
        of_gradients = 30 * tolerance
        if in_bfloat16(self.hidden, device):
            of_gradients = 5e-3
            if device == "cpu" or self.table.dtype != BFLOAT16:  # on a GPU factors of bfloat16 are exact
                tolerance = 1e-2
        scale = 1 + np.abs(want_terms[2]).max(initial=0) / 10  # of a sum of so many logits
        for name, got, wanted in zip(TERMS, terms, want_terms):
            atol = tolerance * (scale if name == "sum" else 1)
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=atol, err_msg=name)
        for name, got in gradients.items():
            rough = {BFLOAT16: 8e-3, np.float16: 1e-3}.get(got.dtype.type, tolerance)
            atol = of_gradients * (1 + np.abs(want[name]).max(initial=0))
            wanted = want[name]
            np.testing.assert_allclose(
                got.astype(np.float64), wanted, rtol=rough, atol=atol, err_msg=f"gradient of {name}"
            )


def expected_of(weights, smoothing=0.0, z_loss=0.0, classes=1, positive=None):
    """An `Expected` of NumPy arrays."""
    positive = None if positive is None else tf.constant(positive, tf.float32)
    return fs.Expected(tf.constant(weights, tf.float32), positive, smoothing, z_loss, classes)


def upstream_of(expected, lse, factor=1.0):
    """What the loss that was expected asks for, times a factor: `[3, tokens]`."""
    weights = expected.weights.numpy().astype(np.float64) * factor
    if expected.positive is not None:
        of_lse = weights / (1 + np.exp(expected.positive.numpy().astype(np.float64) - lse))
        return np.stack([of_lse, 0 * of_lse, 0 * of_lse]).astype(np.float32)
    s = expected.smoothing
    of_lse = weights * (s + 2 * expected.z_loss * lse)
    return np.stack([of_lse, weights * (1 - s), -weights * s / expected.num_classes]).astype(np.float32)
