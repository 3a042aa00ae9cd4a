"""Sources of tables: files that are found, and the reader of each."""

import glob
import os

from keras_largeout.datasets._columnar_readers import ArrowReader, ParquetReader, TableReader
from keras_largeout.datasets._csv_reader import CsvReader
from keras_largeout.datasets._tfrecord_reader import NAME as _TFRECORD
from keras_largeout.datasets._tfrecord_reader import TfRecordReader

_READERS = {
    (".parquet", ".pq"): ParquetReader,
    (".arrow", ".arrows", ".feather", ".ipc"): ArrowReader,
    (".csv", ".tsv", ".txt", ".gz", ".bz2"): CsvReader,
}
_ENDINGS = tuple(ending for endings in _READERS for ending in endings)


def check_pyarrow():
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Reading tables needs pyarrow. Install it by: pip install keras-largeout[tables]"
        ) from error


def reader(source, rows):
    """Return the reader of a file or a table, for one pass of a `TabularFiles`."""
    if not isinstance(source, str):
        return TableReader(source, rows)
    if _TFRECORD.search(source):
        return TfRecordReader(source, rows)
    kinds = [kind for endings, kind in _READERS.items() if source.endswith(endings)]
    return (kinds or [CsvReader])[0](source, rows)


def found(files):
    """Return all sources in order: paths as str, and tables as pyarrow Tables."""
    import pyarrow as pa

    sources = []
    single = isinstance(files, (str, os.PathLike)) or _is_table(files)
    for given in [files] if single else files:
        if _is_table(given):
            sources.append(pa.RecordBatchReader.from_stream(given).read_all())
            continue
        path = os.fspath(given)
        if os.path.isdir(path):
            inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
            sources += [file for file in inside if file.endswith(_ENDINGS) or _TFRECORD.search(file)]
        else:
            sources += [path] if os.path.isfile(path) else sorted(filter(os.path.isfile, glob.glob(path)))
    if not sources:
        raise ValueError(
            f"`files` must name a file, a folder with files, or a pattern, or be a table. Received: {files!r}"
        )
    return sources


def _is_table(given):
    """Return whether an object hands its rows on as Arrow does (the Arrow PyCapsule interface)."""
    return hasattr(given, "__arrow_c_stream__")
