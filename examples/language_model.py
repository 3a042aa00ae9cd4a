"""A word-level language model whose first and last layers have 120 thousand rows, trained in five minutes.

python examples/language_model.py            # the text of the Python installation itself
python examples/language_model.py --head dense            # the same model with Keras's own Dense; also
                                                          # full, sampled (4096 words per step), huffman
python examples/language_model.py --profile      # where the time of a step goes: GRU, embedding, head, ...
python examples/language_model.py --devices 8    # over 8 GPUs; 8 logical CPUs where there are none
python examples/language_model.py --devices 2 --parallel stages   # layers, not batches, are shared out
python examples/language_model.py --corpus train.txt.gz --validation valid.txt.gz --epochs 10 --minutes 60
"""

import argparse
import pathlib
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import _corpus
import keras
import numpy as np
import tensorflow as tf
from _callbacks import Perplexity, Speed, StepParts
from _decoding import beam_search, sample_text
from _dense import DenseSoftmax
from _report import compare, draws, export_and_serve, meet, peak_memory, progress, size, stage

import keras_largeout as kl


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    if args.parallel in ("stages", "sections"):
        strategy = tf.distribute.get_strategy()  # TensorFlow's own: the model itself has the devices
    started = time.perf_counter()
    corpus = read_corpus(args)
    train, validation, tokens_per_step, steps = make_batches(args, corpus)
    with strategy.scope():
        model, head = make_model(args, corpus)
    if args.parallel in ("stages", "sections"):
        model, head = over_devices(args, model, head, corpus)
    history = fit(args, model, head, train, validation, tokens_per_step, steps)
    predictor = head.predictor(model, k=10, position="last")
    contexts = show_predictions(args, corpus, predictor)
    if args.head != "dense":
        show_continuations(args, corpus, model, head, predictor, contexts[0])
    with strategy.scope():
        save_and_reload(args, model, train, contexts)
        export_and_serve(args.export, predictor, {"tokens": contexts}, predictor.predict(contexts, verbose=0))
    if args.plots and draws(strategy):
        draw(args, history)
    meet(strategy)
    peak = peak_memory() / 2**30
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {peak:.1f} GB of memory")


def read_corpus(args):
    with stage("Reading the corpus"):
        if args.corpus:
            corpus = _corpus.text_files(args.corpus, args.validation or (), share=args.share)
        else:
            corpus = _corpus.standard_library(args.seed, share=args.share)
        sizes = [sum(map(len, side)) for side in (corpus.train, corpus.validation)]
        unknown = np.mean(np.concatenate(corpus.validation) == _corpus.UNKNOWN)
        print(f"   {corpus.name}")
        print(f"   {sizes[0]:,} words for training, {len(corpus.words):,} different ones")
        print(f"   {sizes[1]:,} words for validation, {unknown:.1%} of them unknown")
    return corpus


