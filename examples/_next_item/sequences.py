"""What users did, one item after the other: where it comes from, and how it is cut for training and testing.

The data that every machine has are the functions of Python's standard library. A user is a function (`def`
or `async def`, methods and nested functions too). An item is a name that it uses: a parameter, a variable, a
function that it calls, an attribute (`os.path.join` is three names: `os`, `path`, `join`). A function's
sequence has each of its names once, where it is used first, in the order of the text. What stands in a
function within the function belongs to that one alone, and decorators and default values to none. Names that
fewer than `least` functions use are left out, then functions with fewer than 5 names.

Ids are those of classes: 0 .. n - 1, the item that occurs most often in training first. -1 is padding.
"""

import ast
import collections
import dataclasses
import gc
import gzip
import pathlib
import sysconfig
import tokenize

import numpy as np
import tensorflow as tf
from _functions import library_files
from _report import stage

#: Shorter sequences are left out: the last two items are held out, and from less than 3 nothing is learned.
SHORTEST = 5


@dataclasses.dataclass
class Sequences:
    """What each user did.

    Attributes:
        name: what the data are, for people.
        users: list of int32 arrays, the items of each user in their order, no item twice.
        counts: int64 `[items]`, how often each occurs in training: in all but the last two of each user.
        item_names, user_names: lists of str, or None where these are mere numbers.
    """

    name: str
    users: list
    counts: np.ndarray
    item_names: list = None
    user_names: list = None

    def rows(self, length):
        """Return training rows: int32 `[rows, length + 1]`, padded with -1, without what is held out.

        Long sequences are cut, from their end on. A row begins with the item that the row before it ends
        with: it is predicted there, and read here.
        """
        rows = []
        for user in self.users:
            known = user[:-2]
            for end in range(len(known), 1, -length):
                rows.append(known[max(0, end - length - 1) : end])
        return padded(rows, length + 1)

    def held_out(self, last, most=None, seed=0):
        """Return the histories and next items of the validation (`last=2`) or of the test (`last=1`).

        Args:
            last: int, which item from the end on is the one to predict; the history is what is before it.
            most: int or None: only so many users, drawn at random.
            seed: int, of this draw.

        Returns:
            `(users, histories, items)`: indices of users, those with a short history first; list of arrays;
            int32 `[users]`.
        """
        chosen = np.arange(len(self.users))
        if most is not None and most < len(chosen):
            chosen = np.sort(np.random.default_rng(seed).choice(chosen, most, replace=False))
        chosen = sorted(chosen, key=lambda user: len(self.users[user]))
        histories = [self.users[user][:-last] for user in chosen]
        return chosen, histories, np.array([self.users[user][-last] for user in chosen], np.int32)


def padded(rows, width):
    """Return int32 `[rows, width]`, filled up with -1."""
    out = np.full((len(rows), width), -1, np.int32)
    for filled, row in zip(out, rows):
        filled[: len(row)] = row
    return out


def batches(rows, batch, seed):
    """Return an endless dataset of (items, next items), each batch as long as its longest row."""

    def split(rows):
        longest = tf.reduce_max(tf.reduce_sum(tf.cast(rows >= 0, tf.int32), axis=1))
        rows = rows[:, :longest]
        # Nothing follows the last item of a row, so it is not read either.
        return {"items": tf.where(rows[:, 1:] < 0, -1, rows[:, :-1])}, rows[:, 1:]

    dataset = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=seed).repeat()
    return dataset.batch(batch, drop_remainder=True).map(split).prefetch(4)


def read(args):
    """Return the `Sequences` that the options of an example ask for; it prints what they are.

    Args:
        args: its `data` is a path, or None for the standard library by `least`, `seed` and `share`.
    """
    with stage("Reading the sequences"):
        if args.data:
            sequences = text_files(args.data)
        else:
            sequences = standard_library(args.least, args.seed, share=args.share)
        lengths, counts = [len(user) for user in sequences.users], sequences.counts
        mean = np.mean(lengths)
        print(f"   {sequences.name}")
        print(f"   {len(lengths):,} sequences of {SHORTEST} to {max(lengths)} items, {mean:.1f} on average")
        print(f"   {len(counts):,} items, {np.mean(counts < 5):.0%} of them less than 5 times in training")
        print(f"   Recall@10 of the most frequent items: {most_frequent(sequences.held_out(1)):.1%}")
    return sequences


def most_frequent(held_out, k=10):
    """Return recall@k of the same k items for everyone: the most frequent ones that the user does not have
    yet.
    """
    _, histories, items = held_out
    first = np.arange(k + max(map(len, histories)))  # items are sorted by their frequency
    hits = [item in first[~np.isin(first, history)][:k] for history, item in zip(histories, items)]
    return float(np.mean(hits))


