"""Answers about classes that are on several hosts: every host is asked, and the best answers are taken."""

import tensorflow as tf

from keras_largeout.ops.top_k_in_chunks import best_of


def best_of_hosts(hosts, route, scores, ids, k):
    """Return the k best classes of all hosts for the vectors of this one: scores `[n, k]` and ids, `[n, k]`.

    Args:
        hosts: `Hosts`. Those further on have larger ids.
        route: the `AllGather` by which all hosts got the vectors.
        scores, ids: float32 and int32 `[sum(route.receive), m]`: the best of this host's classes, for the
            vectors of all; m may be smaller than k.
        k: int or int32 scalar.
    """
    if hosts.is_alone:
        return scores, ids
    missing = [(0, 0), (0, k - tf.shape(scores)[1])]
    padded = tf.pad(scores, missing, constant_values=-float("inf")), tf.pad(ids, missing)
    if not tf.is_tensor(k):
        padded = [tf.ensure_shape(values, [None, k]) for values in padded]
    return best_of(*(tf.unstack(route.reverse(values), hosts.count) for values in padded), k)


def logsumexp_of_hosts(hosts, route, lse):
    """Return the logsumexp over the classes of all hosts for the vectors of this one, `[n]`.

    Args:
        lse: float32 `[sum(route.receive)]`, over this host's classes, for the vectors of all.
    """
    return lse if hosts.is_alone else tf.reduce_logsumexp(route.reverse(lse), axis=0)
