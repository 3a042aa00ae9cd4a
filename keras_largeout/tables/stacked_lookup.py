"""Looking up many features in one `StackedTable`: one exchange for all of them, one lookup per combiner."""

from typing import NamedTuple

import tensorflow as tf

from keras_largeout.ops.embedding.bags import bags_of, concat_bags
from keras_largeout.ops.embedding.wrapper import Lookup
from keras_largeout.ops.labels import on_the_host
from keras_largeout.tables.lookup import fetch_unique_rows
from keras_largeout.tables.stacked import Section


class Request(NamedTuple):
    """The request of one feature to a stack.

    Attributes:
        feature: its name, for errors.
        section: its table.
        ids: int32 or int64 rows of that table: a `tf.Tensor`, `tf.RaggedTensor` or `tf.SparseTensor`.
        weights: `None`, or factors of the kind and shape of `ids`.
        combiner: `None`, or how the last axis of `ids` becomes one row.
        padding: whether id 0 takes part in nothing.
        out_of_range: "error" (it names the feature, the table and its rows) or "zero": such an id takes part
            in nothing.
    """

    feature: str
    section: Section
    ids: object
    weights: object = None
    combiner: str | None = None
    padding: bool = False
    out_of_range: str = "error"


class StackedLookup:
    """The answers to the requests of one batch.

    The ids of all features become rows of the stack, one feature after the other, ordered by combiner. They
    are exchanged once, and every combiner is one lookup.

    Args:
        table: `StackedTable`.
        requests: list of `Request`.
        source: optional, the rows of the whole stack, in place of the rows of `table`.
        lookup: `ops.embedding.Lookup`, or its like.

    Attributes:
        ids: int64 `[n]`, all rows of the stack that are asked for; -1 where an id takes part in nothing.
    """

    def __init__(self, table, requests, source=None, lookup=Lookup):
        self._lookup = lookup
        self._requests = requests
        self._bags = [_bags(request) for request in requests]
        self._groups = _groups(requests, self._bags)
        self._order = [index for _, indices in self._groups for index in indices]
        ids = _stacked_ids([(requests[n], self._bags[n].ids) for n in self._order])
        self._sizes = [tf.size(part) for part in ids]
        self.ids = self._index = _concat(ids)
        self._source = source
        if source is None and table.is_whole and not table.is_offloaded:
            self._source = table.variable
        elif source is None:
            self._source, self._index = fetch_unique_rows(table, self.ids, "zero")

    def outputs(self, dtype):
        """Return what each request gets, in their order, cast to `dtype`."""
        sizes = dict(zip(self._order, self._sizes))
        sizes = [sum(sizes[n] for n in indices) for _, indices in self._groups]
        outputs = {}
        for (combiner, indices), ids in zip(self._groups, _split(self._index, sizes)):
            bags = [self._bags[n] for n in indices]
            weights = [b.weights if b.weights is None else tf.cast(b.weights, tf.float32) for b in bags]
            weights = None if weights[0] is None else _concat(weights)
            rows = self._lookup(self._source, combiner, "zero").bags(ids, weights, *concat_bags(bags))
            parts = _split(tf.cast(rows, dtype), [tf.cast(b.count, tf.int32) for b in bags])
            outputs.update({n: b.restore(part) for n, b, part in zip(indices, bags, parts)})
        return [outputs[n] for n in range(len(self._requests))]

    def unique_rows(self, table):
        """Return the distinct rows that the requests of the table of this name use, `[unique, dim]`."""
        parts = _split(self._index, self._sizes)
        ids = [part for n, part in zip(self._order, parts) if self._requests[n].section.name == table]
        return self._lookup(self._source, None, "zero").dense(tf.unique(_concat(ids)).y, None)


def _bags(request):
    try:
        return bags_of(request.ids, request.weights, request.combiner)
    except ValueError as error:
        raise ValueError(f"{error} (in the feature {request.feature!r})") from None


def _groups(requests, bags):
    """Return `(combiner, indices of the requests that one lookup answers)`."""
    groups = {}
    for index, (request, bag) in enumerate(zip(requests, bags)):
        # Unweighted bags of one id each are their rows.
        alone = isinstance(bag.size, int) and bag.size == 1 and bag.weights is None
        combiner = None if alone else request.combiner
        groups.setdefault((combiner, bag.weights is not None), []).append(index)
    return [(combiner, indices) for (combiner, _), indices in groups.items()]


def _stacked_ids(parts):
    """Return the rows of the stack that the ids of `(request, ids)` are, int64; -1: takes part in nothing."""
    strict = [(request, ids) for request, ids in parts if request.out_of_range == "error"]
    with on_the_host():  # whence ids come. A GPU has no minimum of int64, and would wait for the verdict
        checked = [_check_range(strict)] if strict else []
    with tf.control_dependencies(checked):
        parts = [(request, tf.cast(tf.identity(ids), tf.int64)) for request, ids in parts]
    moved = [ids + request.section.start for request, ids in parts]
    for i, (request, ids) in enumerate(parts):
        if request.padding or request.out_of_range == "zero":
            inside = (ids >= int(request.padding)) & (ids < request.section.rows)
            moved[i] = tf.where(inside, moved[i], -1)
    return moved


def _check_range(parts):
    """Return an op that fails where an id is not a row of its table."""
    parts = [(request, tf.cast(ids, tf.int64)) for request, ids in parts]
    lows = tf.stack([tf.reduce_min(ids) for _, ids in parts])
    highs = tf.stack([tf.reduce_max(ids) for _, ids in parts])
    rows = [request.section.rows for request, _ in parts]
    bad = (lows < 0) | (highs >= tf.constant(rows, tf.int64))

    def fail():
        at = tf.argmax(tf.cast(bad, tf.int32))
        words = [
            f"`inputs` of the feature {request.feature!r} must lie in [0, {count}), the rows of the table "
            f"{request.section.name!r}. Received: "
            for (request, _), count in zip(parts, rows)
        ]
        received = tf.strings.as_string(tf.where(lows[at] < 0, lows[at], highs[at]))
        message = tf.strings.join([tf.constant(words)[at], received])
        with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
            return tf.constant(False)

    return tf.cond(tf.reduce_any(bad), fail, lambda: tf.constant(True))


def _concat(parts):
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _split(joint, sizes):
    return [joint] if len(sizes) == 1 else tf.split(joint, sizes)