def show_best(title, sequences, best, seed, examples=5, shown=5):
    """Prints the best items for some users of the test, where items have names.

    Args:
        title: str, a question.
        sequences: `Sequences`.
        best: function from what `Sequences.held_out` returns to int `[users, k]`, the best items first.
        seed: int, draws the users.
        examples, shown: int, how many users, and how many items of each.
    """
    if sequences.item_names is None:
        return
    with stage(f"{title} (the best first; * where it is so)"):
        held_out = sequences.held_out(1, examples, seed)
        for user, history, item, ids in zip(*held_out, best(held_out)):
            print(f"   {sequences.user_names[user]}")
            names = [sequences.item_names[i] for i in history[-6:]]
            print("       ... " + "   ".join(names) + f" [{sequences.item_names[item]}]")
            said = (sequences.item_names[i] + "*" * int(i == item) for i in ids[:shown])
            print("       -> " + "   ".join(said))


def standard_library(least=2, seed=0, share=1.0):
    """Return the functions of the running Python's standard library, and the names that they use.

    Args:
        least: int, how many functions must use a name.
        seed, share: files are left out when `share` is below 1; which follows from their paths and the seed.
    """
    found, files = {}, 0
    gc.disable()  # syntax trees have no cycles, and the collector would look through them again and again
    for path, file in library_files(seed, share):
        try:
            with tokenize.open(file) as text:
                tree = ast.parse(text.read())
        except (SyntaxError, UnicodeDecodeError, ValueError):  # some test files are meant to be broken
            continue
        files += 1
        found |= {f"{path}, line {line}: {name}": names for name, line, names in functions_of(tree)}
    gc.enable()
    common = collections.Counter(name for names in found.values() for name in names)
    found = {user: [name for name in names if common[name] >= least] for user, names in found.items()}
    python = sysconfig.get_python_version()
    title = (
        f"functions in {files} files of the Python {python} standard library, and the names that each uses"
    )
    return index(title, found)


def functions_of(tree):
    """Return a list of `(name, line, names that it uses)` of all functions in a syntax tree."""
    functions, nodes = [], [(tree, [])]
    while nodes:
        node, used = nodes.pop()
        kind = type(node)
        if kind is ast.Name:
            used.append((node.lineno, node.col_offset, node.id))
            continue
        if kind is ast.arg:
            used.append((node.lineno, node.col_offset, node.arg))
            continue
        if kind is ast.Attribute:
            used.append((node.end_lineno, node.end_col_offset, node.attr))
        parts = ast.iter_child_nodes(node)
        if kind in (ast.FunctionDef, ast.AsyncFunctionDef):
            functions.append((node.name, node.lineno, used := []))
            given = node.args
            parts = [
                *given.posonlyargs,
                *given.args,
                *given.kwonlyargs,
                given.vararg,
                given.kwarg,
                *node.body,
            ]
        nodes += [(part, used) for part in parts if part is not None]
    return [(*what, list(dict.fromkeys(name for *_, name in sorted(used)))) for *what, used in functions]


def text_files(path):
    """Return lines `user item item ...` of numbers, in one file or in a folder, plain or `.gz`.

    Of a folder it reads `train`, `valid` and `test`, those that it has. What a user has in several files or
    lines is one sequence, in this order; an item that comes again is left out.
    """
    path = pathlib.Path(path)
    names = [f"{side}.txt{end}" for side in ("train", "valid", "test") for end in ("", ".gz")]
    files = [path] if path.is_file() else [path / name for name in names if (path / name).exists()]
    if not files:
        raise ValueError(
            f"`path` must be a file, or a folder with a train.txt or train.txt.gz. Received: {path}"
        )
    found = collections.defaultdict(list)
    for file in files:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt") as lines:
            for line in lines:
                user, *items = map(int, line.split() or [-1])
                found[user] += items
    found = {user: list(dict.fromkeys(items)) for user, items in found.items()}
    said = " + ".join(file.name for file in files)
    sequences = index(f"{path.name} ({said}): the items of each user, in the order of the file", found)
    sequences.item_names = sequences.user_names = None
    return sequences


def index(name, found):
    """Return `Sequences` from a dict of users and their lists of items; short ones are left out."""
    kept = {user: items for user, items in found.items() if len(items) >= SHORTEST}
    if not kept:
        raise ValueError(f"No user with {SHORTEST} items in: {name}")
    occurs = collections.Counter({item: 0 for items in kept.values() for item in items})
    occurs.update(item for items in kept.values() for item in items[:-2])
    items = [item for item, _ in occurs.most_common()]
    ids = {item: i for i, item in enumerate(items)}
    users = [np.array([ids[item] for item in user], np.int32) for user in kept.values()]
    counts = np.array([occurs[item] for item in items], np.int64)
    return Sequences(name, users, counts, items, list(kept))
