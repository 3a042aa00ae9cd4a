"""TFRecord files of `tf.train.Example`, read from their beginning."""

import itertools
import re

import numpy as np
import tensorflow as tf

from keras_largeout.datasets._row_reader import WholeFileReader

#: Also of one file of several, `clicks.tfrecord-00003-of-00010`.
NAME = re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz)?$")
_LOOKED_AT = 1_000  # examples, for the types of the columns
_FRAME = 16  # bytes of each record beside its example
_DTYPES = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}


class TfRecordReader(WholeFileReader):
    def place(self, row):
        return f"example {row + 1}"

    def check_columns(self):
        self._types()

    def list_kinds(self):
        return self.kinds_of_lists(self._schema(self._types()))

    def _records(self):
        compression = "GZIP" if self.source.endswith(".gz") else ""
        return tf.data.TFRecordDataset(self.source, compression, buffer_size=1 << 20)

    def _types(self):
        """Return `{name: dtype}` of the wanted columns, by the first examples.

        Raises:
            ValueError: none of them has a column, or its type is not one that its use takes.
        """
        types, seen = {}, set()
        with self._readable():
            for record in itertools.islice(self._records().as_numpy_iterator(), _LOOKED_AT):
                features = tf.train.Example.FromString(record).features.feature
                seen.update(features)
                for name in self.rows.kinds:
                    if name in features and (kind := features[name].WhichOneof("kind")):
                        types.setdefault(name, _DTYPES[kind])
                if len(types) == len(self.rows.kinds):
                    break
        self.require(sorted(seen))
        types = {name: types.get(name, tf.float32) for name in self.rows.kinds}
        self.check_schema(self._schema(types))
        return types

    def _schema(self, types):
        import pyarrow as pa

        kinds = self.rows.kinds
        one = {name: _arrow(dtype) for name, dtype in types.items()}
        return pa.schema(
            (name, pa.large_list(one[name]) if kinds[name] == "list" else one[name]) for name in kinds
        )

    def parsed(self, block_rows):
        import pyarrow as pa

        with self._readable():
            types = self._types()
            wanted = {name: tf.io.RaggedFeature(types[name], row_splits_dtype=tf.int64) for name in types}
            for records in self._records().batch(block_rows).prefetch(1):
                with tf.device("CPU:0"):
                    examples = tf.io.parse_example(records, wanted)
                    read = int(tf.reduce_sum(tf.strings.length(records) + _FRAME))
                columns = {}
                for name, column in examples.items():
                    values = pa.array(column.flat_values.numpy(), _arrow(types[name]))
                    columns[name] = pa.LargeListArray.from_arrays(column.row_splits.numpy(), values)
                self.bytes_read += 0 if self.source.endswith(".gz") else read
                yield pa.record_batch(columns)

    def _readable(self):
        return self.naming_errors("TFRecord", tf.errors.OpError, _decode_error())

    def _convert(self, name, kind, column):
        """Return a NumPy column or `Lists`; and `{row: what is wrong}`. Each example has a list of values."""
        import pyarrow as pa

        if kind == "list":
            return super()._convert(name, kind, column)
        lengths = column.value_lengths().to_numpy()
        first = pa.array(column.offsets.to_numpy()[:-1], mask=lengths == 0)
        values, wrong = super()._convert(name, kind, column.values.take(first))
        several = np.flatnonzero(lengths > 1).tolist()
        return values, wrong | {
            row: f"{name!r} must have one value. Received: {lengths[row]}" for row in several
        }


def _arrow(dtype):
    """Return the type of values in Arrow."""
    import pyarrow as pa

    return pa.binary() if dtype == tf.string else pa.from_numpy_dtype(dtype.as_numpy_dtype)


def _decode_error():
    from google.protobuf.message import DecodeError

    return DecodeError
