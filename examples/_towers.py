"""The two towers of the retrieval example, their training task of TensorFlow Recommenders, and their test.

Import this before anything that imports TensorFlow: TensorFlow Recommenders is written for tf_keras, and
finds it only where the variable below is set. Models of Keras 3 work beside it.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import _quiet  # noqa: F401  (it imports TensorFlow)

# isort: split
import keras
import numpy as np
import tensorflow as tf
from _next_item.sequences import padded

import keras_largeout as kl

try:
    import tensorflow_recommenders as tfrs
except ImportError as error:
    sys.exit(f"This example needs TensorFlow Recommenders: pip install '.[recommenders]'. ({error})")

# `BruteForce` is traced for each width of what it leaves out, of which TensorFlow warns.
tf.get_logger().setLevel("ERROR")

#: How many items are recommended where not said otherwise, and at which numbers of them recall is measured.
K, KS = 10, (10, 20)


class TwoTower(kl.Model):
    """A tower of queries and one of items: models of Keras 3, trained by `tfrs.tasks.Retrieval`.

    In a step each query is to find its own item among the items of the batch. Frequent items are there more
    often than others; the task takes the logarithm of their share off their scores (logQ), and a query's own
    item is no negative where it comes again in the batch.

    Args:
        query: `keras.Model`, `{"user": [n], "history": [n, length]}` to vectors `[n, dim]`.
        item: `keras.Model`, ids `[n]` to vectors `[n, dim]`.
        temperature: float, the scores are divided by it in training.
    """

    def __init__(self, query, item, temperature):
        super().__init__()
        self.query, self.item = query, item
        task = tfrs.tasks.Retrieval(temperature=temperature, remove_accidental_hits=True)
        # `tf.function` translates the Python of the task, as tf_keras would; Keras 3 does not.
        self._task = tf.function(lambda *given, **more: task(*given, **more, compute_metrics=False))

    def call(self, inputs):
        return self.query({key: inputs[key] for key in ("user", "history")}), self.item(inputs["item"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        query, item = y_pred
        total = self._task(query, item, candidate_sampling_probability=x["share"], candidate_ids=x["item"])
        replicas = tf.distribute.get_strategy().num_replicas_in_sync  # Keras adds their gradients up
        return total / tf.cast(tf.shape(query)[0] * replicas, tf.float32)


def build(users, items, length, dim, kind="ours", temperature=1.0, first=0.1):
    """Return a `TwoTower`: a user is its own vector and the mean of those of the items in its history.

    Args:
        users, items: int, how many there are.
        length: int, of a history; it is filled up with -1.
        dim: int.
        kind: "ours" for `ShardedEmbedding`, "keras" for `keras.layers.Embedding`, to compare.
        temperature: float, the scores are divided by it in training.
        first: float, the standard deviation of the first vectors.
    """
    user = keras.Input((), dtype="int32", name="user")
    history = keras.Input((length,), dtype="int32", name="history")
    item = keras.Input((), dtype="int32", name="item")

    def table(name, rows, **kwargs):
        kwargs["embeddings_initializer"] = keras.initializers.RandomNormal(stddev=first)
        layer = kl.layers.ShardedEmbedding if kind == "ours" else keras.layers.Embedding
        return layer(rows, dim, name=name, **kwargs)

    if kind == "ours":
        # -1 is no item: `out_of_range="zero"` leaves it out of the mean.
        bag = table("history_items", items, combiner="mean", out_of_range="zero")
    else:
        bag = KerasBag(table("history_items", items))
    query = keras.layers.Add()([table("users", users)(user), bag(history)])
    query_tower = keras.Model({"user": user, "history": history}, query, name="query")
    item_tower = keras.Model(item, table("items", items)(item), name="item")
    return TwoTower(query_tower, item_tower, temperature)


class KerasBag(keras.layers.Layer):
    """The mean of the rows of a bag of ids, filled up with -1, by Keras's own means."""

    def __init__(self, rows, **kwargs):
        super().__init__(**kwargs)
        self.rows = rows

    def call(self, ids):
        there = keras.ops.cast(ids >= 0, "float32")[..., None]
        rows = self.rows(keras.ops.maximum(ids, 0)) * there
        return keras.ops.sum(rows, axis=-2) / keras.ops.maximum(keras.ops.sum(there, axis=-2), 1.0)


