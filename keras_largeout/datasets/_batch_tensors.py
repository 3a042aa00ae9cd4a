"""Blocks of NumPy columns as `tf.data` batches: each block crosses to TensorFlow once, and is cut there."""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

DTYPES = {"category": tf.string, "id": tf.int64, "time": tf.int64, "number": tf.float32}


def batches_of(
    blocks: Callable[[], Iterator[dict]], kinds: dict, list_kinds: dict, batch_size: int, target: str | None
) -> tf.data.Dataset:
    """Return a dataset of batches `(x, target)`, or of `x` where there is no target.

    Arrow aligns its columns as TensorFlow does, so neither the blocks nor their slices are copied. TensorFlow
    may then write into them: they belong to nobody else (`RowReader.shares_memory`).

    Args:
        blocks: returns an iterator over dictionaries of columns. All blocks but the last have a multiple of
            `batch_size` rows.
        kinds: `{name: kind}` of the columns.
        list_kinds: `{name: kind of the values}` of the columns of lists.
        batch_size: int.
        target: None, or the name of a column.
    """

    specs = {name: tf.TensorSpec([None], DTYPES[list_kinds.get(name, kind)]) for name, kind in kinds.items()}
    specs |= {name: (specs[name], tf.TensorSpec([None], tf.int64)) for name in list_kinds}

    def paired(x):
        return x if target is None else (x, x.pop(target))

    def flat():
        for block in blocks():
            block = {name: block[name] for name in kinds}
            lists = {name: (block[name].values, block[name].splits) for name in list_kinds}
            yield paired(block | lists)

    def cut(*block):
        x = dict(block[0]) if target is None else {**block[0], target: block[1]}
        column = next(iter(x.values()))
        rows = tf.size(column[1], tf.int64) - 1 if isinstance(column, tuple) else tf.size(column, tf.int64)

        def batch(first):
            start, size = [first], [tf.minimum(rows, first + batch_size) - first]
            return paired(
                {
                    name: _lists(*column, start, size)
                    if isinstance(column, tuple)
                    else tf.slice(column, start, size)
                    for name, column in x.items()
                }
            )

        return tf.data.Dataset.range(0, rows, batch_size).map(batch)

    pieces = tf.data.Dataset.from_generator(flat, output_signature=paired(specs)).prefetch(1)
    return pieces.flat_map(cut) if list_kinds else pieces.rebatch(batch_size)


def _lists(values, splits, start, size):
    splits = tf.slice(splits, start, [size[0] + 1])
    values = values[splits[0] : splits[-1]]
    return tf.RaggedTensor.from_row_splits(values, splits - splits[0], validate=False)


def counted_passes(data: tf.data.Dataset, batches: int | None, passed: Callable[[], None]) -> tf.data.Dataset:
    """Return the dataset, which calls `passed()` at the end of each pass.

    The end is where the last of `batches` batches is taken: `fit` asks for no more. Where their number is
    unknown, it is where one more is asked for. Batches that are prefetched do not count.
    """

    def end():
        passed()
        yield from ()

    def note():
        passed()
        return np.int64(0)

    if batches is None:
        return data.concatenate(tf.data.Dataset.from_generator(end, output_signature=data.element_spec))
    noted = tf.data.Dataset.range(batches).map(
        lambda i: tf.cond(i == batches - 1, lambda: tf.numpy_function(note, [], tf.int64), lambda: i)
    )
    return tf.data.Dataset.zip((data, noted)).map(lambda batch, _: batch)
