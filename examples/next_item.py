"""What comes next? A sequential recommender (SASRec) over thousands of items, with one of eight heads.

python examples/next_item.py                # which name does a function of Python's library use next?
python examples/next_item.py --head tree    # another head
python examples/next_item.py --int8         # also: what does an export in int8 cost?
python examples/next_item.py --data FOLDER  # lines `user item item ...` in train.txt[.gz], ...
python examples/next_item.py --devices 8    # over 8 GPUs; 8 logical CPUs where there are none
"""

import pathlib

import _common
import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

layers, sampled = kl.layers, kl.layers.SampledSoftmax
#: Makers of heads: from the counts of the items, the number of negatives that a step draws, and the embedding
#: whose rows score the items, too. None: the head has its own rows, as a tree always does.
HEADS = {
    "tree": lambda counts, n, rows: layers.HierarchicalSoftmax(len(counts), counts),
    "huffman": lambda counts, n, rows: layers.HierarchicalSoftmax(len(counts), counts, kl.trees.huffman),
    "full": lambda counts, n, rows: layers.FullSoftmax(len(counts), counts, kernel=rows),
    "sampled": lambda counts, n, rows: sampled(len(counts), n, counts=counts, kernel=rows),
    "in_batch": lambda counts, n, rows: sampled(len(counts), 0, "in_batch", counts, kernel=rows),
    "mixed": lambda counts, n, rows: sampled(len(counts), n, "mixed", counts, kernel=rows),
    "bpr": lambda counts, n, rows: sampled(len(counts), n, "uniform", loss="bpr", kernel=rows),
    "bce": lambda counts, n, rows: sampled(
        len(counts), n, "uniform", loss="binary_crossentropy", kernel=rows
    ),
}
TREES = "tree", "huffman"


def arguments(argv=None):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--data", metavar="PATH", help="lines `user item item ...`; default: Python's functions")
    add("--head", choices=tuple(HEADS), default="sampled", help="the output layer")
    add("--epochs", type=int, default=4)
    add("--minutes", type=float, default=30, help="training stops after so many minutes")
    add("--batch", type=int, default=128, help="sequences in a batch")
    add("--length", type=int, default=50, help="the most items that the model reads")
    add("--dim", type=int, default=64, help="width of all vectors")
    add("--blocks", type=int, default=2, help="blocks of self-attention")
    add("--tied", action="store_true", help="one table for the items that are read and those that are scored")
    add("--samples", type=int, default=1024, help="negatives of the heads that draw some, per step")
    add("--dropout", type=float, default=0.2, help="share of values left out in training")
    add("--learning-rate", type=float, default=2e-3)
    add("--int8", action="store_true", help="export in float32 and in int8, and say what int8 costs")
    args = parser.parse_args(argv)
    if args.tied and args.head in TREES:
        parser.error("--tied goes with the heads that score each item by one row, not with a tree")
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.dim, args.blocks, args.samples = 3, 16, 1, 64
    return args


def rows_of(users, length):
    """Return training rows without what is held out, int32 `[rows, length + 1]`, padded with -1.

    A row begins with the item that the row before it ends with: it is predicted there, and read here.
    """
    known = [user[:-2] for user in users]
    ends = ((user, end) for user in known for end in range(len(user), 1, -length))
    return _common.padded([user[max(0, end - length - 1) : end] for user, end in ends], length + 1)


def batches(rows, batch, seed):
    """Return a dataset of (items, next items), each batch as long as its longest row."""

    def split(rows):
        rows = rows[:, : tf.reduce_max(tf.reduce_sum(tf.cast(rows >= 0, tf.int32), axis=1))]
        # Nothing follows the last item of a row, so it is not read either.
        return {"items": tf.where(rows[:, 1:] < 0, -1, rows[:, :-1])}, rows[:, 1:]

    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=seed)
    return data.batch(batch, drop_remainder=len(rows) >= batch).map(split).prefetch(4)


def held_out(users, length, last, most=None, batch=256):
    """Return batches of `({"items", "seen"}, the item to predict)`: the last item of each user, or another.

    Args:
        users: list of arrays.
        length: int, of the items to read.
        last: int, which item from the end on is predicted: 1 for the test, 2 for the validation.
        most: int, so many users, drawn at random. None: all.
        batch: int, users at a time.
    """
    users = [users[i] for i in np.random.default_rng(0).permutation(len(users))[:most]]
    users.sort(key=len)
    found = []
    for begin in range(0, len(users), batch):
        seen = [user[:-last] for user in users[begin : begin + batch]]
        inputs = {"items": _common.padded([user[-length:] for user in seen]), "seen": _common.padded(seen)}
        found.append((inputs, np.array([user[-last] for user in users[begin : begin + batch]])))
    return found


