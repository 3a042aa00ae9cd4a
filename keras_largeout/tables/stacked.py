"""`StackedTable`: several tables of one width as one `ShardedTable`, so that they share one exchange."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.planning.placement import Placement
from keras_largeout.replicas.devices import table_devices
from keras_largeout.tables import chunks
from keras_largeout.tables.placing import REPLICATED_BYTES
from keras_largeout.tables.row_range import RowRange
from keras_largeout.tables.table import ShardedTable


class Section(NamedTuple):
    """One table of a stack: it has the rows `start .. stop`."""

    name: str
    start: int
    stop: int

    @property
    def rows(self):
        return self.stop - self.start


def sections_of(rows):
    """Return the `Section`s of tables one after the other; `rows` is a dict from names to numbers of rows."""
    stops = np.cumsum(list(rows.values()), dtype=np.int64).tolist()
    return tuple(Section(name, stop - rows[name], stop) for name, stop in zip(rows, stops))


class StackedTable(ShardedTable):
    """Tables of one width, one below the other in one `ShardedTable`.

    Each keeps its own initializer, and gets the values that it would have alone. Files know the tables one by
    one (`span`, `sections`), so a file fits whatever the tables were stacked with when it was written.

    Args:
        tables: dict from a table's name to `(rows, initializer)`.
        dim: int, the width.
        placement: as for `ShardedTable`. "auto" replicates the rows of the tables of up to 1 MiB, and cuts
            those of larger tables by a permutation.
        family: an object that all stacks of one owner share: optimizers number their files by it.
        **kwargs: `dtype`, `name`, `constraint`, `plan_name`, `storage`, `cache_rows`, as for `ShardedTable`.

    Attributes:
        sections: tuple of `Section`.
    """

    def __init__(self, tables, dim, dtype="float32", placement="auto", family=None, **kwargs):
        self.sections = sections_of({name: rows for name, (rows, _) in tables.items()})
        self.family = family
        if placement == "auto":
            itemsize = tf.as_dtype(keras.backend.standardize_dtype(dtype)).size
            placement = _automatic(self.sections, dim * itemsize, len(table_devices()))
        initializer = StackedInitializer([initializer for _, initializer in tables.values()], self.sections)
        shape = (self.sections[-1].stop, dim)
        super().__init__(shape, initializer, dtype=dtype, placement=placement, **kwargs)

    def span(self, name):
        """Return the rows of the table `name`, a `RowRange`."""
        (section,) = (s for s in self.sections if s.name == name)
        return RowRange(self.array, section.start, section.stop)


def _automatic(sections, row_bytes, devices):
    """Return what "auto" means: the same for a table that is stacked and for one that is not."""
    small = [s for s in sections if s.rows * row_bytes <= REPLICATED_BYTES]
    if devices == 1 or len(small) in (0, len(sections)):
        return "replicated" if small else "permutation"
    hot = np.concatenate([np.arange(s.start, s.stop) for s in small])
    return Placement.by_permutation(sections[-1].stop, devices).with_hot_rows(hot)


class StackedInitializer(keras.initializers.Initializer):
    """Draws each section of a stack by its own initializer.

    Args:
        initializers: a Keras initializer for each section.
        sections: `Section`s.
    """

    def __init__(self, initializers, sections):
        self.initializers, self.sections = initializers, sections
        self._draws = None
        self._kept, self._reached = {}, 0

    def __call__(self, shape, dtype=None):
        return self.rows(shape, dtype, 0, shape[0])

    def rows(self, shape, dtype, start, stop):
        """Return the rows `start .. stop` of the stack: what each table has alone (`chunks.initial_rows`).

        The values of a chunk follow from where it begins in its own table, and the chunks of a stack begin
        elsewhere. So whole chunks of tables are drawn, and the last one is kept for the next chunk of the
        stack, which often begins in its middle.
        """
        if self._draws is None:
            shapes = [(s.rows, *shape[1:]) for s in self.sections]
            self._draws = [chunks.initial_rows(i, s, dtype) for i, s in zip(self.initializers, shapes)]
        if start < self._reached:  # again, for another device: what that one has drawn stays there
            self._kept.clear()
        self._reached = stop
        step = chunks.rows_per_chunk(shape, tf.as_dtype(dtype).size)
        pieces = []
        for index, section in enumerate(self.sections):
            first, last = max(start, section.start), min(stop, section.stop)
            while first < last:
                local = first - section.start
                begin = local // step * step
                piece = self._chunk(index, begin, step)[local - begin : local - begin + last - first]
                pieces.append(piece)
                first += len(piece)
        return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)

    def _chunk(self, index, begin, step):
        if (index, begin) not in self._kept:
            self._kept.clear()
            end = min(begin + step, self.sections[index].rows)
            self._kept[index, begin] = self._draws[index](begin, end)
        return self._kept[index, begin]