def make_batches(args, corpus):
    """Return datasets for training (endless) and validation, words predicted in a step, steps in an epoch."""
    rows = _corpus.windows(corpus.train, args.steps)
    per_step = args.batch * np.count_nonzero(rows[:, 1:]) / len(rows)
    steps = max(1, int(min(len(rows) / args.batch, args.epoch_tokens / per_step)))
    train = _corpus.batches(rows, args.batch, corpus.first_rare, seed=args.seed)

    # The model reads validation text in longer pieces: fewer words are predicted from a cold start.
    held_out = _corpus.windows(corpus.validation, 4 * args.steps)
    limit = max(1, args.validation_tokens // (4 * args.steps))
    if len(held_out) > limit:
        held_out = held_out[np.random.default_rng(args.seed).permutation(len(held_out))[:limit]]
    return train, _corpus.batches(held_out, max(1, args.batch // 4)), per_step, steps


def make_model(args, corpus):
    vocab = len(corpus.words)
    with stage(f"Building the model, with {args.head} as its head"):
        head = make_head(args, corpus.counts, corpus.train)
        model = build(args, head, vocab)
        if args.head == "dense":
            logits = args.batch * args.steps * vocab * 4 / 2**30
            print(f"   each step makes logits of {logits:.1f} GB, and gradients of the same size")
        elif hasattr(head, "tree"):
            print(f"   {head.tree}")
        print(f"   {model.count_params():,} weights: embedding {args.dim} wide, GRU of {args.units}, head")
    return model, head


def make_head(args, counts, documents=None):
    """Return the output layer: a tree of the words, all words, some of them per step, or Keras's `Dense`."""
    vocab = len(counts)
    if args.head == "full":
        return kl.layers.FullSoftmax(vocab, counts=counts)
    if args.head == "sampled":
        return kl.layers.SampledSoftmax(vocab, min(4096, vocab // 4), "log_uniform", counts, seed=args.seed)
    if args.head == "dense":
        return DenseSoftmax(vocab, counts=counts)
    if args.head == "huffman":
        return kl.layers.HierarchicalSoftmax(vocab, counts=counts, tree=kl.trees.huffman(counts, arity=8))
    # Words that occur in similar places share branches of the tree.
    vectors = None if documents is None else kl.trees.cooccurrence_vectors(documents, vocab)
    tree = kl.trees.head_tail(counts, vectors, dim=args.units, tokens=args.batch * args.steps)
    return kl.layers.HierarchicalSoftmax(vocab, counts=counts, tree=tree)


def build(args, head, vocab):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = kl.layers.ShardedEmbedding(vocab, args.dim, mask_zero=True)(tokens)
    x = keras.layers.GRU(args.units, return_sequences=True)(x)
    model = kl.Model(tokens, head(x))
    return compiled(args, model, head)


def compiled(args, model, head):
    model.compile(kl.optimizers.LazyAdam(args.learning_rate), loss=head.loss)
    return model


def over_devices(args, model, head, corpus):
    """Return the model with its layers over the devices, and its head: `kl.distribute.parallelize`."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [f"{kind}:{i}" for i in range(args.devices)]
    parts = {"microbatches": 4} if args.parallel == "stages" else {}
    # For the trial of its layers. (Each look at `train` would shuffle it again.)
    words = np.resize(np.concatenate(corpus.train), (args.batch, args.steps + 1)).astype("int32")
    with stage(f"In {args.parallel} over {args.devices} devices"):
        model = kl.distribute.parallelize(
            model, args.parallel, devices, sample=(words[:, :-1], words[:, 1:]), **parts
        )
        head = model.get_layer(head.name)
    return compiled(args, model, head), head


def fit(args, model, head, train, validation, tokens_per_step, steps):
    """Trains; returns what the plots need."""
    epoch = steps * tokens_per_step
    title = f"Training: {args.epochs} x {epoch / 1e6:.2f} M words, at most {args.minutes:g} minutes"
    with stage(title):
        speed = Speed(tokens_per_step, args.minutes)
        perplexity = Perplexity(validation, head.make_loss(reduction="sum"))
        verbose, callbacks = progress()
        if args.profile:
            parts = StepParts(layers_of(model, head))
            callbacks = [parts, *callbacks]
        history = model.fit(
            train,
            epochs=args.epochs,
            steps_per_epoch=steps,
            shuffle=False,  # the dataset does that itself
            callbacks=[speed, perplexity, *callbacks],
            verbose=verbose,
        ).history
        last = history["val_perplexity"][-1]
        print(f"   validation perplexity {last:.1f} after {speed.seconds:.0f} s of training")
        if args.profile:
            print(*("   " + line for line in parts.lines()), sep="\n")
    return {**history, "seconds": speed.epoch_seconds, "curve": speed.curve}


def layers_of(model, head):
    """Return the scopes of a training step, and the parts of the model that they belong to."""
    kinds = {kl.layers.ShardedEmbedding: "embedding", keras.layers.GRU: "GRU"}
    parts = {layer.name: kinds[type(layer)] for layer in model.layers if type(layer) in kinds}
    return {**parts, head.name: "head", "compile_loss": "head"}


def show_predictions(args, corpus, predictor, examples=6, shown=5):
    """Prints the most probable next words for places in the validation text; returns these contexts."""
    rng = np.random.default_rng(args.seed)
    with stage("What comes next? (probabilities of the model; in brackets what the text says)"):
        contexts = []
        for _ in range(examples):
            text = np.append(_corpus.END, corpus.validation[rng.integers(len(corpus.validation))])
            text = text.astype(np.int32)
            at = rng.integers(min(args.steps, len(text) - 1), len(text))
            context = text[max(0, at - args.steps) : at]
            contexts.append(np.pad(context, (0, args.steps - len(context))))
            answer = predictor.predict(contexts[-1][None], verbose=0)
            print(f"   ... {corpus.text(context[-12:])} [{corpus.words[text[at]]}]")
            best = zip(np.exp(answer["scores"][0, :shown]), answer["ids"][0, :shown])
            print("       " + "   ".join(f"{p:.0%} {corpus.words[i]}" for p, i in best))
    return np.stack(contexts)


def show_continuations(args, corpus, model, head, predictor, context, length=12):
    """Prints how the first of these texts may go on."""
    with stage(f"How does the first go on? ({length} words, or up to the end of its file)"):
        for score, words in beam_search(predictor, context, length, beams=4, end=_corpus.END)[:2]:
            print(f"   beam search, log-probability {score:.1f}: {corpus.text(words)}")
        seed = keras.random.SeedGenerator(args.seed)  # a number would draw every word alike
        for temperature in (0.5, 1.0):
            how = {"temperature": temperature, "top_k": 50, "top_p": 0.95, "seed": seed}
            words = sample_text(model, head, context, length, end=_corpus.END, **how)
            print(f"   sampled at temperature {temperature}: {corpus.text(words)}")


def save_and_reload(args, model, train, contexts):
    """Saves the model and loads it: the copy must predict the same, and learn on in the same way."""
    with stage("Saving, loading back, training on"), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        print(f"   {path}: {size(path)}")
        predictors = [m.layers[-1].predictor(m, k=10, position="last") for m in (model, loaded)]
        answers = [predictor.predict(contexts, verbose=0) for predictor in predictors]
        compare("answers of the loaded model", *answers)
        following = list(train.take(3))
        losses = [{"loss": np.array([m.train_on_batch(*b) for b in following])} for m in (model, loaded)]
        compare("losses of the next 3 steps", *losses)


def draw(args, history):
    with stage(f"Plots, in {args.plots}"):
        from _plots import language_model as plots

        def model_for(head, counts):
            settings = argparse.Namespace(**{**vars(args), "head": head})
            return build(settings, make_head(settings, counts), len(counts))

        plots.training(args.plots, args.head, history)
        sizes = (3_000, 10_000) if args.quick else (10_000, 30_000, 100_000, 300_000)
        plots.speed(args.plots, model_for, sizes, args.batch, args.steps)


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--corpus", nargs="+", metavar="FILE", help="text or .gz, a sentence a line")
    add("--validation", nargs="+", metavar="FILE", help="held-out text; default: the end of each corpus file")
    add(
        "--head",
        choices=("tree", "huffman", "full", "sampled", "dense"),
        default="tree",
        help="the output layer",
    )
    add("--devices", type=int, default=1, help="train over so many GPUs, or logical CPUs")
    add(
        "--parallel",
        choices=("data", "stages", "sections"),
        default="data",
        help="what the devices share out: the batches (and tables), the layers, or parts of layers",
    )
    add("--epochs", type=int, default=4)
    add("--epoch-tokens", type=int, default=1_700_000, help="words in an epoch, if the corpus has more")
    add("--minutes", type=float, default=4, help="training stops after so many minutes")
    add("--batch", type=int, default=64, help="windows in a batch")
    add("--steps", type=int, default=50, help="words in a window")
    add("--dim", type=int, default=128, help="width of the embedding")
    add("--units", type=int, default=256, help="width of the GRU")
    add("--learning-rate", type=float, default=5e-3)
    add("--validation-tokens", type=int, default=100_000, help="validate on at most so many words")
    add("--seed", type=int, default=0)
    add("--profile", action="store_true", help="print the share of each part of the model in a step")
    add("--quick", action="store_true", help="a little text, one short epoch: does everything work?")
    add("--plots", metavar="DIR", help="PNGs of the loss, and of the speed by size of the vocabulary")
    add("--save", metavar="FILE.keras", help="keep the model; default: saved for a test, then removed")
    add("--export", metavar="DIR", help="keep the exported model; default: likewise")
    args = parser.parse_args()
    if args.validation and not args.corpus:
        parser.error("--validation goes with --corpus")
    if args.parallel != "data" and args.devices < 2:
        parser.error(f"--parallel {args.parallel} goes with --devices 2, or more")
    args.share = 0.05 if args.quick else 1.0
    if args.quick:
        args.epochs, args.epoch_tokens, args.validation_tokens = 1, 100_000, 10_000
    return args


if __name__ == "__main__":
    main()
