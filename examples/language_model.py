"""A language model over 117 thousand words: its first and its last layer are large, and it trains in minutes.

python examples/language_model.py                 # on the text of Python's own standard library
python examples/language_model.py --head full     # another head: huffman, full, sampled
python examples/language_model.py --devices 8     # over 8 GPUs; 8 logical CPUs where there are none
python examples/language_model.py --devices 2 --parallel stages         # the devices share out the layers
python examples/language_model.py --corpus train.txt.gz --validation valid.txt.gz     # a sentence a line
"""

import collections
import gzip
import pathlib
import re
import types

import _common
import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

PAD, UNKNOWN, END = 0, 1, 2
SPECIAL = ("<pad>", "<unk>", "<end>")
RARE = 0.1  # how often a word that occurs once is read as unknown, so that the model learns what that means


def arguments(argv=None):
    parser = _common.parser(__doc__)
    add = parser.add_argument
    add("--corpus", nargs="+", metavar="FILE", help="text or .gz, a sentence a line; default: Python's files")
    add("--validation", nargs="+", metavar="FILE", help="held-out text of --corpus")
    add("--head", choices=("tree", "huffman", "full", "sampled"), default="tree", help="the output layer")
    add("--parallel", choices=("data", "stages", "sections"), default="data", help="what is shared out")
    add("--epochs", type=int, default=4)
    add("--epoch-tokens", type=int, default=1_700_000, help="words in an epoch, if the corpus has more")
    add("--minutes", type=float, default=4, help="training stops after so many minutes")
    add("--batch", type=int, default=64, help="windows in a batch")
    add("--steps", type=int, default=50, help="words in a window")
    add("--dim", type=int, default=128, help="width of the embedding")
    add("--units", type=int, default=256, help="width of the GRU")
    add("--learning-rate", type=float, default=5e-3)
    add("--backup", metavar="DIR", help="back up each epoch, and go on from there when started again")
    args = parser.parse_args(argv)
    if bool(args.corpus) != bool(args.validation):
        parser.error("--corpus goes with --validation")
    if args.parallel != "data" and (args.devices or 1) < 2:
        parser.error(f"--parallel {args.parallel} goes with --devices 2, or more")
    args.share, args.validation_tokens = (0.05, 10_000) if args.quick else (1.0, 100_000)
    if args.quick:
        args.epochs, args.epoch_tokens = 1, 100_000
    return args


def read_corpus(args):
    """Return the words, their counts, and texts of word ids. Those from `first_rare` on occur once."""
    sides = [], []
    if args.corpus:
        for texts, paths in zip(sides, (args.corpus, args.validation)):
            for path in paths:
                with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as lines:
                    texts.append([word for line in lines for word in [*line.split(), "<end>"]])
    else:
        for name, path in _common.library_files(args.share):
            words = re.findall(r"\w+|[^\w\s]", path.read_text("utf-8", "replace"))
            sides[_common.draw(f"0/validation/{name}") < 0.05].append([*words, "<end>"])
    counted = collections.Counter(word for text in sides[0] for word in text)
    words = [*SPECIAL, *(word for word, _ in counted.most_common() if word not in SPECIAL)]
    number = {word: i for i, word in enumerate(words)}
    train, validation = ([np.int32([number.get(w, UNKNOWN) for w in t]) for t in side] for side in sides)
    counts = np.array([counted[word] for word in words], float)
    first_rare = len(words)
    if not counts[UNKNOWN]:  # the text does not mark unknown words itself
        first_rare = len(SPECIAL) + np.count_nonzero(counts[len(SPECIAL) :] > 1)
        counts[UNKNOWN] = RARE * (len(words) - first_rare)
    print(f"{counts.sum():,.0f} words to train on, {len(words):,} of them different")
    corpus = {"words": words, "counts": np.maximum(counts, 0.01), "first_rare": first_rare}
    return types.SimpleNamespace(**corpus, train=train, validation=validation)


