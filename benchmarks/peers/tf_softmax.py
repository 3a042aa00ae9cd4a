"""TensorFlow's own output layers: the full softmax, sampled softmax, and two levels by `tf.gather`.

All update by plain SGD with TensorFlow's in-place ops, without a Keras optimizer: the cheapest way there is.
"""

import math

import tensorflow as tf

from benchmarks.peers import tf_common


def _weights(*shape):
    return tf.Variable(tf.random.stateless_uniform(shape, [1, 2], -0.05, 0.05))


def _descend(variable, gradient, rate):
    """Subtract `rate * gradient` from a variable in place; by rows if the gradient is sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        tf.raw_ops.ResourceScatterSub(
            resource=variable.handle, indices=gradient.indices, updates=rate * gradient.values
        )
    else:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def _train_step(config, data, loss_of, weights, notes=None):
    """Return the gradient of the hidden vectors is taken too: it is what a model below would need."""

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = loss_of(hidden, targets)
        d_hidden, *gradients = tape.gradient(loss, [hidden, *weights])
        for variable, gradient in zip(weights, gradients):
            _descend(variable, gradient, config["lr"])
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(
        step, tf_common.batches(data, "hidden"), tf_common.batches(data, "targets"), notes=notes
    )


def full(config, data):
    """Return logits [tokens, classes] by a matmul, then sparse_softmax_cross_entropy on float32."""
    kernel, bias = _weights(config["dim"], config["classes"]), tf_common.filled([config["classes"]], 0.0)
    dtype = tf.bfloat16 if config.get("bfloat16") else tf.float32

    def loss_of(hidden, targets):
        logits = tf.matmul(tf.cast(hidden, dtype), tf.cast(kernel, dtype)) + tf.cast(bias, dtype)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
        return tf.reduce_mean(losses)

    return _train_step(config, data, loss_of, [kernel, bias])


def sampled(config, data):
    """Return tf.nn.sampled_softmax_loss with its log-uniform sampler (classes are sorted by frequency)."""
    kernel, bias = _weights(config["classes"], config["dim"]), tf_common.filled([config["classes"]], 0.0)

    def loss_of(hidden, targets):
        losses = tf.nn.sampled_softmax_loss(
            kernel, bias, targets[:, None], hidden, config["samples"], config["classes"], seed=1
        )
        return tf.reduce_mean(losses)

    return _train_step(config, data, loss_of, [kernel, bias])


def _products(config, data, columns):
    """Return the three matrix products of a softmax over `columns` classes, and nothing else."""
    table, of_logits = _weights(columns, config["dim"]), _weights(config["tokens"], columns)

    def step(hidden, targets):
        products = [
            tf.matmul(hidden, table, transpose_b=True),
            tf.matmul(of_logits, table),
            tf.matmul(of_logits, hidden, transpose_a=True),
        ]
        return tf.add_n([product[0, 0] for product in products])

    return tf_common.rotate(step, tf_common.batches(data, "hidden"), tf_common.batches(data, "targets"))


def products(config, data):
    return _products(config, data, config["classes"])


def sampled_products(config, data):
    return _products(config, data, config["samples"])


def table_and_gradient(config, data):
    """Return memory that every exact softmax needs: its table, a gradient like it, and the batches."""
    kernel, bias = _weights(config["classes"], config["dim"]), tf_common.filled([config["classes"]], 0.0)

    def step(hidden, targets):
        gradient = tf.fill(kernel.shape, tf.reduce_sum(hidden) * 1e-20)
        _descend(kernel, gradient, config["lr"])
        return bias[0]

    return tf_common.rotate(step, tf_common.batches(data, "hidden"), tf_common.batches(data, "targets"))


def two_level_gather(config, data):
    """Return sqrt(classes) groups; the words of a token's group are gathered for it: [tokens, group size,
    dim].

    Tokens go through in chunks of at most `gather_bytes` of gathered weights, each with its own update.
    """
    groups = math.ceil(math.sqrt(config["classes"]))
    size = math.ceil(config["classes"] / groups)
    group_kernel, group_bias = _weights(config["dim"], groups), tf_common.filled([groups], 0.0)
    kernel, bias = _weights(groups, size, config["dim"]), tf_common.filled([groups, size], 0.0)
    weights = [group_kernel, group_bias, kernel, bias]
    tokens = config["tokens"]
    chunk = max(1, min(tokens, config["gather_bytes"] // (4 * size * config["dim"])))

    def loss_of(hidden, targets):
        group = targets // size
        outer = tf.matmul(hidden, group_kernel) + group_bias
        inner = tf.einsum("td,tsd->ts", hidden, tf.gather(kernel, group)) + tf.gather(bias, group)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(group, outer)
        losses += tf.nn.sparse_softmax_cross_entropy_with_logits(targets % size, inner)
        return tf.reduce_sum(losses) / tokens

    def step(hidden, targets):
        total, d_hidden = 0.0, []
        for start in range(0, tokens, chunk):
            part = hidden[start : start + chunk]
            with tf.GradientTape() as tape:
                tape.watch(part)
                loss = loss_of(part, targets[start : start + chunk])
            d_part, *gradients = tape.gradient(loss, [part, *weights])
            for variable, gradient in zip(weights, gradients):
                _descend(variable, gradient, config["lr"])
            total += loss
            d_hidden.append(d_part)
        with tf.control_dependencies(d_hidden):
            return tf.identity(total)

    return tf_common.rotate(
        step,
        tf_common.batches(data, "hidden"),
        tf_common.batches(data, "targets"),
        notes={"chunk_tokens": chunk},
    )
