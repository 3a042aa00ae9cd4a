"""What else will a user like? A user is the mean of rows of what she has, and scores are cosines.

python examples/recommender.py                  # which names do functions in Python use?
python examples/recommender.py --loss softmax   # over all items; default: SimpleX's loss, with sampled ones
python examples/recommender.py --data FOLDER    # lines `user item item ...` in train.txt[.gz],
                                                # valid.txt[.gz] if it is there, test.txt[.gz]
python examples/recommender.py --devices 8      # over 8 GPUs; 8 logical CPUs where there are none
"""

import pathlib

import _common
import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

import keras_largeout as kl


def arguments(argv=None):
    parser = _common.parser(__doc__)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="lines `user item item ...`; default: Python's functions")
    add("--loss", choices=("contrastive", "softmax"), default="contrastive")
    add("--users", choices=("means", "rows"), default="means", help="of rows of her items, or a row for each")
    add("--tied", action="store_true", help="means: of the rows of the head")
    add("--epochs", type=int, default=40, help="160 reach more: see the page on quality")
    add("--batch", type=int, default=128, help="users in a step")
    add("--dim", type=int, default=64, help="length of the rows")
    add("--learning-rate", type=float, default=0.01, help="falls to 0 in a line")
    add("--power", type=float, default=1.0, help="of the number of items of a user: her weight")
    add("--temperature", type=float, default=0.1, help="softmax: of the cosines")
    add("--dropout", type=float, default=0.5, help="means: of the items that a user is")
    add("--faster", type=float, default=3.0, help="rows: the rate of users, over that of items")
    add("--sampled", type=int, default=4096, help="contrastive: items drawn in a step")
    add("--margin", type=float, default=0.9, help="contrastive: what cosines of other items may have")
    add("--weight", type=float, default=150.0, help="contrastive: of other items")
    args = parser.parse_args(argv)
    if args.tied and args.users == "rows":
        parser.error("--tied goes with --users means")
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.dim, args.batch, args.sampled = 2, 8, 64, 64
    return args


