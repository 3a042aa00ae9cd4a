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
        """Return, for each batch of a block, its columns without the lists, its first row and all lists.

        No function is called here per batch: TensorFlow would prepare it again for each block.
        """
        x = dict(block[0]) if target is None else {**block[0], target: block[1]}
        lists = {name: x.pop(name) for name in list_kinds}
        rows = tf.size(next(iter(lists.values()))[1], tf.int64) - 1
        firsts = tf.data.Dataset.range(0, rows, batch_size)
        whole = tf.data.Dataset.from_tensors((lists, rows)).repeat()
        others = (tf.data.Dataset.from_tensors(x).rebatch(batch_size),) if x else ()
        return tf.data.Dataset.zip(firsts, whole, *others)

    def batch(first, whole, others=None):
        lists, rows = whole
        size = tf.minimum(rows - first, batch_size)
        return paired((others or {}) | {name: _lists(*lists[name], first, size) for name in lists})

    pieces = tf.data.Dataset.from_generator(flat, output_signature=paired(specs)).prefetch(1)
    return pieces.flat_map(cut).map(batch) if list_kinds else pieces.rebatch(batch_size)


def _lists(values, splits, first, rows):
    splits = splits[first : first + rows + 1]
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
