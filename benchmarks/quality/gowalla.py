"""Gowalla as LightGCN splits it: models of cosines beside published numbers, over several seeds.

Recall@20 and NDCG@20 follow LightGCN's code: means over the users with test items, of the 20 best items
that a user does not have in training. Recall is hits over test items. NDCG is the sum of 1 / log2(rank + 1)
over the hits, over the same sum for the first min(20, test items) ranks.
"""

import _common
import collaborative_filtering as example
import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

import keras_largeout as kl

#: For each row: a model of the same loss in SimpleX (Mao et al., CIKM 2021, https://arxiv.org/abs/2109.12613),
#: and its Recall@20 and NDCG@20 in the table of Gowalla there, here in percent.
PUBLISHED = {"softmax": ("YoutubeNet", 17.54, 14.73), "contrastive": ("MF-CCL", 18.37, 14.93)}
ROWS = tuple(PUBLISHED)
#: How long each row trains by default.
EPOCHS = {"softmax": 14, "contrastive": 40}
COURSE = ("seconds of training", "Recall@20 of 2000 users, %")


def arguments(argv=None, row=ROWS[0]):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="of Gowalla; default: Python's functions")
    add("--tune", action="store_true", help="train without the validation items, and measure on them")
    add("--seeds", type=int, default=3, help="how many, from --seed on")
    add("--users", choices=("means", "rows"), default="means", help="of rows of her items, or a row for each")
    add("--tied", action="store_true", help="means: of the rows of the head")
    add("--epochs", type=int, help="default: one for each row")
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
    parser.set_defaults(epochs=EPOCHS[row])
    args = parser.parse_args(argv)
    if args.tied and args.users == "rows":
        parser.error("--tied goes with --users means")
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.seeds, args.epochs, args.dim, args.batch, args.sampled = 2, 2, 8, 64, 64
    return args


def read(args):
    """Return what the example reads; to tune, the validation items in the place of the test items."""
    train, test, items = example.read(args)
    if not args.tune:
        return train, test, items
    if not args.data:
        return [np.delete(own, np.s_[1::5]) for own in train], [own[1::5] for own in train], items
    parts = {path.name.split(".")[0]: _common.lists(path) for path in _common.lists_in(args.data)}
    valid = [np.int32(parts["valid"].get(user, ())) for user in sorted(set().union(*parts.values()))]
    return [np.setdiff1d(own, out) for own, out in zip(train, valid)], valid, items


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


def build(args, row, seed, train, items, steps):
    """Return a compiled model from users and their items to vectors of the users, and its head.

    A user is the mean of rows of her items (as in YoutubeNet), or has a row that begins at that mean (as in
    MF-CCL).
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
    if row == "softmax":
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


def measure(model, head, train, test, most=None, k=20):
    """Return recall and NDCG at k as LightGCN defines them, in percent, of all or so many users."""
    metrics = [kl.metrics.RecallAtK(k, name=f"Recall@{k}"), kl.metrics.NDCGAtK(k, name=f"NDCG@{k}")]
    had = next(given for given in model.inputs if given.name == "items")
    predict = tf.function(head.predictor(model, k, exclude=had), reduce_retracing=True)
    order = np.random.default_rng(0).permutation(len(train))
    chosen = [user for user in order if len(train[user]) and len(test[user])][:most]
    for begin in range(0, len(chosen), 256):
        some = chosen[begin : begin + 256]
        items = tf.constant(_common.padded([train[user] for user in some]))
        best = predict({"user": tf.constant(some, tf.int32), "items": items}, training=False)
        for metric in metrics:
            metric.update_state(_common.padded([test[user] for user in some]), best["ids"])
    return {metric.name: 100 * float(metric.result()) for metric in metrics}


def trained(args, row, seed, train, test, items):
    """Return what a model of one seed reaches, the seconds of its epochs, and its course."""
    keras.utils.set_random_seed(seed)
    batches = Batches(args, train, seed)
    model, head = build(args, row, seed, train, items, args.epochs * batches.steps)
    on_the_way = args.tune or seed == args.seed
    clock = _common.Clock(measure=(lambda: measure(model, head, train, test, 2000)) if on_the_way else None)
    fit = {"epochs": args.epochs, "callbacks": [clock], "shuffle": False, "verbose": 2}
    logs = model.fit(batches.dataset(), **fit).history
    scores = measure(model, head, train, test)
    print(f"seed {seed}, {clock.seconds:.0f} s of training: {scores}", flush=True)
    return scores, clock.seconds, list(zip(logs["seconds"], logs.get("Recall@20", ())))


def run(row, argv):
    args = arguments(argv, row)
    data = read(args)
    seeds = range(args.seed, args.seed + args.seeds)
    scores, seconds, courses = zip(*(trained(args, row, seed, *data) for seed in seeds))
    columns = {}
    for name in scores[0]:
        values = [found[name] for found in scores]
        spread = f" +- {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        columns[name] = f"{np.mean(values):.2f}{spread}"
    name, recall, ndcg = PUBLISHED[row]
    columns |= {"published": f"{name}: {recall} / {ndcg}", "s": np.mean(seconds)}
    return {**columns, "GB": _common.peak_memory(), "course": courses[0]}
