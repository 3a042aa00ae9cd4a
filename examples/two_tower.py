"""Two towers for retrieval, with TensorFlow Recommenders: users and items become vectors of one space.

python examples/two_tower.py                # which names does a function of Python's library use?
python examples/two_tower.py --data FOLDER  # lines `user item item ...` in train.txt[.gz], ...
python examples/two_tower.py --devices 8    # over 8 GPUs; 8 logical CPUs where there are none
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TensorFlow Recommenders is written for tf_keras

import _common
import keras
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

import keras_largeout as kl

tf.get_logger().setLevel("ERROR")  # `BruteForce` is traced for each width of what it leaves out


def arguments(argv=None):
    parser = _common.parser(__doc__)
    add = parser.add_argument
    add("--data", metavar="PATH", help="lines `user item item ...`; default: Python's functions")
    add("--epochs", type=int, default=5)
    add("--batch", type=int, default=1024, help="pairs in a batch: each item stands against all others")
    add("--length", type=int, default=50, help="the most items of a history that the tower reads")
    add("--dim", type=int, default=64, help="width of all vectors")
    add("--temperature", type=float, default=1.0, help="scores are divided by it")
    add("--learning-rate", type=float, default=2e-3)
    args = parser.parse_args(argv)
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.batch, args.dim = 3, 128, 16
    return args


def pairs(args, data):
    """Return a dataset: user, item, the history without that item, and the share of the item of all pairs."""
    known = [user[:-2] for user in data.users]  # one item is for the validation, one for the test
    items = np.concatenate(known)
    users = np.repeat(np.arange(len(known), dtype=np.int32), list(map(len, known)))
    histories = tf.constant(_common.padded([user[-args.length :] for user in known], args.length))
    share = tf.constant(data.counts / data.counts.sum(), tf.float32)

    def example(user, item):
        history = tf.gather(histories, user)
        history = tf.where(history == item[:, None], -1, history)
        return {"user": user, "history": history, "item": item, "share": tf.gather(share, item)}

    rows = tf.data.Dataset.from_tensor_slices((users, items)).shuffle(len(items), seed=args.seed)
    return rows.batch(min(args.batch, len(items)), drop_remainder=True).map(example).prefetch(4)


class TwoTower(kl.Model):
    """A tower of queries and one of items: models of Keras 3, trained by `tfrs.tasks.Retrieval`.

    Each query is to find its item among those of the batch. The task takes the logarithm of an item's share
    off its scores (logQ), and the item of a query is no negative if the batch has it twice.
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


def build(args, users, items, table=kl.layers.ShardedEmbedding, bag=None):
    """Return a `TwoTower`: a user is its vector and the mean of those of the items in its history.

    Args:
        args: the options.
        users, items: int, how many there are.
        table: function from a number of rows and a width to a layer.
        bag: likewise, to a layer that takes the mean. None: a `ShardedEmbedding`.
    """
    user = keras.Input((), dtype="int32", name="user")
    history = keras.Input((args.length,), dtype="int32", name="history")
    item = keras.Input((), dtype="int32", name="item")
    first = {"embeddings_initializer": keras.initializers.RandomNormal(stddev=0.1)}
    if bag is None:  # -1 is no item: "zero" leaves it out of the mean
        bag = kl.layers.ShardedEmbedding(items, args.dim, combiner="mean", out_of_range="zero", **first)
    query = keras.layers.Add()([table(users, args.dim, **first)(user), bag(history)])
    query = keras.Model({"user": user, "history": history}, query, name="query")
    return TwoTower(query, keras.Model(item, table(items, args.dim, **first)(item)), args.temperature)


class Best(keras.layers.Layer):
    """`BruteForce` as a layer of Keras 3: the best items for a vector, those of the history left out."""

    def __init__(self, index, k=10, **kwargs):
        super().__init__(**kwargs)
        self.index, self.k = index, k

    def call(self, query, history):
        scores, ids = self.index.query_with_exclusions(query, history, k=self.k)
        return {"ids": ids, "scores": scores}


def brute_force(model, items, k=20):
    """Return `BruteForce` over the vectors of all items as they are now."""
    ids = tf.range(items)
    return tfrs.layers.factorized_top_k.BruteForce(k=k).index(model.item(ids), ids)


def asked(args, data, users, last):
    """Return what the tower of queries takes for users without the last item, or the last two."""
    history = [data.users[user][:-last][-args.length :] for user in users]
    return {"user": np.int32(users), "history": _common.padded(history, args.length)}


def evaluate(args, model, data, last, most=None):
    """Return where the last item (1) of each user, or the one before it (2), is among all items.

    `all@k` is of `tfrs.metrics.FactorizedTopK`, `Recall@k` among the items that the user does not have.
    """
    index = brute_force(model, len(data.counts))
    among_all = tfrs.metrics.FactorizedTopK(candidates=index, ks=(10, 20))
    recalls = [kl.metrics.RecallAtK(k, name=f"Recall@{k}") for k in (10, 20)]
    users = np.random.default_rng(0).permutation(len(data.users))[:most]
    users = sorted(users, key=lambda user: len(data.users[user]))
    for user in np.array_split(users, -(-len(users) // 256)):
        query = model.query(asked(args, data, user, last), training=False)
        item = tf.constant([data.users[i][-last] for i in user])
        among_all.update_state(query, model.item(item), true_candidate_ids=item)
        width = 1 << len(data.users[user[-1]]).bit_length()  # few widths: each is traced
        seen = _common.padded([data.users[i][:-last] for i in user], min(width, len(data.counts) - 20))
        _, best = index.query_with_exclusions(query, seen, k=20)
        for recall in recalls:
            recall.update_state(item, {"ids": best})
    found = {f"all@{k}": float(share) for k, share in zip((10, 20), among_all.result())}
    return found | {recall.name: float(recall.result()) for recall in recalls}


def fit(args, model, data):
    """Train, and measure some users after each epoch. Return what Keras recorded, and the clock."""
    clock = _common.Clock(measure=lambda: evaluate(args, model, data, last=2, most=2000))
    found = model.fit(pairs(args, data), epochs=args.epochs, callbacks=[clock], shuffle=False, verbose=2)
    return found.history, clock


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    data = _common.interactions(args.data, args.share)
    with strategy.scope():
        model = build(args, len(data.users), len(data.counts))
        model.compile(kl.optimizers.LazyAdam(args.learning_rate))
    fit(args, model, data)
    found = evaluate(args, model, data, last=1)
    print("the last item of each user:", ", ".join(f"{name} {value:.2%}" for name, value in found.items()))

    best = Best(brute_force(model, len(data.counts)))
    recommender = keras.Model(model.query.input, best(model.query.output, model.query.input["history"]))
    inputs = asked(args, data, np.arange(64), last=1)
    answers = recommender(inputs)
    for user in range(5):
        print(
            "...", *(data.names[i] for i in data.users[user][-7:-1]), f"[{data.names[data.users[user][-1]]}]"
        )
        print("    ->", *(data.names[i] for i in answers["ids"][user, :5].numpy()))
    if args.save:
        model.query.save(args.save)
    _common.check_export(args.export, recommender, inputs)
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
