"""`Records`: the file of a part of a table, in which each row is beside its optimizer slots."""

import contextlib
import os

import numpy as np
import tensorflow as tf

from keras_largeout.files.record_marks import record_marks, written_records
from keras_largeout.ops._library import ops
from keras_largeout.ops.records import record_words, remap_variable
from keras_largeout.replicas.devices import plain_variable, unread_variable


class Records:
    """The rows of a part of a table in a file, each beside its slots: a cold row is one read.

    The layout of a record is that of `ops.records`. Slots come and go with optimizers. A file keeps the slots
    that it has until one is claimed that it lacks. Then it is written again, with the slots that are claimed
    and without the records that were never written.

    Args:
        folder: `TableFolder`.
        name: str, of the part.
        rows, dim: ints, the shape of the part.
        dtype: dtype name of the rows.
        device: device name of the memory.
        trainable: bool.
        refusal: str, the error of who reads all records as one tensor.

    Attributes:
        begin: int, the word of a record at which its slots begin.
        variable: the float32 `tf.Variable` `[rows, words]`, whose number of words may change.
    """

    def __init__(self, folder, name, rows, dim, dtype, device, trainable, refusal):
        self._folder, self._name, self._device, self._rows = folder, name, device, rows
        self._claimed = {}  # slot -> (its words, the value that it begins with)
        self.begin = record_words(dtype, dim)
        kept = folder.layout(name)
        self._number, self._lie = kept["number"], [tuple(slot) for slot in kept["slots"]]
        self._in_use = None
        folder.closes(self)
        with tf.init_scope(), tf.device(device):
            self.variable = unread_variable(
                self._map,
                dtype="float32",
                trainable=trainable,
                shape=[None, None],  # no rows after `close`
                name=name,
                refusal=refusal,
            )

    def close(self):
        """Takes the file out of memory. Nothing may be looked up or written afterwards."""
        with tf.init_scope():
            remap_variable(self.variable, f"{self.path}.none", [0, self.words])

    def _map(self):
        return ops.largeout_mapped_table(
            self.path, (self._rows, self.words), dtype="float32", read_only=self._folder.read_only
        )

    @property
    def path(self):
        """The path of the file."""
        return self._folder.file(f"{self._name}.{self._number}")

    @property
    def words(self):
        """The float32 words of a record."""
        return self.begin + sum(words for _, words, _ in self._lie)

    # Slots.

    def claim(self, slot, words, fill):
        """Asks for the slot `slot`: `words` values per row, which are `fill` in rows never written.

        One that the file has already keeps its values.
        """
        self._folder.check_writable()
        self._claimed[slot] = words, fill

    def release(self, slot):
        """Release a slot that nothing uses any longer. The next claim of its name reinitializes it."""
        self._claimed.pop(slot, None)
        self._lie = [(None if name == slot else name, *rest) for name, *rest in self._lie]

    @tf.autograph.experimental.do_not_convert
    def settle(self):
        """Fix the layout of the file: the claimed slots, in that order, follow each row."""
        wanted = [(name, *rest) for name, rest in self._claimed.items()]
        if self._lie[: len(wanted)] == wanted:
            return
        with tf.init_scope():
            if self._in_use is not None:  # functions that know the old layout
                self._in_use.assign(False)
                self._in_use = None
            self._write_anew(wanted)

    def place(self, slot):
        """Return `(first word, end)` of a slot in a record."""
        self.settle()
        begin = self.begin
        for name, words, _ in self._lie:
            if name == slot:
                return begin, begin + words
            begin += words
        raise KeyError(slot)

    def checked(self, indices):
        """Return `indices` (a tensor), for a step that writes.

        The step fails once the slots that were claimed when it was traced are others.
        """
        indices = self._folder.while_open(indices)
        self.settle()
        if self._in_use is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._in_use = plain_variable(True, trainable=False)
        gone = (
            f"The slots of {self._name!r} in {self._folder.path} are not those of the optimizer for which "
            "this function was traced. Make it again (of a Keras model: `make_train_function(force=True)`)"
        )
        with tf.device("CPU:0"):
            is_so = tf.debugging.Assert(self._in_use, [gone])
            with tf.control_dependencies([] if is_so is None else [is_so]):
                return tf.identity(indices)

    def behind_row(self):
        """Return what the slots of a row begin with: float32 `[words]`."""
        values = [np.full(words, fill, "float32") for _, words, fill in self._lie]
        return np.concatenate([*values, np.zeros(0, "float32")])

    # Writing again.

    def _write_anew(self, slots):
        """Puts a file with these slots in the place of the file."""
        old, width = self.path, self.words
        # Where each word comes from: a word of the old record, or the value that a slot begins with.
        source, begin = {}, self.begin
        for name, words, fill in self._lie:
            source[name, words, fill] = begin
            begin += words
        columns = [np.arange(self.begin)]
        for slot in slots:
            start = source.get(slot)
            columns.append(np.full(slot[1], -1) if start is None else start + np.arange(slot[1]))
        columns = np.concatenate(columns)
        self._lie = list(slots)
        behind = np.concatenate([np.zeros(self.begin, "float32"), self.behind_row()])
        self._number += 1
        with open(self.path, "wb") as new:
            os.truncate(new.fileno(), 4 * self._rows * self.words)
            for start, records in written_records(old, width):
                written = records[:, 0].view(np.int32) != 0
                # Words are copied, never computed with: two of them may be bfloat16 values.
                changed = np.where(columns < 0, behind, records[:, columns])
                changed[:, 0] = record_marks(changed[:, 1:], start + np.arange(len(changed)))
                changed[~written] = 0
                new.seek(4 * start * self.words)
                new.write(changed.tobytes())
            new.flush()
            os.fsync(new.fileno())
        with tf.device(self._device):
            remap_variable(self.variable, self.path, [self._rows, self.words])
        self._folder.keep_layout(self._name, {"number": self._number, "slots": self._lie})
        with contextlib.suppress(FileNotFoundError):
            os.remove(old)


def as_words(rows):
    """Return rows `[n, dim]` as float32 words `[n, words]`, bit for bit."""
    if rows.dtype == tf.float32:
        return rows
    rows = tf.pad(rows, [[0, 0], [0, rows.shape[1] % 2]])
    return tf.bitcast(tf.reshape(rows, [-1, rows.shape[1] // 2, 2]), tf.float32)


def content_of(rows, behind):
    """Return what is written behind the marks of records: rows `[n, dim]`, and float32 `[n, words]`."""
    return tf.concat([as_words(rows), behind], axis=1)
