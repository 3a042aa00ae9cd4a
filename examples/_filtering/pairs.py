"""Which user has which item: where the pairs come from, and which of them are held out.

The data that every machine has are the functions of Python's standard library. A user is a function or
method; a function within a function is a part of it. An item is a name that it calls, as it is written
(`len`, `os.path.join`, `self.assertEqual`; `.join` for a method of some expression); how often does not
matter. Names that fewer than 5 functions call are left out, then functions that call fewer than 5 names. Of
each function's names a fifth, drawn at random, is for the test, a tenth for the validation, and of each one
name at least.
"""

import array
import collections
import dataclasses
import gzip
import pathlib
import sysconfig

import numpy as np
from _functions import functions_of, library_files
from _report import stage

#: The default data: functions that call a name, names that a function calls, at least.
LEAST = 5


@dataclasses.dataclass
class Pairs:
    """Pairs of users and items, which are numbered from 0 on.

    Attributes:
        name: what the data are, for people.
        users, items: int, how many.
        train, valid, test: int32 `[pairs, 2]`, a user and an item, sorted; no pair is in two of them.
        user_names, item_names: lists of str, or None where these are mere numbers.
    """

    name: str
    users: int
    items: int
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    user_names: list = None
    item_names: list = None

    @property
    def counts(self):
        """int64 `[items]`: how many users have each item in training."""
        return np.bincount(self.train[:, 1], minlength=self.items)

    def some_users(self, side, most=None, seed=0):
        """Return the users who have anything on a side ("valid", "test") and in training, sorted; `most`
        of them.
        """
        users = np.intersect1d(getattr(self, side)[:, 0], self.train[:, 0])
        if most is not None and most < len(users):
            users = np.sort(np.random.default_rng(seed).choice(users, most, replace=False))
        return users


def items_of(pairs, users):
    """Return a list of arrays: the items of each of `users` in sorted pairs, `[pairs, 2]`."""
    begin, end = (np.searchsorted(pairs[:, 0], users, side) for side in ("left", "right"))
    return [pairs[a:b, 1] for a, b in zip(begin, end)]


def read(args):
    """Return the `Pairs` that the options of the example ask for; it prints what they are."""
    with stage("Reading the data"):
        pairs = text_files(args.data, args.seed) if args.data else standard_library(args.seed, args.share)
        print(f"   {pairs.name}")
        rare = f"{np.mean(pairs.counts < 5):.0%} of which fewer than 5 have"
        print(f"   {pairs.users:,} users, {pairs.items:,} items, {rare}")
        sides = ", ".join(f"{len(getattr(pairs, side)):,} {to}" for side, to in _SIDES.items())
        print(f"   pairs: {sides}")
    return pairs


_SIDES = {"train": "to learn from", "valid": "for the validation", "test": "for the test"}


def standard_library(seed=0, share=1.0):
    """Return functions of the running Python's standard library, or of a share of it, and the names they
    call.
    """
    names, calls, files = [], [], 0
    for file, path in library_files(seed, share):
        try:
            found = list(functions_of(path, nested=False))
        except (SyntaxError, UnicodeDecodeError, ValueError):  # some test files are meant to be broken
            continue
        files += 1
        names += [f"{file}: {name}" for name, *_ in found]
        calls += [[call for call in labels if not call.startswith("import ")] for _, labels, _ in found]
    common = collections.Counter(call for called in calls for call in called)
    calls = [[call for call in called if common[call] >= LEAST] for called in calls]
    kept = [user for user, called in enumerate(calls) if len(called) >= LEAST]
    if not kept:
        raise ValueError(f"No function that calls {LEAST} names in {files} files of the standard library")
    item_names = sorted({call for user in kept for call in calls[user]})
    ids = {name: i for i, name in enumerate(item_names)}
    pairs = np.array([(i, ids[call]) for i, user in enumerate(kept) for call in calls[user]], np.int32)
    name = f"functions in {files} files of the Python {sysconfig.get_python_version()} standard library,"
    return Pairs(
        f"{name} and the names that they call",
        len(kept),
        len(item_names),
        *hold_out(pairs, (0.1, 0.2), seed),
        [names[user] for user in kept],
        item_names,
    )


def hold_out(pairs, shares, seed):
    """Cuts pairs at random: the rest, then each share of every user's items, one at least of each.

    Returns:
        A list of sorted int32 `[pairs, 2]`.
    """
    pairs = _sorted(pairs)
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(pairs)), pairs[:, 0]))  # by user, in a random order
    _, first, counts = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs)) - np.repeat(first, counts)
    side, begin = np.zeros(len(pairs), np.int64), np.zeros(len(counts), np.int64)
    for number, share in enumerate(shares, 1):
        end = begin + np.maximum(1, (share * counts).astype(np.int64))
        side[(rank >= np.repeat(begin, counts)) & (rank < np.repeat(end, counts))] = number
        begin = end
    return [pairs[side == number] for number in range(len(shares) + 1)]


def text_files(path, seed=0):
    """Return lines `user item item ...` of numbers: train.txt, valid.txt and test.txt of a folder, plain or
    `.gz`.

    A user may have several lines. A pair that comes again, on the same side or on a later one, is left out.
    Without a valid.txt a tenth of each user's items in train.txt is drawn for the validation.
    """
    folder, sides = pathlib.Path(path), {}
    for side in _SIDES:
        files = [folder / f"{side}.txt{end}" for end in ("", ".gz")]
        file = next((file for file in files if file.exists()), None)
        if file is None and side != "valid":
            raise ValueError(f"`data` must be a folder with {files[0].name}[.gz]. Received: {path}")
        sides[side] = np.zeros([0, 2], np.int64) if file is None else read_lines(file)
    together = np.concatenate(list(sides.values()))
    (users, user_ids), (items, item_ids) = (np.unique(ids, return_inverse=True) for ids in together.T)
    numbered = np.stack([user_ids, item_ids], axis=1).astype(np.int32)
    keys = user_ids * np.int64(len(items)) + item_ids
    _, first = np.unique(keys, return_index=True)  # the first of equal ones
    new = np.isin(np.arange(len(keys)), first)
    ends = np.cumsum([len(part) for part in sides.values()])
    parts = [
        _sorted(numbered[end - len(part) : end][new[end - len(part) : end]])
        for end, part in zip(ends, sides.values())
    ]
    if not len(parts[1]):
        parts[:2] = hold_out(parts[0], (0.1,), seed)
    if not all(map(len, parts)):
        raise ValueError(f"`data` must have pairs in train.txt and others in test.txt. Received: {path}")
    name = f"{folder.resolve().name}: lines `user item item ...`"
    return Pairs(name, len(users), len(items), *parts)


def read_lines(file):
    """Return int64 `[pairs, 2]` of a file of lines `user item item ...`.

    Raises:
        ValueError: a line is something else, or the file ends in the middle of it; it names file and line.
    """
    users, items, number = array.array("q"), array.array("q"), 0
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt") as lines:
            for number, line in enumerate(lines, 1):
                _add(line, users, items, f"{file}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read after line {number}: {error}") from None
    return np.stack([np.frombuffer(ids, np.int64) for ids in (users, items)], axis=1)


def _add(line, users, items, where):
    words = line.split()
    if not words:
        return
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise ValueError(
            f"{where} must be `user item item ...`, integers of at most 18 digits. Received: {line[:80]!r}"
        )
    user, *found = map(int, words)
    users.extend([user] * len(found))
    items.extend(found)


def _sorted(pairs):
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