class Best(keras.layers.Layer):
    """`BruteForce` as a layer of Keras 3: the k best items for a vector, those of the history left out.

    Args:
        index: `tfrs.layers.factorized_top_k.BruteForce` of the vectors of all items.
        k: int.
    """

    def __init__(self, index, k=K, **kwargs):
        super().__init__(**kwargs)
        self.index, self.k = index, k

    def call(self, query, history):
        scores, ids = self.index.query_with_exclusions(query, history, k=self.k)
        return {"ids": ids, "scores": scores}


def recommender(model, items):
    """Return what is served, `{"user", "history"}` to `{"ids", "scores"}`: the tower of queries and
    `BruteForce`.
    """
    query = model.query
    return keras.Model(
        query.input, Best(brute_force(model.item, items))(query.output, query.input["history"])
    )


def pairs(sequences, length, batch, seed):
    """Return a dataset of what is known of the users, in batches: a pair of user and item in each row.

    The history is the last items that the user has, at most `length` of them, without the item to be found.
    "share" is how often an item is the one to be found, of all pairs.
    """
    known = [user[:-2] for user in sequences.users]
    items = np.concatenate(known)
    users = np.repeat(np.arange(len(known), dtype=np.int32), [len(user) for user in known])
    histories = tf.constant(padded([user[-length:] for user in known], length))
    share = tf.constant((sequences.counts / sequences.counts.sum()).astype(np.float32))

    def example(user, item):
        history = tf.gather(histories, user)
        history = tf.where(history == item[:, None], -1, history)
        return {"user": user, "history": history, "item": item, "share": tf.gather(share, item)}

    data = tf.data.Dataset.from_tensor_slices((users, items)).shuffle(len(items), seed=seed)
    return data.batch(min(batch, len(items)), drop_remainder=True).map(example).prefetch(4)


def brute_force(item_tower, items, k=KS[-1], batch=8192):
    """Return `BruteForce` over the vectors of items 0 .. items - 1, as they are now."""
    ids = tf.data.Dataset.range(items, output_type=tf.int32).batch(batch)
    vectors = tf.concat([item_tower(some, training=False) for some in ids], axis=0)
    return tfrs.layers.factorized_top_k.BruteForce(k=k).index(vectors, tf.range(items))


def inputs_of(held_out, length):
    """Return what the query tower takes for users whose next item was held out: a dict of arrays."""
    users, histories, _ = held_out
    history = padded([history[-length:] for history in histories], length)
    return {"user": np.array(users, np.int32), "history": history}


def evaluate(model, held_out, length, items, most=2**25):
    """Return where the held-out item of each user is among all items.

    Args:
        model: a `TwoTower`.
        held_out: what `Sequences.held_out` returned; users with a short history come first.
        length: int, of the histories that the tower reads.
        items: int.
        most: int, a batch is as large as its comparisons with what was seen allow.

    Returns:
        A dict of shares of 1: `all@k` by `tfrs.metrics.FactorizedTopK`, among all items; `Recall@k` among
        those that the user does not have yet.
    """
    index = brute_force(model.item, items)
    among_all = tfrs.metrics.FactorizedTopK(candidates=index, ks=KS)
    recalls = [kl.metrics.RecallAtK(k, name=f"Recall@{k}") for k in KS]
    inputs, (_, histories, found) = inputs_of(held_out, length), held_out
    start = 0
    while start < len(found):
        # `BruteForce` compares each of the best `wide + k` with each of `wide`: a power of two, so that few
        # functions are traced.
        last = min(start + 512, len(found)) - 1
        wide = 1 << (len(histories[last]) - 1).bit_length()
        wide = min(wide, items - KS[-1])
        stop = min(last + 1, start + max(1, most // (wide * (wide + KS[-1]))))
        query = model.query(
            {key: tf.constant(rows[start:stop]) for key, rows in inputs.items()}, training=False
        )
        item = tf.constant(found[start:stop])
        among_all.update_state(query, model.item(item, training=False), true_candidate_ids=item)
        seen = tf.constant(padded(histories[start:stop], wide))
        _, best = index.query_with_exclusions(query, seen, k=KS[-1])
        for recall in recalls:
            recall.update_state(item, {"ids": best})
        start = stop
    scores = {f"all@{k}": float(share) for k, share in zip(KS, among_all.result())}
    return scores | {recall.name: float(recall.result()) for recall in recalls}