def build(args, counts):
    """Return a model from items, int `[batch, time]` padded with -1, to what its head scores, and the head.

    It is that of Kang and McAuley, 2018 (https://arxiv.org/abs/1808.09781), but for the normalisation, which
    comes before attention, and without `--tied` for the head's own rows of the items to predict.
    """
    tokens = keras.Input((None,), dtype="int32", name="items")
    rows = layers.ShardedEmbedding(len(counts), args.dim, out_of_range="zero")
    head = HEADS[args.head](counts, min(args.samples, len(counts) // 2), rows if args.tied else None)
    x = keras.layers.Masking()(rows(tokens))  # padding reads zeros
    x = layers.Positions(args.length)(keras.layers.Rescaling(args.dim**0.5)(x))
    x = keras.layers.Dropout(args.dropout, seed=args.seed)(x)
    for _ in range(args.blocks):
        y = keras.layers.LayerNormalization()(x)
        attention = keras.layers.MultiHeadAttention(2, args.dim // 2, dropout=args.dropout, seed=args.seed)
        y = attention(y, y, use_causal_mask=True)
        x = keras.layers.Add()([x, keras.layers.Dropout(args.dropout, seed=args.seed)(y)])  # `+` has no mask
        y = keras.layers.Dense(args.dim, activation="relu")(keras.layers.LayerNormalization()(x))
        y = keras.layers.Dense(args.dim)(keras.layers.Dropout(args.dropout, seed=args.seed)(y))
        x = keras.layers.Add()([x, keras.layers.Dropout(args.dropout, seed=args.seed)(y)])
    return kl.Model({"items": tokens}, head(keras.layers.LayerNormalization()(x))), head


def compiled(args, counts):
    """Return a compiled model, and a predictor of the 10 best items of those that a user does not have."""
    counts = np.maximum(counts, 1)  # an item may occur in what is held out alone
    model, head = build(args, counts)
    if isinstance(head, layers.SampledSoftmax):  # begin with the frequencies, as a tree does by itself
        # Where BPR and binary cross-entropy are least for uniform negatives; for BPR any constant will do.
        constant = 0.0 if head.has_log_probs else np.log(len(counts) / head.num_sampled)
        head.bias.assign(np.log(counts / counts.sum()) + constant)
    model.compile(kl.optimizers.LazyAdam(args.learning_rate), loss=head.loss)
    seen = keras.Input((None,), dtype="int32", name="seen")
    return model, head.predictor(model, k=10, position="last", exclude=seen)


def metrics():
    """Return the metrics. With one item to find, recall is the share of the users whose item is found."""
    return [kl.metrics.RecallAtK(10, name="Recall@10"), kl.metrics.NDCGAtK(10, name="NDCG@10")]


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    data = _common.interactions(args.data, args.share)
    with strategy.scope():
        model, predictor = compiled(args, data.counts)
    ask = tf.function(predictor, reduce_retracing=True)
    validation = held_out(data.users, args.length, last=2, most=2000)
    clock = _common.Clock(args.minutes, lambda: _common.measure(metrics(), ask, validation))
    train = batches(rows_of(data.users, args.length), args.batch, args.seed)
    model.fit(train, epochs=args.epochs, callbacks=[clock], shuffle=False, verbose=2)
    test = held_out(data.users, args.length, last=1)
    found = _common.measure(metrics(), ask, test)
    print("the last item of each user:", ", ".join(f"{name} {value:.2%}" for name, value in found.items()))

    inputs, items = ({name: rows[:5] for name, rows in test[-1][0].items()}, test[-1][1][:5])
    answers = predictor(inputs, training=False)
    for history, item, ids in zip(inputs["seen"], items, answers["ids"].numpy()):
        print("...", *(data.names[i] for i in history[history >= 0][-6:]), f"[{data.names[item]}]")
        print("    ->", *(f"{data.names[i]}{'*' * int(i == item)}" for i in ids[:5]))

    with strategy.scope(), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "recommender.keras"
        predictor.save(path)
        again = keras.models.load_model(path)(inputs)
        np.testing.assert_allclose(again["scores"], answers["scores"], atol=1e-4)
        for dtype in (None, "int8") if args.int8 else ():
            path = pathlib.Path(scratch) / (dtype or "float32")
            kl.export_saved_model(predictor, path, table_dtype=dtype)
            served = tf.saved_model.load(str(path))
            answers = _common.measure(metrics(), lambda inputs, training: served.serve(inputs), test[:8])  # noqa: B023
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20
            print(path.name, f"{size:.1f} MB", ", ".join(f"{n} {v:.2%}" for n, v in answers.items()))
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