class Batches:
    """Users, their items without some and with all, and their weights; in another order in each epoch.

    Attributes:
        steps: int, batches in an epoch.
    """

    def __init__(self, args, users, seed):
        self.items, self.seed, self.dropout = users, seed, args.dropout
        self.users = np.flatnonzero([len(items) > 0 for items in users])
        self.size = min(args.batch, len(self.users))
        self.steps = len(self.users) // self.size
        self.weights = np.power([max(len(items), 1) for items in users], args.power, dtype="float32")
        self.weights /= self.weights[self.users].mean()
        self.epoch = 0

    def __iter__(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        for users in rng.permutation(self.users)[: self.steps * self.size].reshape(self.steps, -1):
            wanted = _common.padded([self.items[user] for user in users])
            had = np.where(rng.random(wanted.shape) < self.dropout, -1, wanted)
            yield {"user": users.astype("int32"), "items": had}, wanted, self.weights[users]

    def dataset(self):
        """Return a `tf.data.Dataset` of one epoch, another one each time that it is read."""
        lists = tf.TensorSpec([self.size, None], tf.int32)
        inputs = {"user": tf.TensorSpec([self.size], tf.int32), "items": lists}
        given = (inputs, lists, tf.TensorSpec([self.size]))
        return tf.data.Dataset.from_generator(self.__iter__, output_signature=given).prefetch(4)


def first_rows(train, items, dim, seed):
    """Return where the rows of items begin: the singular vectors of who has what, each row of length 0.8.

    Users and items are divided by the roots of their numbers of pairs. A little noise tells rows apart.
    """
    rng = np.random.default_rng(seed)
    pairs = np.repeat(np.arange(len(train)), list(map(len, train))), np.concatenate(train)
    whole = scipy.sparse.csr_array((np.ones(len(pairs[0]), "float32"), pairs), (len(train), items))
    of_users, of_items = (np.maximum(whole.sum(axis), 1) ** -0.5 for axis in (1, 0))
    whole = whole.multiply(of_users[:, None]).multiply(of_items[None]).tocsr().astype("float32")
    found = rng.standard_normal((items, dim + 16)).astype("float32")
    for _ in range(5):
        found = np.linalg.qr(whole.T @ (whole @ found))[0]
    _, values, turned = np.linalg.svd(whole @ found, full_matrices=False)
    rows = (found @ turned.T * values)[:, :dim]
    rows *= 0.8 / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return (rows + 0.03 * rng.standard_normal(rows.shape)).astype("float32")


def build(args, seed, train, items, steps):
    """Return a compiled model from users and their items to vectors of the users, and its head.

    A user is the mean of rows of her items (as in YoutubeNet), or has a row that begins at that mean (as in
    MF-CCL, the matrix factorisation of Mao et al., 2021, "SimpleX").
    """
    first = first_rows(train, items, args.dim, seed)
    schedule = keras.optimizers.schedules.PolynomialDecay(args.learning_rate, steps, 0.0)
    user = keras.Input((), dtype="int32", name="user")
    had = keras.Input((None,), dtype="int32", name="items")
    if args.users == "means":
        own = {"combiner": "mean", "out_of_range": "zero", "weights": first}
        of_items = kl.layers.ShardedEmbedding(items, args.dim, name="of_items", **own)
        vectors = of_items(had)
    else:
        means = np.float32([first[own].mean(axis=0) if len(own) else first[0] for own in train])
        faster = keras.optimizers.schedules.PolynomialDecay(args.faster * args.learning_rate, steps, 0.0)
        own = {"weights": means, "optimizer": kl.optimizers.LazyAdam(faster, beta_2=0.99)}
        vectors = kl.layers.ShardedEmbedding(len(train), args.dim, name="of_users", **own)(user)
    scores = {"normalize": True, "kernel": of_items if args.tied else None, "name": "head"}
    if args.loss == "softmax":
        head = kl.layers.FullSoftmax(items, temperature=args.temperature, **scores)
    else:
        loss = {"negative_margin": args.margin, "negative_weight": args.weight, "seed": seed}
        drawn = min(args.sampled, items), "uniform"
        head = kl.layers.SampledSoftmax(items, *drawn, loss="cosine_contrastive", **loss, **scores)
    model = kl.Model({"user": user, "items": had}, head(vectors))
    if not args.tied:
        head.kernel.assign(first)
    # A row is in few steps: moments that last a thousand of them would be those of its first epochs.
    model.compile(kl.optimizers.LazyAdam(schedule, beta_2=0.99), head.loss)
    return model, head


def predictor(model, head, k=20):
    """Return a model from users and their items to the k best items that they do not have."""
    had = next(given for given in model.inputs if given.name == "items")
    return head.predictor(model, k, exclude=had)


def asked(train, users):
    """Return what `model` and its predictor take: users, and what each of them has."""
    items = _common.padded([train[user] for user in users])
    return {"user": np.int32(users), "items": items}


def measure(model, head, train, test, most=None, k=20):
    """Return recall and NDCG at k as LightGCN defines them, in percent, of all or so many users."""
    metrics = [kl.metrics.RecallAtK(k, name=f"Recall@{k}"), kl.metrics.NDCGAtK(k, name=f"NDCG@{k}")]
    predict = tf.function(predictor(model, head, k), reduce_retracing=True)
    order = np.random.default_rng(0).permutation(len(train))
    chosen = [user for user in order if len(train[user]) and len(test[user])][:most]
    for begin in range(0, len(chosen), 256):
        some = chosen[begin : begin + 256]
        best = predict({name: tf.constant(x) for name, x in asked(train, some).items()}, training=False)
        for metric in metrics:
            metric.update_state(_common.padded([test[user] for user in some]), best["ids"])
    return {metric.name: 100 * float(metric.result()) for metric in metrics}


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    train, test, items = _common.likes(args)
    batches = Batches(args, train, args.seed)
    with strategy.scope():
        model, head = build(args, args.seed, train, items, args.epochs * batches.steps)
    print(f"{len(train):,} users, {items:,} items")
    clock = _common.Clock(measure=lambda: measure(model, head, train, test, 500))
    model.fit(batches.dataset(), epochs=args.epochs, callbacks=[clock], shuffle=False, verbose=2)
    print(", ".join(f"{name} {value:.1f}%" for name, value in measure(model, head, train, test).items()))

    inputs = asked(train, [user for user in range(len(train)) if len(train[user])][:16])
    with strategy.scope(), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-5)
        _common.check_export(args.export, predictor(model, head), inputs)
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
