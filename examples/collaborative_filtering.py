"""Users and products whose tables do not fit a GPU: a matrix factorisation, or a neural model.

python examples/collaborative_filtering.py                  # which names do functions in Python use?
python examples/collaborative_filtering.py --storage host   # where the rows are: device, host, cached, file
python examples/collaborative_filtering.py --model neural   # two hidden layers over the vectors
python examples/collaborative_filtering.py --data FOLDER    # lines `user item item ...` in train.txt[.gz],
                                                            # valid.txt[.gz] if it is there, test.txt[.gz]
python examples/collaborative_filtering.py --devices 8      # over 8 GPUs; 8 logical CPUs where there are none
"""

import itertools
import pathlib
import tempfile

import _common
import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

#: Classes of optimizers, with a learning rate for the tables.
OPTIMIZERS = {
    "lazy_adam": (kl.optimizers.LazyAdam, 5e-3),
    "adagrad": (kl.optimizers.Adagrad, 5e-2),
    "rowwise_adagrad": (kl.optimizers.RowWiseAdagrad, 5e-2),
    "sgd": (kl.optimizers.SGD, 1.0),
    "ftrl": (kl.optimizers.Ftrl, 5e-2),
}


def arguments(argv=None):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="lines `user item item ...`; default: Python's functions")
    add("--model", choices=("factorisation", "neural"), default="factorisation")
    add("--storage", choices=("device", "host", "cached", "file"), default="device", help="of the rows")
    add("--folder", metavar="DIR", help="of --storage file, empty or new; default: made, then removed")
    add("--ahead", type=int, default=100, help="cached: batches whose rows are brought together")
    add("--optimizer", choices=tuple(OPTIMIZERS), default="lazy_adam")
    add("--two-optimizers", action="store_true", help="Adagrad for the tables, Adam for the other layers")
    add("--learning-rate", type=float, help="of the tables; default: one for each optimizer")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=1024, help="pairs of a user and an item that it has, in a step")
    add("--negatives", type=int, default=8, help="items drawn for each of these")
    add("--dim", type=int, default=64, help="length of the rows")
    args = parser.parse_args(argv)
    if args.folder and pathlib.Path(args.folder).is_dir() and any(pathlib.Path(args.folder).iterdir()):
        parser.error(f"--folder must be empty or new: its rows would be trained on. Received: {args.folder}")
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.dim, args.batch, args.ahead = 2, 8, 64, 4
        args.learning_rate = args.learning_rate or 0.02
    return args


