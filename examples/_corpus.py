"""Text to integers: the corpora of the language model, their vocabulary, their windows."""

import collections
import dataclasses
import gzip
import hashlib
import pathlib
import re
import sysconfig

import numpy as np
import tensorflow as tf

PAD, UNKNOWN, END = 0, 1, 2
SPECIAL = ("<pad>", "<unk>", "<end>")

#: How often a word that occurs once in the training text is read as unknown, so that the model learns what
#: unknown words look like.
_UNKNOWN_RATE = 0.1


@dataclasses.dataclass
class Corpus:
    """Documents as word ids. Every document ends in `END`.

    Attributes:
        name: what the text is, for people.
        words: the vocabulary: `SPECIAL`, then the words of the training text, most frequent first.
        counts: float64 `[len(words)]`, how often each occurs in the training text; positive.
        train, validation: lists of int32 arrays, a document each.
        first_rare: words from this id on occur once and are at times read as unknown.
    """

    name: str
    words: list
    counts: np.ndarray
    train: list
    validation: list
    first_rare: int

    def text(self, ids):
        return " ".join(self.words[i] for i in ids)


def standard_library(seed=0, validation=0.05, share=1.0):
    """Return the Python files of the running Python's standard library, without what was installed into it.

    Whether a file is for training or validation, or is left out when `share` is below 1, follows from a hash
    of its path and the seed.
    """
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    train, held_out = [], []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if re.match(r"(site|dist)-packages/", name) or _draw(f"{seed}/share/{name}") >= share:
            continue
        side = held_out if _draw(f"{seed}/validation/{name}") < validation else train
        side.append(_code(path))
    python = sysconfig.get_python_version()
    return index(
        f"{len(train) + len(held_out)} files of the Python {python} standard library", train, held_out
    )


def text_files(paths, validation_paths=(), validation=0.05, share=1.0):
    """Return text files, plain or .gz, one sentence a line; a file is one document, lines end in `END`.

    Without validation files, the last lines of every file are held out.
    """
    train, held_out = [], [_read_lines(path) for path in validation_paths]
    for path in paths:
        lines = _read_lines(path)
        lines = lines[: max(1, int(len(lines) * share))]
        if not validation_paths:
            cut = int(len(lines) * (1 - validation))
            held_out.append(lines[cut:])
            lines = lines[:cut]
        train.append(lines)
    name = ", ".join(pathlib.Path(p).name for p in paths)
    return index(name, *([_sentences(d) for d in side] for side in (train, held_out)))


def index(name, train, validation):
    """Return a `Corpus` from documents that are iterables of words; the words of `train` are the
    vocabulary.
    """
    order_seen = collections.defaultdict()
    order_seen.default_factory = order_seen.__len__
    first = [order_seen[word] for word in SPECIAL]
    train, validation = (
        [np.fromiter(map(order_seen.__getitem__, words), np.int32) for words in side]
        for side in (train, validation)
    )
    train, validation = ([d for d in side if len(d)] for side in (train, validation))
    if not train or not validation:
        raise ValueError(f"No words {'to validate' if train else 'to train'} on in: {name}")
    counts = np.bincount(np.concatenate(train), minlength=len(order_seen)).astype(np.float64)
    known = np.flatnonzero(counts[len(first) :]) + len(first)
    kept = np.concatenate([first, known[np.argsort(-counts[known], kind="stable")]])
    new_id = np.full(len(counts), UNKNOWN, np.int32)
    new_id[kept] = np.arange(len(kept))
    seen = list(order_seen)
    counts = counts[kept]
    # A text that marks its unknown words itself needs no others.
    first_rare = len(kept)
    if counts[UNKNOWN] == 0:
        first_rare = len(first) + int(np.count_nonzero(counts[len(first) :] > 1))
    counts[UNKNOWN] += _UNKNOWN_RATE * (len(kept) - first_rare)
    return Corpus(
        name=name,
        words=[seen[i] for i in kept],
        counts=np.maximum(counts, 0.01),
        train=[new_id[d] for d in train],
        validation=[new_id[d] for d in validation],
        first_rare=first_rare,
    )


def windows(documents, steps):
    """Cuts documents into windows in which every word is a target once.

    Args:
        documents: int arrays that end in `END`.
        steps: predictions in a window.

    Returns:
        int32 `[n, steps + 1]`: words 0 .. steps - 1 are read, words 1 .. steps predicted. A document
        begins with `END` (what comes before its first word); its last window is filled up with `PAD`.
    """
    rows = [np.zeros((0, steps + 1), np.int32)]
    for document in documents:
        n = -(-len(document) // steps)
        text = np.full(n * steps + 1, PAD, np.int32)
        text[0] = END
        text[1 : len(document) + 1] = document
        rows.append(text[np.arange(n)[:, None] * steps + np.arange(steps + 1)])
    return np.concatenate(rows)


def batches(windows, batch, first_rare=None, seed=None):
    """Return a `tf.data.Dataset` of (words read, words to predict), both int32 `[batch, steps]`.

    Args:
        windows: as made by `windows`.
        batch: windows in a batch.
        first_rare: see `Corpus`; None leaves rare words as they are.
        seed: shuffles, again at each pass, and repeats forever; None goes through the windows once.
    """
    dataset = tf.data.Dataset.from_tensor_slices(windows)
    if seed is not None:
        dataset = dataset.shuffle(len(windows), seed=seed).repeat()

    def split(rows):
        if first_rare is not None:
            hidden = (rows >= first_rare) & (tf.random.uniform(tf.shape(rows), seed=seed) < _UNKNOWN_RATE)
            rows = tf.where(hidden, UNKNOWN, rows)
        targets = rows[:, 1:]
        # Nothing is predicted after the last word, so it is not read either: one mask serves both.
        return tf.where(targets == PAD, PAD, rows[:, :-1]), targets

    return dataset.batch(batch).map(split).prefetch(4)


def _draw(name):
    """Return a number in [0, 1) that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def _code(path):
    yield from re.findall(r"\w+|[^\w\s]", path.read_text("utf-8", "replace"))
    yield SPECIAL[END]


def _read_lines(path):
    with (gzip.open if str(path).endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def _sentences(lines):
    for line in lines:
        yield from line.split()
        yield SPECIAL[END]