def windows(texts, steps):
    """Cut texts into int32 `[n, steps + 1]`, each word a target once. A text begins after `END`."""
    rows = []
    for text in texts:
        count = -(-len(text) // steps)
        padded = np.full(count * steps + 1, PAD, np.int32)
        padded[0], padded[1 : len(text) + 1] = END, text
        rows.append(padded[np.arange(count)[:, None] * steps + np.arange(steps + 1)])
    return np.concatenate(rows)


def batches(rows, batch, first_rare=None, seed=None):
    """Return a dataset of (words read, words to predict), `[batch, steps]`; endless with a seed."""
    data = tf.data.Dataset.from_tensor_slices(rows)
    if seed is not None:
        data = data.shuffle(len(rows), seed=seed).repeat()

    def split(rows):
        if first_rare is not None:
            hidden = (rows >= first_rare) & (tf.random.uniform(tf.shape(rows), seed=seed) < RARE)
            rows = tf.where(hidden, UNKNOWN, rows)
        targets = rows[:, 1:]
        return tf.where(targets == PAD, PAD, rows[:, :-1]), targets  # one mask serves both

    return data.batch(batch).map(split).prefetch(4)


def make_head(args, corpus):
    """Return the output layer: a tree of the words, all of them, or a sample of them in each step."""
    words, counts = len(corpus.words), corpus.counts
    if args.head == "full":
        return kl.layers.FullSoftmax(words, counts)
    if args.head == "sampled":
        return kl.layers.SampledSoftmax(words, min(4096, words // 4), "log_uniform", counts, seed=args.seed)
    if args.head == "huffman":
        return kl.layers.HierarchicalSoftmax(words, counts=counts, tree=kl.trees.huffman(counts, arity=8))
    vectors = kl.trees.cooccurrence_vectors(corpus.train, words)  # similar words share branches
    tree = kl.trees.head_tail(counts, vectors, dim=args.units, tokens=args.batch * args.steps)
    return kl.layers.HierarchicalSoftmax(words, counts=counts, tree=tree)


def build(args, words, head):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = kl.layers.ShardedEmbedding(words, args.dim, mask_zero=True)(tokens)
    x = keras.layers.GRU(args.units, return_sequences=True)(x)
    return kl.Model(tokens, head(x))


def fit(args, model, corpus):
    """Train. Return what Keras recorded, with the words per second."""
    rows, held_out = windows(corpus.train, args.steps), windows(corpus.validation, 4 * args.steps)
    most = max(1, args.validation_tokens // (4 * args.steps))
    held_out = np.random.default_rng(args.seed).permutation(held_out)[:most]
    per_step = args.batch * np.count_nonzero(rows[:, 1:]) / len(rows)
    steps = max(1, int(min(len(rows) / args.batch, args.epoch_tokens / per_step)))
    clock = _common.Clock(args.minutes)
    history = model.fit(
        batches(rows, args.batch, corpus.first_rare, args.seed),
        epochs=args.epochs,
        steps_per_epoch=steps,
        shuffle=False,  # the dataset does that itself
        validation_data=batches(held_out, max(1, args.batch // 4)),
        callbacks=[clock, *([kl.callbacks.BackupAndRestore(args.backup)] if args.backup else [])],
        verbose=2,
    ).history
    speed = clock.steps * per_step / clock.seconds
    print(f"validation perplexity {history['val_perplexity'][-1]:.4f}, {speed:,.0f} words per second")
    return {**history, "words/s": speed}


def continue_text(model, head, words, steps, length=12):
    """Return words that follow, each drawn from what the model expects."""
    words, draws = list(words), keras.random.SeedGenerator(0)
    for _ in range(length):
        hidden = model.predict(np.array([words[-steps:]]), verbose=0)[:, -1]
        words.append(int(head.sample(hidden, temperature=0.7, top_p=0.95, seed=draws)[0]))
    return words[-length:]


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    if args.parallel != "data":  # the model itself has the devices
        strategy = tf.distribute.get_strategy()
    corpus = read_corpus(args)
    with strategy.scope():
        head = make_head(args, corpus)
        model = build(args, len(corpus.words), head)
        if args.parallel != "data":  # the layers, or parts of them, on several devices
            kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
            devices, some = [f"{kind}:{i}" for i in range(args.devices)], windows(corpus.train, args.steps)
            options = {"microbatches": 4 if args.parallel == "stages" else 1}
            options["sample"] = some[: args.batch, :-1], some[: args.batch, 1:]
            model = kl.distribute.parallelize(model, args.parallel, devices, **options)
            head = model.get_layer(head.name)
        optimizer = kl.optimizers.LazyAdam(args.learning_rate)
        model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.Perplexity()])
    fit(args, model, corpus)

    predictor = head.predictor(model, k=10, position="last")
    texts = np.stack([text[-args.steps :] for text in corpus.validation if len(text) > args.steps][:6])
    answers = predictor.predict(texts[:, :-1], verbose=0)
    for text, scores, ids in zip(texts, answers["scores"], answers["ids"]):
        print("...", " ".join(corpus.words[i] for i in text[-12:-1]), f"[{corpus.words[text[-1]]}]")
        print("      ", "   ".join(f"{np.exp(s):.0%} {corpus.words[i]}" for s, i in zip(scores[:5], ids[:5])))
    print("goes on:", *(corpus.words[i] for i in continue_text(model, head, texts[0], args.steps)))

    with strategy.scope(), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        again = loaded.layers[-1].predictor(loaded, k=10, position="last").predict(texts[:, :-1], verbose=0)
        np.testing.assert_allclose(again["scores"], answers["scores"], atol=1e-4)
        _common.check_export(args.export, predictor, {"tokens": texts[:, :-1]})
    print(f"at most {_common.peak_memory():.1f} GB of memory")


if __name__ == "__main__":
    main()