class Batches:
    """Pairs of the training, shuffled in each epoch, and items drawn for them that the user does not have.

    Attributes:
        steps: int, batches in an epoch; size: int, pairs in a batch.
    """

    def __init__(self, args, users, items):
        self.user = np.repeat(np.arange(len(users), dtype=np.int32), list(map(len, users)))
        self.item, self.items, self.seed = np.concatenate(users), items, args.seed
        self.keys = np.sort(self.user * np.int64(items) + self.item)
        self.positive = min(args.batch, len(self.user))
        self.steps, self.size = len(self.user) // self.positive, self.positive * (1 + args.negatives)

    def epoch(self, number):
        rng = np.random.default_rng([self.seed, number])
        for chosen in rng.permutation(len(self.user))[: self.steps * self.positive].reshape(self.steps, -1):
            user = np.tile(self.user[chosen], self.size // self.positive)
            item = np.concatenate([self.item[chosen], np.zeros(self.size - self.positive, np.int32)])
            wrong = np.arange(self.positive, self.size)
            while len(wrong):  # again where the user has the item
                item[wrong] = rng.integers(0, self.items, len(wrong))
                keys = user[wrong] * np.int64(self.items) + item[wrong]
                places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
                wrong = wrong[self.keys[places] == keys]
            yield (
                {"user": user, "item": item},
                (np.arange(self.size) < self.positive)[:, None].astype("float32"),
            )

    def dataset(self):
        """Return a `tf.data.Dataset` without an end."""
        ids = tf.TensorSpec([self.size], tf.int32)
        return tf.data.Dataset.from_generator(
            lambda: itertools.chain.from_iterable(map(self.epoch, itertools.count())),
            output_signature=({"user": ids, "item": ids}, tf.TensorSpec([self.size, 1])),
        ).prefetch(4)


def place(args, folder, ids):
    """Return what a table is told of where its rows are. `ids`: rows of a step, at most."""
    if args.storage == "cached":  # room for two chunks: one is used while the next one is brought
        return {"storage": "host", "cache_rows": ids}
    return {"storage": f"file:{folder}" if args.storage == "file" else args.storage}


def build(args, users, items, size, folder):
    """Return a compiled model from `{"user", "item"}` to the log odds that the user has the item."""
    ids = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item")}
    vectors = []
    for name, rows in ("user", users), ("item", items):
        first = 0.1 * np.random.default_rng(args.seed).standard_normal((rows, args.dim), np.float32)
        own = place(args, folder, min(rows, 2 * args.ahead * size))
        table = kl.layers.ShardedEmbedding(rows, args.dim, weights=first, name=f"{name}s", **own)
        vectors.append(table(ids[name]))
    if args.model == "factorisation":
        score = keras.layers.Dot(axes=-1)(vectors)
    else:  # the sum is that of a dense layer on both vectors joined
        hidden = [keras.layers.Dense(args.dim, name=f"of_{name}")(x) for name, x in zip(ids, vectors)]
        rest = [keras.layers.ReLU(), keras.layers.Dense(args.dim // 2, "relu"), keras.layers.Dense(1)]
        score = keras.Sequential(rest, name="rest")(keras.layers.Add()(hidden))
    model = kl.Model(ids, score, name=args.model)
    made, rate = OPTIMIZERS["adagrad" if args.two_optimizers else args.optimizer]
    optimizer = made(args.learning_rate or rate)
    if args.two_optimizers and args.model == "neural":  # a factorisation has nothing but tables
        parts = keras.optimizers.OptimizerMap(keras.optimizers.Adam(5e-3), {".*embeddings.*": optimizer})
        optimizer = keras.optimizers.MultiOptimizer(parts)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def measure(model, train, test, most=None, k=20):
    """Return recall and NDCG among all items that a user does not have, of so many users, drawn."""
    metrics = [kl.metrics.RecallAtK(k, name=f"Recall@{k}"), kl.metrics.NDCGAtK(k, name=f"NDCG@{k}")]
    chosen = [u for u in np.random.default_rng(0).permutation(len(train)) if len(train[u]) and len(test[u])]
    items = model.get_layer("items")(tf.range(model.get_layer("items").input_dim))
    if model.name == "neural":
        items = model.get_layer("of_item")(items)
    for begin in range(0, len(chosen[:most]), 16):
        some = chosen[:most][begin : begin + 16]
        users = model.get_layer("users")(tf.constant(some, tf.int32))
        if model.name == "neural":
            hidden = model.get_layer("of_user")(users)[:, None] + items[None]
            scores = model.get_layer("rest")(tf.reshape(hidden, [-1, items.shape[1]]))
            scores = tf.reshape(scores, hidden.shape[:2]).numpy()
        else:
            scores = tf.matmul(users, items, transpose_b=True).numpy()
        for row, user in zip(scores, some):
            row[train[user]] = -np.inf
        best = {"ids": tf.math.top_k(scores, k).indices}
        for metric in metrics:
            metric.update_state(_common.padded([test[user] for user in some]), best)
    return {metric.name: float(metric.result()) for metric in metrics}


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    train, test, items = _common.likes(args)
    batches = Batches(args, train, items)
    with tempfile.TemporaryDirectory() as scratch:
        with strategy.scope():
            model = build(args, len(train), items, batches.size, args.folder or f"{scratch}/rows")
        print(f"{model.count_params():,} weights, storage: {args.storage}; {batches.size:,} pairs in a step")
        clock = _common.Clock(measure=lambda: measure(model, train, test, most=500))
        data = kl.distribute.prefetch_rows(batches.dataset(), model, args.ahead)
        fit = {"epochs": args.epochs, "steps_per_epoch": batches.steps, "callbacks": [clock]}
        model.fit(data, **fit, shuffle=False, verbose=2)
        print(", ".join(f"{name} {value:.2%}" for name, value in measure(model, train, test).items()))

        asked, _ = next(batches.epoch(0))
        answers = model(asked, training=False).numpy()
        path = args.save or f"{scratch}/model.keras"
        model.save(path)
        kl.close_files(model)  # a folder belongs to one model at a time
        with strategy.scope():
            loaded = keras.models.load_model(path)
        np.testing.assert_allclose(loaded(asked, training=False), answers, atol=1e-5)
        kl.close_files(loaded)
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
