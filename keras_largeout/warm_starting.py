"""`warm_start`: rows of tables that begin with the values of another model, an array or a file of vectors."""

import gzip
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._keras import all_layers
from keras_largeout.layers._named_tables import named_tables
from keras_largeout.layers._vocabulary_ids import as_numbers
from keras_largeout.tables import chunks
from keras_largeout.tables.row_range import RowRange


def warm_start(
    target: keras.Model | keras.Layer,
    source: keras.Model | keras.Layer | ArrayLike | str | os.PathLike,
    ids: Sequence[Any] | np.ndarray | None = None,
    source_ids: Sequence[Any] | np.ndarray | None = None,
    project: bool = False,
) -> dict[str, int]:
    """Copies rows of other tables into those of a model or layer, by their ids.

    Rows whose ids the source does not have keep their values, and so do optimizer slots: warm-start a model
    before it is trained. The rows of a table have the ids of its `DynamicVocabulary`; otherwise their numbers
    are their ids, unless `ids` or `source_ids` says more. (An id gets a row in a `DynamicVocabulary` by a
    call with `training=True`.) Rows are read and written in chunks.

    Args:
        target: a built layer: `ShardedEmbedding`, `DistributedEmbedding`, `SparseDense`, `FullSoftmax`,
            `SampledSoftmax` (their biases too) or `keras.layers.Embedding`; or a model that has some.
        source: such a layer or model. Of two models, and of layers with several tables, those of equal names
            belong together. Or an array `[rows, dim]`; or the path of a text file of vectors, as word2vec and
            fastText write them (`.gz`, too): a word and its numbers on each line.
        ids: the ids of the rows of `target`, a layer of one table: different integers or strings, in the
            order of the rows; fewer than rows, if only the first ones are meant. Defaults to `None`.
        source_ids: the same of the rows of `source`. A file has its words. Defaults to `None`.
        project: bool, whether rows may have another width. Wider ones are projected to the principal
            components of the rows that are taken, which keep inner products best; narrower ones are filled up
            with zeros. Defaults to `False`.

    Returns:
        Dict from the names of tables to the number of rows that were copied. (A head's biases are
        "name/bias".)

    Raises:
        ValueError: no table is common to both, or no id; ids that are not different, or more than rows; rows
            of another width without `project`; a layer that is not built; a file with lines of other lengths.

    Example:

    ```python
    kl.warm_start(model, keras.models.load_model("yesterday.keras"))
    kl.warm_start(model.get_layer("words"), "vectors.txt.gz", ids=vocabulary, project=True)
    ```
    """
    into = _tables(target, "target")
    if isinstance(source, (str, os.PathLike)):
        if source_ids is not None:
            raise ValueError("`source_ids` must be None for a file, which has its words")
        source_ids, source = _read_vectors(source)
    if isinstance(source, keras.Layer):
        found = _tables(source, "source")
    else:
        found = {"source": _Table(_matrix(source), None)}
    pairs = _pairs(into, found)
    if (ids is not None or source_ids is not None) and sum("/" not in name for name, _ in pairs) > 1:
        raise ValueError(
            "`ids` and `source_ids` must be None for several tables: warm-start a layer of one table at a "
            f"time. Received: tables {[name for name, _ in pairs]}"
        )
    counts = {}
    for name, other in pairs:
        here, there = _match(into[name], found[other], ids, source_ids, name)
        into[name].overwrite(here, found[other].rows, there, project, name)
        counts[name] = len(here)
    return counts


class _Table(NamedTuple):
    """The rows of a table.

    Attributes:
        rows: `RowRange`, variable or array, `[rows, ...]`.
        vocabulary: `DynamicVocabulary` or None.
    """

    rows: Any
    vocabulary: Any

    def overwrite(self, here, source, there, project, name):
        """Gives the rows `here` the values of the rows `there` of `source`."""
        change = _projection(self.rows.shape[1:], source, there, project, name)
        self.rows.assign(_Merged(self.rows, here, source, there, change))

    def labels(self, ids, hashed, argument):
        """Return the ids of rows, and the rows that they belong to: a list and an int64 array.

        Args:
            ids: None, or what the user gave.
            hashed: bool, whether strings count as their hashes.
            argument: str, for errors.
        """
        if self.vocabulary is not None and ids is None:
            rows = np.array(list(self.vocabulary.get_vocabulary()), np.int64)
            return self.vocabulary.ids_of(rows).numpy().tolist(), rows
        if ids is None:
            return range(len(self.rows)), np.arange(len(self.rows))
        ids = np.asarray(ids)
        if self.vocabulary is not None:
            rows = self.vocabulary(tf.constant(ids)).numpy()
            has_row = rows >= self.vocabulary.first_row
            return as_numbers(tf.constant(ids[has_row])).numpy().tolist(), rows[has_row]
        if ids.ndim != 1 or len(ids) > len(self.rows):
            raise ValueError(
                f"`{argument}` must be at most as many as the rows, {len(self.rows)}. "
                f"Received: {argument} of shape {ids.shape}"
            )
        if ids.dtype.kind in "USO":
            texts = [label.decode() if isinstance(label, bytes) else label for label in ids.tolist()]
            ids = as_numbers(tf.constant(texts)).numpy() if hashed and len(texts) else np.array(texts, object)
        return ids.tolist(), np.arange(len(ids))


class _Merged:
    """The rows of a table, some of them replaced, for whoever takes slices of them."""

    def __init__(self, rows, here, source, there, change):
        order = np.argsort(here)
        self.shape = tuple(rows.shape)
        self._rows, self._here, self._source, self._there = rows, here[order], source, there[order]
        self._change = change

    def __getitem__(self, rows):
        first, last = np.searchsorted(self._here, [rows.start, min(rows.stop, self.shape[0])])
        values = np.array(_read(self._rows, rows.start, rows.stop))
        if first < last:
            values[self._here[first:last] - rows.start] = self._change(
                _taken(self._source, self._there[first:last])
            )
        return values


