"""Cross-replica computations: a call that all replicas make as one, and a mean."""

import tensorflow as tf

from keras_largeout.ops._gradients import with_gradient
from keras_largeout.replicas.collectives import AllGather, all_gather
from keras_largeout.replicas.devices import replica_index
from keras_largeout.replicas.hosts import hosts_of


def several_replicas():
    """Return the replica context where there is more than one replica, else None."""
    replica = tf.distribute.get_replica_context()
    return None if replica is None or replica.num_replicas_in_sync == 1 else replica


def sums_of_replicas(values):
    """Return the sums over the replicas of a list of tensors, one by one. They have no gradient.

    (`ReplicaContext.all_reduce` has one, and TensorFlow keeps what it needs for good: the whole graph.)
    """
    replica = several_replicas()
    if replica is None or not values:
        return list(values)

    def add(strategy, *values):
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(v, v) for v in values])

    return list(replica.merge_call(add, args=[tf.stop_gradient(value) for value in values]))


def joined_of_replicas(value):
    """Return the values of all replicas, `[n, ...]` in each, one after the other. They have no gradient."""
    replica = several_replicas()
    if replica is None:
        return value

    def join(strategy, value):
        here, hosts = tf.concat(strategy.experimental_local_results(value), axis=0), hosts_of(strategy)
        return all_gather(hosts, here)[0]

    return replica.merge_call(join, args=[tf.stop_gradient(value)])


def cross_replica_call(forward, backward, *inputs):
    """Return what `forward` makes of the inputs of all replicas; each replica gets its own part of it.

    For work on shards that must be done once per step with what all replicas bring (an update in the backward
    pass), and not once per replica. With several replicas the call is a `merge_call`, forward and backward:
    it cannot stand in a loop or condition of the replica's graph.

    Args:
        forward: `(inputs of replica 0, of replica 1, ...) -> (outputs, saved)`. The inputs of a replica are a
            tuple. `outputs` has one tensor per replica; `saved` is any structure of tensors for `backward`.
        backward: `(saved, gradients) -> gradients of the inputs`. `gradients` has one gradient per output;
            the result has one tuple of gradients per replica.
        *inputs: tensors of this replica.

    Returns:
        This replica's output.
    """
    replica = several_replicas()
    index = replica_index() if replica else 0

    def run(strategy, *values):
        return forward(*zip(*(strategy.experimental_local_results(value) for value in values)))

    outputs, saved = replica.merge_call(run, args=inputs) if replica else forward(inputs)
    differentiable = [i for i, value in enumerate(inputs) if value.dtype.is_floating]

    def gradient(grad):
        if replica:

            def run_back(strategy, grads):
                return backward(saved, list(strategy.experimental_local_results(grads)))

            of_inputs = tf.distribute.get_replica_context().merge_call(run_back, args=(grad,))[index]
        else:
            of_inputs = backward(saved, [grad])[0]
        return [of_inputs[i] for i in differentiable]

    return with_gradient(gradient, outputs[index], [inputs[i] for i in differentiable])


def gathered_of_replicas(value):
    """Return the values of all replicas, `[n, ...]` in each, one after the other, with their gradient."""
    replica = several_replicas()
    if replica is None:
        return value
    hosts = hosts_of(replica.strategy)

    def forward(*inputs):
        here = [of_replica for (of_replica,) in inputs]
        joined = tf.concat(here, axis=0)
        route = AllGather(hosts, joined)
        sizes = [tf.shape(of_replica)[0] for of_replica in here]
        return [route.forward(joined)] * len(here), (route, sizes)

    def backward(saved, gradients):
        route, sizes = saved
        of_this_host = tf.reduce_sum(route.reverse(tf.add_n(gradients)), axis=0)
        return [(part,) for part in tf.split(of_this_host, sizes, num=len(sizes))]

    return cross_replica_call(forward, backward, value)


def mean_of_replicas(mean, terms, examples):
    """Return this replica's part of the mean over the terms of all replicas.

    Keras averages what the replicas bring: their gradients as they are, and for its log their losses,
    weighted by their numbers of examples. That is the mean over the whole batch only where all replicas have
    equally many terms. With a mask, or in a last batch that does not divide by the replicas, they do not.

    Args:
        mean: floating scalar: the mean over this replica's terms.
        terms: scalar: what it was divided by. A mean over nothing is 0.
        examples: scalar: the length of this replica's batch.

    Returns:
        A scalar like `mean`, and `mean` itself where there is one replica. What Keras makes of the values of
        all replicas is the mean over all terms; what it makes of their gradients is the gradient of that.
    """
    replica = several_replicas()
    if replica is None:
        return mean
    mine = tf.stop_gradient(tf.stack([tf.cast(terms, mean.dtype), tf.cast(examples, mean.dtype)]))
    (of_all,) = sums_of_replicas([mine])
    replicas = replica.num_replicas_in_sync
    share_of_terms, share_of_examples = tf.unstack(tf.math.divide_no_nan(mine, of_all))

    value = mean * tf.math.divide_no_nan(share_of_terms, share_of_examples)
    return with_gradient(lambda grad: [grad * share_of_terms * replicas], value, [mean])
