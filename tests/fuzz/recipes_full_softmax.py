"""Calls of the ops of full_softmax that they accept."""

import tensorflow as tf

from tests.fuzz.recipes import FLOATS, INTS, RECIPES, _floats, _ids


def _softmax(d):
    tokens, classes, dim, dtype = d.size(0, 40), d.size(1, 700), d.size(0, 40), d.pick(FLOATS)
    use_bias, skip, expects = d.chance(0.6), d.chance(0.4), d.chance(0.5)
    nothing = tf.zeros([0])
    return {
        "hidden": _floats(d, (tokens, dim), d.pick(FLOATS)),
        "targets": _ids(d, (tokens,), classes + 1, d.pick(INTS)) - 1,
        "weights": tf.constant(d.rng.integers(0, 3, tokens), tf.float32) if expects else nothing,
        "table": d.variable(_floats(d, (classes, dim), dtype)),
        "bias": d.variable(_floats(d, (classes,)) if use_bias else nothing),
        "positive": _floats(d, (tokens,)) if expects and skip else nothing,
        "dtype": dtype,
        "use_bias": use_bias,
        "skip_target": skip,
        "weight_gradient": d.chance(0.8),
        "smoothing": d.pick([0.0, 0.1]),
        "per_class": d.pick([0.0, 0.001]),
        "z_loss": d.pick([0.0, 0.01]),
        "scratch_bytes": d.pick([0, 10_000, 2**27]),
    }


def _softmax_grad(d):
    from tests.fuzz.calls import call  # the forward op says what the gradient gets

    arguments = _softmax(d)
    lse, _, _, *expected = call("Largeout>FullSoftmax", arguments)
    tokens = arguments["hidden"].shape[:1]
    arguments.pop("scratch_bytes")
    arguments.pop("dtype")  # that of expected_table
    return {
        **arguments,
        "lse": lse,
        **{name: _floats(d, tokens) for name in ("grad_lse", "grad_ce", "grad_sum")},
        **dict(zip(("expected_hidden", "expected_table", "expected_bias"), expected)),
    }


RECIPES.update(FullSoftmax=_softmax, FullSoftmaxGrad=_softmax_grad)
