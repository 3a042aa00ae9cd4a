"""Penn Treebank by a small LSTM, trained as Zaremba et al. did: published perplexities, and those of heads.

Initial weights, windows, SGD and epochs are from section 4.1 of [Zaremba, Sutskever and Vinyals,
2014](https://arxiv.org/abs/1409.2329), the LSTM without regularization; the limit of the gradients' norm is
that of the medium LSTM there. A text is cut into 20 streams, and the LSTMs keep their states from one window
of a stream to the next. The last words of a text, which fill no window of every stream, are left out.
"""

import math
import time
import types

import _common
import keras
import language_model as example
import numpy as np
import tensorflow as tf

import keras_largeout as kl

#: Perplexities of "Non-regularized LSTM" in table 1 of the paper.
PUBLISHED = {"validation": 120.7, "test": 114.5}
ROWS = ("tree", "full", "dense")
COURSE = ("seconds of processor time", "perplexity in validation")


def arguments(argv=None):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="train, valid, test.txt[.gz], a sentence a line; default: Python's")
    add("--epochs", type=int, default=13)
    add("--full-rate", type=int, default=4, metavar="EPOCHS", help="then each epoch halves the learning rate")
    add("--learning-rate", type=float, default=1.0, help="of the sum over a window's words")
    add("--batch", type=int, default=20, help="streams that a text is cut into")
    add("--steps", type=int, default=20, help="words in a window")
    add("--units", type=int, default=200, help="width of the embedding and of both LSTMs")
    add("--scale", type=float, default=0.1, help="weights begin between this and its negative")
    add("--clip", type=float, default=5.0, help="the most that the norm of all gradients is")
    add("--backup", metavar="DIR", help="back up each epoch, and go on from there when started again")
    args = parser.parse_args(argv)
    args.share = 0.01 if args.quick else 1.0
    if args.quick:
        args.epochs, args.full_rate, args.units = 2, 1, 32
    return args


def read(args):
    """Return the counts of the words, and texts of word ids: to train on, for validation, for the test."""
    files = [str(path) for path in _common.lists_in(args.data)] if args.data else []
    given = types.SimpleNamespace(corpus=files[:1], validation=files[1:], share=args.share)
    corpus = example.read_corpus(given)
    held_out = corpus.validation if files else np.array_split(np.concatenate(corpus.validation), 2)
    # Word 0 is padding, which no text has.
    return corpus.counts[1:], *(text - 1 for text in (np.concatenate(corpus.train), *held_out))


def windows(args, text):
    """Return a dataset of (words read, words to predict), int32 `[batch, steps]`, in the order of a text."""
    length = len(text) // args.batch // args.steps * args.steps
    sides = np.append(np.int32(example.END - 1), text[:-1]), text
    streams = (side[: args.batch * length].reshape(args.batch, -1, args.steps) for side in sides)
    return tf.data.Dataset.from_tensor_slices(tuple(side.swapaxes(0, 1) for side in streams)).prefetch(4)


def build(args, row, counts, text):
    """Return a compiled model, whose loss is summed over the words of a window."""
    words, start = len(counts), keras.initializers.RandomUniform(-args.scale, args.scale)
    of_head = {"kernel_initializer": start.clone(), "bias_initializer": start.clone()}
    of_lstm = {**of_head, "recurrent_initializer": start.clone(), "unit_forget_bias": False}
    of_lstm |= {"return_sequences": True, "stateful": True, "unroll": True}
    tokens = keras.Input(batch_shape=(args.batch, args.steps), dtype="int32")
    x = kl.layers.ShardedEmbedding(words, args.units, embeddings_initializer=start)(tokens)
    for _ in range(2):
        x = keras.layers.LSTM(args.units, **of_lstm)(x)
    if row == "tree":
        vectors = kl.trees.cooccurrence_vectors(text, words)  # similar words share branches
        tree = kl.trees.head_tail(counts, vectors, dim=args.units, tokens=args.batch * args.steps)
        head = kl.layers.HierarchicalSoftmax(words, counts, tree, **of_head)
    elif row == "full":
        head = kl.layers.FullSoftmax(words, **of_head)
    else:
        head = keras.layers.Dense(words, **of_head)
    model = kl.Model(tokens, head(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if row == "dense" else head.loss
    optimizer = kl.optimizers.SGD(args.learning_rate, global_clipnorm=args.clip)
    model.compile(optimizer, loss=loss, loss_weights=[args.steps])
    return model


class Course(_common.Clock):
    """Begin each pass over a text without states, lower the learning rate, and log perplexities."""

    def __init__(self, args):
        super().__init__(clock=time.process_time)
        self.args = args

    def on_epoch_begin(self, epoch, logs=None):
        halved = max(0, epoch + 1 - self.args.full_rate)
        self.model.optimizer.learning_rate = self.args.learning_rate / 2**halved
        self.on_test_begin()
        super().on_epoch_begin(epoch, logs)

    def on_test_begin(self, logs=None):
        for layer in self.model.layers:
            if isinstance(layer, keras.layers.LSTM):
                layer.reset_state()

    def on_epoch_end(self, epoch, logs):
        super().on_epoch_end(epoch, logs)
        logs["perplexity"] = self.perplexity(logs["val_loss"])

    def perplexity(self, loss):
        """Return the perplexity of a loss of windows, all of one length."""
        return math.exp(loss / self.args.steps)


def run(row, argv):
    args = arguments(argv)
    keras.utils.set_random_seed(args.seed)
    counts, *texts = read(args)
    model, course = build(args, row, counts, texts[0]), Course(args)
    train, validation, test = (windows(args, text) for text in texts)
    logs = model.fit(
        train,
        epochs=args.epochs,
        shuffle=False,
        validation_data=validation,
        callbacks=[course, *([kl.callbacks.BackupAndRestore(args.backup)] if args.backup else [])],
        verbose=2,
    ).history
    found = {
        "validation": logs["perplexity"][-1],
        "test": course.perplexity(model.evaluate(test, callbacks=[course], verbose=0)),
    }
    per_step = course.seconds / course.steps
    return {
        **found,
        **{f"published {name}": value for name, value in PUBLISHED.items() if args.data},
        "s": per_step * len(train) * args.epochs,
        "ms/step": 1000 * per_step,
        "GB": _common.peak_memory(),
        "course": list(zip(logs["seconds"], logs["perplexity"])),
    }
