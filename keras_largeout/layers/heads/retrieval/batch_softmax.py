"""The loss of a `Retrieval` in training: the item of each row among the items of the batch."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.files.verified_loading import may_have_other_rows
from keras_largeout.layers._saved_state import SavedVariables
from keras_largeout.layers.heads._per_class import PerClass, counts_per_class
from keras_largeout.layers.heads.retrieval.candidates import (
    NOT_THERE,
    ItemMemory,
    StreamedFrequencies,
    candidates_of,
    row_numbers,
)
from keras_largeout.replicas.cross_replica import joined_of_replicas


class BatchSoftmax:
    """Computes losses among the items of a batch, and keeps what they need between batches.

    Args:
        num_items: int; may be None without `counts`.
        counts, remove_accidental_hits, cache: as in `Retrieval`.
    """

    def __init__(self, num_items, counts, remove_accidental_hits, cache):
        self._num_items, self._remove_hits = num_items, remove_accidental_hits
        self.counts = self.stream = None
        if isinstance(counts, str):
            self.stream = StreamedFrequencies(num_items)
        elif counts is not None:
            known = True if counts is True else counts_per_class(counts, num_items)
            self.counts = PerClass("counts", known, num_items)
        self._memory = ItemMemory(cache) if cache else None

    def build(self, head):
        """Make the variables, weights of `head`."""
        for part in (self.counts, self.stream, self._memory):
            if part is not None:
                part.build(head)

    def state(self):
        """Return the weights of the estimates and of the memory, by their names in a file."""
        parts = [part for part in (self.stream, self._memory) if part is not None]
        return {weight.name: weight for part in parts for weight in part.variables}

    # A part of what the head saves.

    def save(self, arrays):
        SavedVariables(self.state()).save(arrays)

    def check(self, store):
        if not may_have_other_rows():
            SavedVariables(self.state(), optional=True).check(store)

    def load(self, store):
        """Takes what a file has. Items that only the head has stay as they are; those of the file go."""
        for name, weight in self.state().items():
            if name not in store:
                continue
            values = np.asarray(store[name])
            if may_have_other_rows() and values.shape != tuple(weight.shape):
                kept = min(len(values), weight.shape[0])
                values = np.concatenate([values[:kept], keras.ops.convert_to_numpy(weight)[kept:]])
            if name == "memory_ids" and self._num_items is not None:
                values = np.where(values < self._num_items, values, -1)
            weight.assign(values)

    def losses(self, queries, y, there, given, training):
        """Return minus the log of the share of each item in the softmax over the candidates.

        Args:
            queries: float32 `[n, dim]`, scaled user vectors; 0 where `there` is False.
            y: int64 `[n]`, the ids of their items.
            there: bool `[n]`, the rows that count.
            given: `GivenItems` of `flat_items`.
            training: bool, whether the items are remembered, and counted.

        Returns:
            float32 `[n]`; 0 where `there` is False.
        """
        rows, ids = row_numbers(tf.size(y)), tf.where(there, y, tf.constant(-1, tf.int64))
        if self.stream is not None and training:
            self.stream.update(joined_of_replicas(ids))
        candidates = candidates_of(
            given.vectors,
            ids,
            rows,
            given.negatives,
            given.negative_ids,
            self._memory,
            self._frequencies(ids),
            self._num_items,
        )
        logits = candidates.logits(queries, y, rows, self._remove_hits)
        if given.hard_negatives is not None:
            logits = tf.concat([logits, self._hard_logits(queries, y, given)], axis=1)
        if self._memory is not None and training:
            count = tf.size(joined_of_replicas(ids))
            self._memory.remember(candidates.vectors[:count], candidates.ids[:count])
        of_targets = tf.reduce_sum(queries * given.vectors, axis=1)
        losses = tf.math.softplus(tf.reduce_logsumexp(logits, axis=1) - of_targets)
        return tf.where(there, losses, 0.0)

    def _hard_logits(self, queries, y, given):
        logits, ids = tf.einsum("nd,nkd->nk", queries, given.hard_negatives), given.hard_negative_ids
        if ids is None:
            return logits
        left_out = ids < 0
        if self._remove_hits:
            left_out |= ids == y[:, None]
        return tf.where(left_out, NOT_THERE, logits)

    def _frequencies(self, ids):
        """Return the function from ids and a number of targets to how often each is expected, or None."""
        if self.counts is not None:
            self.counts.require_known()
            counts = self.counts.variable.value
            return lambda ids, count: tf.gather(counts, ids) / tf.reduce_sum(counts) * count
        if self.stream is None:
            return None
        targets = joined_of_replicas(ids)
        per_step = tf.maximum(tf.reduce_sum(tf.cast(targets >= 0, tf.float32)), 1.0)
        return lambda ids, count: self.stream.per_step(ids) * (count / per_step)
