"""A table in parts as one variable of an exported model, without ever joining the parts in memory.

While a model is traced for export, a variable of the table's logical shape but of a single row stands in for
it. Once the SavedModel is written, the stand-in's row in its checkpoint is replaced by slices of the table,
chunk by chunk: TensorFlow's checkpoints have tensors in slices, which whoever reads them joins.
"""

import pathlib
import shutil

import tensorflow as tf

from keras_largeout.ops import export_mode
from keras_largeout.replicas.devices import plain_variable
from keras_largeout.tables.quantized import QuantizedRows

_FILE_BYTES = 128 << 20  # held in memory before it is written


def proxy_variable(array):
    """Return the variable `[rows (None while it is one), ...]` that stands for a `ShardedArray` in an export.

    Raises:
        ValueError: no export is under way.
    """
    if not export_mode.is_exporting():
        raise ValueError(
            f"A table in parts is not one variable. Received: {array.name!r}, in {len(array.parts)} parts"
        )
    known = export_mode.stand_ins()
    if known is None:
        raise ValueError(
            "A table must be in one piece to be saved within `kl.stock_ops()`. Use `kl.export_saved_model`. "
            f"Received: {array.name!r}, in {len(array.parts)} parts on several devices"
        )
    if id(array) not in known:
        with tf.init_scope(), tf.device("CPU:0"):
            one_row = tf.zeros([1, *array.shape[1:]], array.dtype)
            shape = [None, *array.shape[1:]]
            known[id(array)] = array, plain_variable(one_row, shape=shape, trainable=False, name=array.name)
    return known[id(array)][1]


def quantized(array):
    """Return the `QuantizedRows` of a `ShardedArray` in an export, made once."""
    known = export_mode.quantized()
    if id(array) not in known:
        known[id(array)] = QuantizedRows(array)
    return known[id(array)]


def write_tables(prefix, tables, scratch):
    """Puts tables in the place of their stand-ins in a checkpoint.

    Args:
        prefix: the checkpoint's, such as `.../variables/variables`.
        tables: dict from a checkpoint's key to the `ShardedArray` that belongs there.
        scratch: a new folder on the same file system, to be removed.
    """
    prefix, files = pathlib.Path(prefix), _Files(pathlib.Path(scratch))
    dtypes = tf.train.load_checkpoint(str(prefix)).get_variable_to_dtype_map()
    for key in sorted(dtypes.keys() - tables.keys()):
        files.add(
            key,
            "",
            tf.raw_ops.RestoreV2(
                prefix=str(prefix), tensor_names=[key], shape_and_slices=[""], dtypes=[dtypes[key]]
            )[0],
        )
    for key, array in tables.items():
        shape = " ".join(map(str, array.shape))
        whole_rows = ":-" * (len(array.shape) - 1)
        for start, stop in array.chunk_ranges():
            rows = tf.constant(array.read((start, stop)), array.dtype)
            files.add(key, f"{shape} {start},{stop - start}{whole_rows}", rows)
    parts = files.close()
    for old in prefix.parent.glob(f"{prefix.name}.*"):
        old.unlink()
    # Moves the files with the data, and writes one index of them all.
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=str(prefix), delete_old_dirs=False
    )
    shutil.rmtree(scratch)


class _Files:
    """Writes checkpoints of some hundred megabytes."""

    def __init__(self, folder):
        folder.mkdir()
        self._folder, self._prefixes = folder, []
        self._keys, self._slices, self._tensors, self._bytes = [], [], [], 0

    def add(self, key, slice_spec, tensor):
        size = 0 if tensor.dtype == tf.string else int(tf.size(tensor)) * tensor.dtype.size
        if self._tensors and self._bytes + size > _FILE_BYTES:
            self._flush()
        self._keys.append(key)
        self._slices.append(slice_spec)
        self._tensors.append(tensor)
        self._bytes += size

    def close(self):
        """Return the prefixes of all that was written."""
        self._flush()
        return self._prefixes

    def _flush(self):
        self._prefixes.append(str(self._folder / f"part_{len(self._prefixes):05d}"))
        tf.raw_ops.SaveV2(
            prefix=self._prefixes[-1],
            tensor_names=self._keys,
            shape_and_slices=self._slices,
            tensors=self._tensors,
        )
        self._keys, self._slices, self._tensors, self._bytes = [], [], [], 0
