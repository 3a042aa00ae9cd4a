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


@tf.custom_gradient
def recurrence(inputs, kernel, recurrent, bias, first, first_cell):
    """Return the hidden vectors of an LSTM, `[time, batch, units]`, its last one, and its last cell.

    The inputs of all words take one product with `kernel`, and each gradient of weights is one product. Keras
    has as many as there are words, and sums their gradients.
    """
    steps, width = inputs.shape[0], kernel.shape[0]
    flat = tf.reshape(inputs, [-1, width])
    given = tf.split(tf.matmul(flat, kernel) + bias, steps)
    hidden, cells, gates = [first], [first_cell], []
    for step in range(steps):
        i, f, g, o = tf.split(given[step] + tf.matmul(hidden[-1], recurrent), 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        cells.append(f * cells[-1] + i * g)
        gates.append((i, f, g, o, tf.tanh(cells[-1])))
        hidden.append(o * gates[-1][-1])

    def gradient(of_hidden, *_):
        of_gates, of_cell, of_next = [None] * steps, tf.zeros_like(first), tf.zeros_like(first)
        for step in reversed(range(steps)):
            i, f, g, o, squashed = gates[step]
            of_output = of_hidden[step] + of_next
            of_cell += of_output * o * (1 - squashed**2)
            parts = of_cell * g, of_cell * cells[step], of_cell * i, of_output * squashed
            slopes = i * (1 - i), f * (1 - f), 1 - g**2, o * (1 - o)
            of_gates[step] = tf.concat([part * slope for part, slope in zip(parts, slopes)], axis=1)
            of_cell *= f
            of_next = tf.matmul(of_gates[step], recurrent, transpose_b=True)
        of_gates = tf.concat(of_gates, axis=0)
        return (
            tf.reshape(tf.matmul(of_gates, kernel, transpose_b=True), tf.shape(inputs)),
            tf.matmul(flat, of_gates, transpose_a=True),
            tf.matmul(tf.concat(hidden[:-1], axis=0), of_gates, transpose_a=True),
            tf.reduce_sum(of_gates, axis=0),
            None,  # a window teaches nothing to the one before it
            None,
        )

    return (tf.stack(hidden[1:]), hidden[-1], cells[-1]), gradient


class LSTM(keras.layers.LSTM):
    """Keras's LSTM, stateful and over windows of a fixed length, in little more than half the time."""

    def call(self, sequences, initial_state=None, mask=None, training=False):
        weights = self.cell.kernel, self.cell.recurrent_kernel, self.cell.bias, *self.states
        words_first = tf.transpose(sequences, [1, 0, 2])
        hidden, *states = recurrence(words_first, *map(tf.convert_to_tensor, weights))
        for variable, state in zip(self.states, states):
            variable.assign(state)
        return tf.transpose(hidden, [1, 0, 2])


def build(args, row, counts, text):
    """Return a compiled model, whose loss is summed over the words of a window."""
    words, start = len(counts), keras.initializers.RandomUniform(-args.scale, args.scale)
    of_head = {"kernel_initializer": start.clone(), "bias_initializer": start.clone()}
    of_lstm = {**of_head, "recurrent_initializer": start.clone(), "unit_forget_bias": False}
    tokens = keras.Input(batch_shape=(args.batch, args.steps), dtype="int32")
    x = kl.layers.ShardedEmbedding(words, args.units, embeddings_initializer=start)(tokens)
    for _ in range(2):
        x = LSTM(args.units, **of_lstm, return_sequences=True, stateful=True)(x)
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
            if isinstance(layer, LSTM):
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
