"""Softmax over all classes: what a loss needs of it, with gradients, in chunks."""

from typing import NamedTuple

import tensorflow as tf

from keras_largeout.ops import _gradients
from keras_largeout.ops._library import ops
from keras_largeout.ops._operands import integer_targets, operand, operands
from keras_largeout.ops.full_softmax.reference import full_softmax_reference

__all__ = ["Expected", "SoftmaxTerms", "full_softmax_reference", "full_softmax_terms"]

#: Of the exponentials of a chunk of tokens, which its two passes share.
SCRATCH_BYTES = 192 << 20


class SoftmaxTerms(NamedTuple):
    """Three numbers per token, float32 `[tokens]` each, with logits z over the classes.

    Attributes:
        lse: logsumexp(z).
        ce: lse - z[target], the cross-entropy; 0 where there is no target.
        sum: the sum of z.
    """

    lse: tf.Tensor
    ce: tf.Tensor
    sum: tf.Tensor


class Expected(NamedTuple):
    """The gradients that a loss is going to ask for: those of the mean, or the sum, of its weighted losses.

    The loss of a token is `(1 - smoothing) * ce + smoothing * (lse - sum / num_classes) + z_loss * lse**2`;
    with `skip_target` it is `log(1 + exp(lse - positive))`.

    Attributes:
        weights: float32 `[tokens]`.
        positive: float32 `[tokens]`, the logit of the target, with `skip_target`; else None.
        smoothing, z_loss: floats.
        num_classes: int.
    """

    weights: tf.Tensor
    positive: tf.Tensor = None
    smoothing: float = 0.0
    z_loss: float = 0.0
    num_classes: int = 1


def full_softmax_terms(
    hidden,
    targets,
    table,
    bias=None,
    skip_target=False,
    expected=None,
    weight_gradient=True,
    scratch_bytes=SCRATCH_BYTES,
):
    """Return what a loss needs of a softmax over all rows of a table; nothing has the size `[tokens,
    classes]`.

    The logits are `hidden . table^T + bias`. Table and bias are used by their handles, in place; their
    gradients are dense. The same bits come out for any number of threads.

    The gradient computes the logits again: in all four matrix products of `2 * tokens * classes * dim` flops.
    With `expected` there are three: the op computes the gradients along with the terms, and they are scaled
    once the real ones are known. (Where these are others, everything is computed again, and right.)

    Args:
        hidden: Floating tensor `[tokens, dim]`, float32 or bfloat16 (other types are cast to float32). If
            bfloat16, products are of bfloat16 with float32 sums on GPUs and on processors with AVX512-BF16.
        targets: Integer tensor `[tokens]`, class ids; -1: none.
        table: `tf.Variable` (or `keras.Variable` that holds one) `[classes, dim]`, float32 or bfloat16; or a
            tensor.
        bias: `None`, or a variable (or tensor) `[classes]`, float32.
        skip_target: Whether the class of the target is left out: `lse` is then that of the others, and `ce`
            and `sum` are 0.
        expected: `None`, or an `Expected`. On GPUs nothing comes of it.
        weight_gradient: Whether table and bias get gradients.
        scratch_bytes: Of logits that are kept between terms and gradients.

    Returns:
        `SoftmaxTerms`.

    Raises:
        TypeError: `table` or `bias` is neither variable nor tensor.
        ValueError: A wrong dtype, or shapes that are known to be wrong.
        tf.errors.InvalidArgumentError: A target that is no class, or shapes that turn out to be wrong. A
            graph on a GPU does not wait to learn about targets: such ones are taken for none, and the error
            is that of a later batch.

    References:
        [Wijmans et al., 2025](https://arxiv.org/abs/2411.09009), section 4 (cross-entropy without logits in
        memory); [Hsu et al., 2024](https://arxiv.org/abs/2410.10989), section 3.2 (the gradients of a linear
        layer with cross-entropy, computed in the forward pass).
    """
    hidden, table, bias = operands(hidden, table, bias, tensors=True)
    for variable in (table, bias):
        if isinstance(variable, tf.Variable):
            _gradients.watch(variable)
    nothing = tf.zeros([0])
    expected = expected or Expected(nothing)
    outputs = ops.largeout_full_softmax(
        hidden,
        integer_targets(targets),
        tf.stop_gradient(tf.cast(expected.weights, tf.float32)),
        operand(table),
        operand(table if bias is None else bias),
        nothing if expected.positive is None else tf.stop_gradient(expected.positive),
        dtype=table.dtype,
        use_bias=bias is not None,
        skip_target=skip_target,
        weight_gradient=weight_gradient,
        smoothing=expected.smoothing,
        per_class=expected.smoothing / expected.num_classes,
        z_loss=expected.z_loss,
        scratch_bytes=scratch_bytes,
        late_errors=not tf.executing_eagerly(),
    )
    return SoftmaxTerms(*outputs[:3])


_ATTRIBUTES = (
    "use_bias",
    "skip_target",
    "weight_gradient",
    "smoothing",
    "per_class",
    "z_loss",
    "late_errors",
)


@tf.RegisterGradient("Largeout>FullSoftmax")
def _full_softmax_gradient(op, *upstream):
    hidden, targets, weights, table, bias, positive = op.inputs
    lse, _, _, *expected = op.outputs
    upstream = [tf.convert_to_tensor(of_term) for of_term in upstream[:3]]
    with _gradients.colocated_with(table):
        d_hidden, d_table, d_bias = ops.largeout_full_softmax_grad(
            hidden,
            targets,
            weights,
            table,
            bias,
            lse,
            *upstream,
            *expected,
            positive,
            **{name: op.get_attr(name) for name in _ATTRIBUTES},
        )
    trained = op.get_attr("weight_gradient")
    return (
        d_hidden,
        None,
        None,
        d_table if trained else None,
        d_bias if trained and op.get_attr("use_bias") else None,
        None,
    )
