"""`together`: a differentiable function that all replicas of a strategy compute in one call."""

import tensorflow as tf


def together(forward, backward, *inputs):
    """What `forward` makes of the inputs of all replicas; each replica gets its own part of it.

    For work on shards that must be done once a step with what all replicas bring (an update in the backward
    pass), and not once for each replica. The call is a `merge_call`, forward and backward: it cannot stand in
    a loop or condition of the replica's graph.

    Args:
        forward: `(inputs of replica 0, of replica 1, ...) -> (outputs, saved)`, each replica's inputs being a
            tuple: a tensor for every replica, and any structure of tensors for `backward`.
        backward: `(saved, gradients) -> gradients of the inputs`: from a gradient of every replica's output
            to a tuple of gradients for every replica.
        *inputs: tensors of this replica.

    Returns:
        This replica's output.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return _alone(forward, backward, *inputs)
    number = int(tf.get_static_value(replica.replica_id_in_sync_group))

    def of_all(strategy, *values):
        return list(zip(*(strategy.experimental_local_results(value) for value in values)))

    @tf.custom_gradient
    def call(*inputs):
        def run(strategy, *values):
            return forward(*of_all(strategy, *values))

        outputs, saved = replica.merge_call(run, args=inputs)

        def gradient(grad):
            def run_back(strategy, grads):
                return backward(saved, list(strategy.experimental_local_results(grads)))

            return tf.distribute.get_replica_context().merge_call(run_back, args=(grad,))[number]

        return outputs[number], gradient

    return call(*inputs)


def _alone(forward, backward, *inputs):
    @tf.custom_gradient
    def call(*inputs):
        (output,), saved = forward(inputs)
        return output, lambda grad: backward(saved, [grad])[0]

    return call(*inputs)
