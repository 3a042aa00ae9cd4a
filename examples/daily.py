"""What comes next, in a shop whose items change every day? Train each day, and send what changed.

python examples/daily.py                    # ten days, of 200 new items each
python examples/daily.py --days 30 --keep 5

Every evening the model is tested on the next day, which it has not seen, and trained on it. New items become
rows of the table and classes of the head; those that have not come for some days give their rows back. A
process that has TensorFlow alone serves the model. It gets deltas, and its answers are compared with the
answers of a whole export, to the bit.
"""

import pathlib
import subprocess
import sys
import tempfile

import _common
import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

LENGTH, LIFE, GROUPS = 5, 5, 50  # items of a history, days for which an item is sold, kinds of items
TITLES = "day  recall@10  of day 0   items   new  gone  rows sent  delta, kB  export, kB"


def arguments(argv=None):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--days", type=int, default=10)
    add("--new", type=int, default=200, help="items that are new on a day")
    add("--users", type=int, default=200_000)
    add("--visits", type=int, default=10_000, help="on a day")
    add("--keep", type=int, default=3, help="days after which an item that nobody looked at is removed")
    add("--dim", type=int, default=32)
    add("--epochs", type=int, default=2)
    add("--batch", type=int, default=256)
    args = parser.parse_args(argv)
    if args.quick:
        args.days, args.new, args.users, args.visits = min(args.days, 4), 100, 20_000, 2000
    return args


def visits(day, args):
    """Return the visits of a day: who came, what the user had looked at, and what came next.

    A user looks at items of one group. An item is sold for `LIFE` days, is looked at less on each of them,
    and has a number of twelve digits, from which nothing follows.
    """
    rng = np.random.default_rng([args.seed, day])
    born = day - np.arange(LIFE)
    ids = np.concatenate(
        [np.random.default_rng([args.seed, 1, b + LIFE]).permutation(args.new) for b in born]
    )
    ids = 10**11 + np.repeat(born + LIFE, args.new) * 10**6 + ids * 7
    weight = np.repeat(0.6 ** np.arange(LIFE), args.new) / (1 + rng.permutation(len(ids)) % args.new)
    group = ids // 7 % GROUPS
    found = np.empty((args.visits, LENGTH + 1), np.int64)
    user = rng.integers(0, args.users, args.visits).astype("int32")
    for g in range(GROUPS):
        here, mine = group == g, user % GROUPS == g
        share = weight[here] / weight[here].sum()
        found[mine] = rng.choice(ids[here], (mine.sum(), LENGTH + 1), p=share)
    return {"user": user, "history": found[:, :LENGTH]}, found[:, LENGTH]


def build(args):
    """Return the model, the model that is served, and the vocabulary of both."""
    items = kl.layers.DynamicVocabulary(args.new * (LIFE + 3), evict="lru", name="items")
    rows = items.vocabulary_size()
    user = keras.Input((), dtype="int32", name="user")
    history = keras.Input((LENGTH,), dtype="int64", name="history")
    table = kl.layers.ShardedEmbedding(rows, args.dim, vocabulary=items, combiner="mean")
    parts = [kl.layers.ShardedEmbedding(args.users, args.dim)(user), table(history)]
    hidden = keras.layers.Dense(args.dim)(keras.layers.Concatenate()(parts))
    head = kl.layers.SampledSoftmax(rows, 0, "in_batch", kernel=table, vocabulary=items, use_bias=False)
    model = kl.Model({"user": user, "history": history}, head(hidden))
    model.compile(kl.optimizers.LazyAdam(1e-2), loss=head.loss)
    return model, head.predictor(model, k=10), items


def recall(found, y):
    """Return the share of visits whose next item is among those found."""
    return float(np.mean(np.any(np.asarray(found) == y[:, None], axis=1)))


def train(model, items, x, y, args):
    """Give the items of a day their rows, and train on it. Returns the ids that are new, and those gone."""
    before = set(items.get_vocabulary().values())
    model.fit(x, y, batch_size=args.batch, epochs=args.epochs, verbose=0)
    steps_per_day = args.epochs * -(-len(y) // args.batch)  # which the vocabulary counts
    items.remove(unused_for=args.keep * steps_per_day)
    after = set(items.get_vocabulary().values())
    return after - before, before - after


class Server:
    """A process that serves the model: `serve.py`, which never imports keras_largeout."""

    def __init__(self, export, folder):
        program = pathlib.Path(__file__).with_name("serve.py")
        command = [sys.executable, program, export, "--apply", kl.serving.apply.__file__]
        self.folder, pipe = folder, subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def tell(self, *words):
        """Write a line to the process, and return its answer."""
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def answers(self, x):
        np.savez(f"{self.folder}/inputs.npz", **x)
        said = self.tell(f"{self.folder}/inputs.npz", f"{self.folder}/answers.npz")
        if said != "answered, keras_largeout never imported":
            sys.exit(f"The process that serves did not answer as it must: {said!r}")
        return dict(np.load(f"{self.folder}/answers.npz"))

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


def size(path):
    return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    with kl.distribute.strategy(args.devices).scope():
        model, serving, items = build(args)
    with tempfile.TemporaryDirectory() as folder:
        train(model, items, *visits(0, args), args)
        kl.export_saved_model(serving, f"{folder}/0")
        server, first = Server(f"{folder}/0", folder), tf.saved_model.load(f"{folder}/0")
        print(TITLES)
        for day in range(1, args.days):
            x, y = visits(day, args)
            old = recall(first.serve(x)["ids"], y)
            found = recall(server.answers(x)["ids"], y)  # by the model of yesterday
            new, gone = train(model, items, x, y, args)
            whole, delta = f"{folder}/{day}", f"{folder}/{day}.delta"
            kl.export_saved_model(serving, whole)
            sent = kl.serving.export_delta(whole, base=f"{folder}/{day - 1}", path=delta)
            server.tell(delta)
            expected = tf.saved_model.load(whole)
            expected, served = expected.serve(x), server.answers(x)
            if any(served[name].tobytes() != expected[name].numpy().tobytes() for name in served):
                sys.exit(f"Day {day}: the process that serves has other answers than a whole export")
            known = len(items.get_vocabulary())
            sizes = f"{sent['bytes'] / 1e3:>11,.0f}{size(whole) / 1e3:>12,.0f}"
            changes = f"{known:>8,}{len(new):>6}{len(gone):>6}{sent['changed_rows']:>11,}"
            print(f"{day:>3}{found:>11.1%}{old:>10.1%}{changes}{sizes}")
        code = server.close()
    if code:
        sys.exit(f"The process that serves ended with the code {code}")
    print("The process that serves answered as whole exports do, to the bit")
    if args.save:
        model.save(args.save)


if __name__ == "__main__":
    main()
