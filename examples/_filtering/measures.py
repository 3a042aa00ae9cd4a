"""Recall@20 and NDCG@20 among all items that a user does not have in training."""

import numpy as np
import tensorflow as tf
from _filtering.models import all_scores
from _filtering.pairs import items_of
from _next_item.sequences import padded

import keras_largeout as kl

K = 20
RECALL, NDCG = f"Recall@{K}", f"NDCG@{K}"


class Measure:
    """Calling it with `scores`, a function from users to `[users, items]`, returns a dict of shares of 1.

    Recall@20: the share of a user's held-out items that are among the 20 best, the mean over users. NDCG@20
    also says how far in front they are. What a user has in training is left out; of the test, what it has in
    the validation too.

    Args:
        pairs: `Pairs`.
        side: "valid" or "test".
        most: int or None: so many users, drawn at random.
        seed: int, of this draw.
        cells: int, scores at a time.
    """

    def __init__(self, pairs, side, most=None, seed=0, cells=2**18):
        self.users = pairs.some_users(side, most, seed)
        self._metrics = [kl.metrics.RecallAtK(K, name=RECALL), kl.metrics.NDCGAtK(K, name=NDCG)]
        known = [pairs.train, pairs.valid] if side == "test" else [pairs.train]
        seen = [np.concatenate(parts) for parts in zip(*(items_of(part, self.users) for part in known))]
        held_out = items_of(getattr(pairs, side), self.users)
        step = max(1, cells // pairs.items)
        self._batches = [
            (
                self.users[i : i + step].astype(np.int32),
                padded(seen[i : i + step], max(map(len, seen[i : i + step]))),
                padded(held_out[i : i + step], max(map(len, held_out[i : i + step]))),
            )
            for i in range(0, len(self.users), step)
        ]

    def __call__(self, scores):
        for metric in self._metrics:
            metric.reset_state()
        for users, seen, held_out in self._batches:
            found = {"ids": best(tf.convert_to_tensor(scores(tf.constant(users))), tf.constant(seen))}
            for metric in self._metrics:
                metric.update_state(held_out, found)
        return {metric.name: float(metric.result()) for metric in self._metrics}


@tf.function(reduce_retracing=True)
def best(scores, seen, k=K):
    """Return int32 `[users, k]`: the best items by `scores` without those in `seen`, which is filled up
    with -1.
    """
    places = tf.where(seen >= 0)
    cells = tf.stack([places[:, 0], tf.cast(tf.gather_nd(seen, places), tf.int64)], axis=1)
    lowest = tf.fill([tf.shape(cells)[0]], scores.dtype.min)
    return tf.math.top_k(tf.tensor_scatter_nd_update(scores, cells, lowest), k).indices


def of_model(model, pairs):
    """Return `scores` of a model as it is now."""
    tables = [model.get_layer(name) for name in ("users", "items")]
    users, items = tables[0], tables[1](tf.range(pairs.items))
    score = model.get_layer("score")
    return lambda some: all_scores(score, users(some), items)


def of_counts(pairs):
    """Return `scores` of the most popular items: for every user how many have each in training."""
    counts = tf.constant(pairs.counts, tf.float32)[None]
    return lambda some: tf.repeat(counts, tf.shape(some)[0], axis=0)
