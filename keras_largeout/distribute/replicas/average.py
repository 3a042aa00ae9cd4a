"""The mean over the batches of all replicas, where each replica has a mean of its own."""

import tensorflow as tf


def mean_of_replicas(mean, terms, examples):
    """This replica's part of the mean over the terms of all replicas.

    Keras averages what the replicas bring: their gradients as they are, and for its log their losses, weighed
    by their examples. That is the mean over the whole batch only where all of them have equally many terms,
    and with a mask, or in a last batch that does not divide by the replicas, they have not.

    Args:
        mean: floating scalar: the mean over this replica's terms.
        terms: scalar: what it was divided by. A mean over nothing is 0.
        examples: scalar: the length of this replica's batch.

    Returns:
        A scalar like `mean`, and `mean` itself where there is one replica. What Keras makes of the values of
        all replicas is the mean over all terms; what it makes of their gradients is the gradient of that.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return mean
    mine = tf.stop_gradient(tf.stack([tf.cast(terms, mean.dtype), tf.cast(examples, mean.dtype)]))
    of_all = replica.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    share_of_terms, share_of_examples = tf.unstack(tf.math.divide_no_nan(mine, of_all))

    @tf.custom_gradient
    def part(mean):
        value = mean * tf.math.divide_no_nan(share_of_terms, share_of_examples)
        return value, lambda grad: grad * share_of_terms * replica.num_replicas_in_sync

    return part(mean)
