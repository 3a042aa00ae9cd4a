"""`export_delta`: the rows of an export that differ from those of an earlier one.

`apply.py` beside it has the format of the file, and reads it.
"""

import json
import os
import pathlib
import zipfile
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.distribute.hosts.multi_worker import hosts_of_model, written_by_first
from keras_largeout.export import export_saved_model
from keras_largeout.files.atomic_write import scratch_in, whole_file
from keras_largeout.serving import apply


def export_delta(
    serving: keras.Model | str | os.PathLike,
    base: str | os.PathLike,
    path: str | os.PathLike,
    input_signature: Any = None,
    table_dtype: str | None = None,
) -> dict[str, int]:
    """Writes what changed in a model after an export: the rows that differ, and all of what is small.

    `kl.serving.apply_delta` makes the new version from it and the base, where the model is served. Its
    answers are those of a whole export, to the bit. A row is written if one of its bytes differs. A step
    changes the rows of a batch, of embeddings and of most heads. A `FullSoftmax` and a `SparseOutput` change
    every class in each step, and are written whole.

    The whole of the model is exported into a scratch folder beside `path` and compared with the base. Export
    it yourself and give the path of that, if it is the base of the next delta. One variable at a time is
    read, of both exports.

    Args:
        serving: `keras.Model` as for `kl.export_saved_model`, or the path of an export of it.
        base: the path of the export that is served. It may be what `apply_delta` wrote.
        path: the file to write.
        input_signature: as in `kl.export_saved_model`. Defaults to `None`.
        table_dtype: as in `kl.export_saved_model`: that of the base. Defaults to `None`.

    Returns:
        Dict of ints: `rows` of all variables, `changed_rows` that the file has, `bytes` of the file. {} on
        other hosts than the first one.

    Raises:
        ValueError: the base has no version, since it was not written by `kl.export_saved_model`; or as in
            `kl.export_saved_model`.

    Example:

    ```python
    kl.export_saved_model(serving, "export/1")
    model.fit(data)
    print(kl.serving.export_delta(serving, "export/1", "update.delta"))
    kl.serving.apply_delta("export/1", "update.delta", "export/2")
    ```
    """
    if not isinstance(serving, keras.Model):
        return _write(base, serving, path)
    hosts = hosts_of_model(serving)
    if hosts.is_first:
        apply.version_of(base)
    with (
        written_by_first(hosts, os.path.abspath(path)) as there,
        scratch_in(os.path.dirname(there)) as folder,
    ):
        new = os.path.join(folder, "new")
        export_saved_model(serving, new, input_signature, table_dtype=table_dtype)
        return _write(base, new, path) if hosts.is_first else {}


def _write(base, new, path):
    before, known = _shapes(base), apply.tensor_dtypes(base)
    about = {
        "format": apply.FORMAT,
        "base": apply.version_of(base),
        "version": apply.version_of(new),
        "same_graph": _graph(base) == _graph(new),
        "variables": {},
        "members": [],
    }
    counts = {"rows": 0, "changed_rows": 0}
    with whole_file(path) as there, zipfile.ZipFile(there, "w") as archive:

        def add(name, content, compression=zipfile.ZIP_STORED):
            archive.writestr(name, content, compression)
            about["members"].append(name)

        for number, (key, tensor) in enumerate(apply.read_tensors(new)):
            value = np.asarray(tensor)
            old = None
            if known.get(key) == tensor.dtype != tf.string and before[key][1:] == list(value.shape)[1:]:
                old = np.asarray(apply.read_tensor(base, key)) if value.ndim else None
            kept = 0 if old is None else min(len(old), len(value))
            about["variables"][key] = {
                "name": str(number),
                "dtype": tensor.dtype.name,
                "shape": list(value.shape),
                "crc32": apply.crc32(value),
                "kept": kept,
                "pieces": [],
            }
            counts["rows"] += _rows_in(value)
            for start, ids, rows in _differing(old, value):
                about["variables"][key]["pieces"].append(start)
                add(f"{number}/{start}/rows", _serialized(rows, tensor.dtype))
                if ids is not None:
                    add(f"{number}/{start}/ids", _serialized(ids, tf.int32))
                counts["changed_rows"] += _rows_in(rows)
        for file in sorted(pathlib.Path(new).rglob("*")):
            name = file.relative_to(new).as_posix()
            if file.is_file() and not name.startswith("variables/"):
                add(f"{apply.MODEL}{name}", file.read_bytes(), zipfile.ZIP_DEFLATED)
        archive.writestr(apply.ABOUT, json.dumps(about))
    return {**counts, "bytes": os.path.getsize(path)}


def _differing(old, new):
    """Yield `(start, ids, rows)` of rows in which two arrays differ, or that `new` alone has.

    `ids` are counted from `start`; None where all rows follow one another.
    """
    if new.ndim == 0 or new.dtype.kind in "OS" or new.nbytes == 0:
        yield 0, None, new
        return
    for start, rows in apply.pieces(new):
        before = rows[:0] if old is None else old[start : start + len(rows)]
        differs = np.ones(len(rows), bool)
        differs[: len(before)] = _bytes(rows[: len(before)]) != _bytes(before)
        ids = np.flatnonzero(differs).astype(np.int32)
        if len(ids) * (rows[0].nbytes + ids.itemsize) >= rows.nbytes:
            yield start, None, rows
        elif len(ids):
            yield start, ids, rows[ids]


def _bytes(rows):
    """Return rows as an array `[rows]` of their bytes."""
    row_bytes = rows.nbytes // max(len(rows), 1)
    return np.ascontiguousarray(rows).reshape(-1).view(f"V{row_bytes}") if row_bytes else np.zeros(0, "V1")


def _rows_in(array):
    return 0 if array.dtype.kind in "OS" else len(array) if array.ndim else 1


def _serialized(array, dtype):
    return tf.io.serialize_tensor(tf.constant(array, dtype)).numpy()


def _shapes(folder):
    return dict(tf.train.list_variables(os.path.join(folder, "variables", "variables")))


def _graph(folder):
    """Return what two exports share whose graphs, signatures and assets are the same."""
    found = tf.saved_model.experimental.read_fingerprint(os.fspath(folder))
    assets = sorted(file for file in pathlib.Path(folder, "assets").rglob("*") if file.is_file())
    contents = [(file.name, zlib.crc32(file.read_bytes())) for file in assets]
    return found.graph_def_program_hash, found.signature_def_hash, contents