class _Variable:
    """The rows of a variable of Keras, as a `RowRange` gives those of a table."""

    def __init__(self, variable):
        self._variable, self.shape = variable, tuple(variable.shape)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        return np.asarray(keras.ops.convert_to_numpy(self._variable))[rows]

    def assign(self, value):
        self._variable.assign(value[0 : len(self)])


def _read(rows, start, stop):
    return rows.read(start, stop) if isinstance(rows, RowRange) else rows[start:stop]


def _taken(source, rows):
    return np.asarray(source[rows], np.float32)


def _tables(thing, argument):
    """Return the `_Table`s of a layer or model, by name."""
    layers = all_layers(thing) if isinstance(thing, keras.Model) else [thing]
    found = {}
    for layer in layers:
        of_layer = _tables_of_layer(layer)
        if of_layer and not layer.built:
            raise ValueError(f"`{argument}` must be built: call it once. Received: {layer.name!r}, not built")
        found |= {name: _Table(*table()) for name, table in of_layer.items()}
    if not found:
        raise ValueError(
            f"`{argument}` must be an embedding, a `SparseDense`, a head with a row for each class, or a "
            f"model that has one. Received: {argument}={thing!r}"
        )
    return found


def _tables_of_layer(layer):
    """Return functions that make what a `_Table` has, by name."""
    if isinstance(layer, keras.layers.Embedding):
        return {layer.name: lambda: (_Variable(layer.embeddings), None)}
    return named_tables(layer)


def _pairs(into, found):
    """Return `(name in into, name in found)` of the tables that belong together."""
    pairs = {name: name for name in into if name in found}
    first, other = ([name for name in side if "/" not in name] for side in (into, found))
    if len(first) == len(other) == 1:
        pairs[first[0]] = other[0]
        if f"{first[0]}/bias" in into and f"{other[0]}/bias" in found:
            pairs[f"{first[0]}/bias"] = f"{other[0]}/bias"
    if not pairs:
        raise ValueError(
            "`source` must have a table of the name of one of `target`. "
            f"Received: tables {sorted(found)}, for {sorted(into)}"
        )
    return list(pairs.items())


def _match(target, source, ids, source_ids, name):
    """Return the rows of the target and of the source that have the same ids, int64 arrays `[n]`."""
    hashed = target.vocabulary is not None or source.vocabulary is not None
    labels, rows = target.labels(ids, hashed, "ids")
    known, others = source.labels(source_ids, hashed, "source_ids")
    if isinstance(labels, range) and isinstance(known, range):
        both = np.arange(min(len(labels), len(known)))
        return both, both
    place = dict(zip(known, others.tolist()))
    for argument, given in (("ids", labels), ("source_ids", known)):
        if len(set(given)) < len(given):
            raise ValueError(f"`{argument}` must be different from each other, and some of them are equal")
    found = [(row, place[label]) for label, row in zip(labels, rows.tolist()) if label in place]
    if not found:
        raise ValueError(
            f"`source` must have ids of the table {name!r}, and has none of them. Received: ids such as "
            f"{list(known)[:3]}, for {list(labels)[:3]}"
        )
    return tuple(np.array(found, np.int64).T)


def _projection(shape, source, there, project, name):
    """Return a function from rows of the source to rows of the shape of the target's."""
    other = tuple(source.shape[1:])
    if tuple(shape) == other:
        return lambda rows: rows
    if not project or len(shape) != 1 or len(other) != 1:
        raise ValueError(
            f"The rows of the source must have the shape of those of {name!r}, {tuple(shape)}, unless "
            f"`project` is True. Received: rows of shape {other}, project={project}"
        )
    (dim,), (width,) = shape, other
    if dim > width:
        return lambda rows: np.pad(rows, ((0, 0), (0, dim - width)))
    products = np.zeros((width, width))
    for start, stop in chunks.chunk_ranges((len(there), width), 4):
        rows = _taken(source, there[start:stop]).astype(np.float64)
        products += rows.T @ rows
    axes = np.linalg.eigh(products)[1][:, ::-1][:, :dim]
    return lambda rows: (rows @ axes).astype(np.float32)


def _matrix(source):
    rows = np.asarray(source)
    if rows.ndim != 2 or rows.dtype.kind not in "fiuV":
        raise ValueError(
            "`source` must be a layer, a model, the path of a file, or numbers [rows, dim]. "
            f"Received: {type(source).__name__} of shape {rows.shape}"
        )
    return rows


def _read_vectors(path):
    """Return the words of a file and their vectors, a list and float32 `[words, dim]`."""
    opened = gzip.open if os.fspath(path).endswith(".gz") else open
    words, vectors = {}, []
    with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
        for number, word, vector in _vectors(lines):
            if vectors and len(vector) != len(vectors[0]):
                raise ValueError(
                    f"{os.fspath(path)} must have {len(vectors[0])} numbers on each line, as on the first. "
                    f"Received: {len(vector)} on line {number}"
                )
            if word not in words:  # the first one counts, as the more frequent one
                words[word] = len(vectors)
                vectors.append(vector)
    if not vectors:
        raise ValueError(
            f"{os.fspath(path)} must have a word and its numbers on each line. Received: no such line"
        )
    return list(words), np.stack(vectors)


def _vectors(lines: Iterable[str]):
    """Yield `(number of the line, word, vector)`; the first line may say how many there are."""
    for number, line in enumerate(lines, 1):
        word, *values = line.rstrip(" \n").split(" ")
        if values and not (number == 1 and len(values) == 1):
            yield number, word, np.array(values, np.float32)
