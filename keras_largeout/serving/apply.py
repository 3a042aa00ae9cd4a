"""Apply a delta to a served model, with TensorFlow and NumPy alone.

This file needs nothing else of the package. Copy it to a machine that serves:

    python apply.py export/1 update.delta export/2

A delta is a zip archive, which `keras_largeout.serving.export_delta` writes. `delta.json` names the version
that it changes, the new version, and for each variable of the checkpoint its shape, its CRC-32 and the pieces
that differ. A piece is the tensor `<variable>/<start>/rows`, and `<variable>/<start>/ids` has the indices of
the rows, counted from `start`; without it the rows follow one another. Other rows are those of the base.
`model/` has the files of the new SavedModel except its variables.
"""

import contextlib
import json
import os
import shutil
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

FORMAT, ABOUT, MODEL = 1, "delta.json", "model/"
#: The key of the variable of an export that tells it from others.
VERSION = "version/.ATTRIBUTES/VARIABLE_VALUE"
PIECE_BYTES = 64 << 20
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SMALL = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, ValueError, LookupError, EOFError)


def apply_delta(served: Any, delta: str | os.PathLike, path: str | os.PathLike | None = None) -> None:
    """Makes the next version of a served model from the one before and a delta.

    With `path`, a new SavedModel is written. It has the variables, the graph and so the answers of the export
    that `export_delta` compared with the base, to the bit. The folder appears under its name when it is
    complete: TensorFlow Serving loads it when it sees it. One variable at a time is in memory.

    Without `path`, the variables of a loaded model are assigned, one after the other: each is read or
    replaced as a whole, but a request that runs meanwhile may read some of each version. One variable at a
    time is twice in memory. The graph and all shapes must be those of the base.

    The file `keras_largeout/serving/apply.py` needs only TensorFlow and NumPy. Copy it to a machine that does
    not have the package, and import this function from there, or run
    `python apply.py export/1 update.delta export/2`.

    Args:
        served: the path of the base, a SavedModel; or without `path` what `tf.saved_model.load` returned.
        delta: the file that `export_delta` wrote.
        path: None, or the folder to write, which must be new. Defaults to `None`.

    Raises:
        ValueError: the delta was made for another version; or a loaded model needs another graph or other
            shapes.
        FileExistsError: `path` exists.
        OSError: a file is damaged. Nothing has changed then.

    Example:

    ```python
    kl.serving.apply_delta("export/1", "update.delta", "export/2")

    served = tf.saved_model.load("export/1")
    kl.serving.apply_delta(served, "update.delta")
    ```
    """
    with _opened(delta) as (archive, about):
        if path is None:
            _update(served, archive, about, delta)
        else:
            _write(os.fspath(served), archive, about, delta, os.path.abspath(path))


def read_tensors(folder: str | os.PathLike) -> Iterator[tuple[str, tf.Tensor]]:
    """Yield `(key, tensor)` for each variable of a SavedModel, in the order of the keys."""
    for key in sorted(tensor_dtypes(folder)):
        yield key, read_tensor(folder, key)


def tensor_dtypes(folder: str | os.PathLike) -> dict[str, tf.DType]:
    """Return the dtypes of the variables of a SavedModel, by their keys in its checkpoint."""
    return tf.train.load_checkpoint(_prefix(folder)).get_variable_to_dtype_map()


def read_tensor(folder: str | os.PathLike, key: str) -> tf.Tensor:
    """Return one variable of a SavedModel. TensorFlow compares it with its CRC-32C."""
    dtype = tensor_dtypes(folder)[key]
    with tf.device("CPU:0"):
        return tf.raw_ops.RestoreV2(
            prefix=_prefix(folder), tensor_names=[key], shape_and_slices=[""], dtypes=[dtype]
        )[0]


def version_of(folder: str | os.PathLike) -> str:
    """Return the version of an export. Raises ValueError where it has none."""
    if VERSION not in tensor_dtypes(folder):
        raise ValueError(
            "The base must be an export of `export_saved_model` of keras_largeout 0.2 or later, which has a "
            f"version. Export it again. Received: {os.fspath(folder)}"
        )
    return read_tensor(folder, VERSION).numpy().decode()


def crc32(array: np.ndarray) -> int:
    """Return the CRC-32 of the bytes of an array; of strings, of their serialized tensor."""
    if array.dtype.kind in "OS":
        return zlib.crc32(tf.io.serialize_tensor(tf.constant(array)).numpy())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _prefix(folder):
    return os.path.join(folder, "variables", "variables")


@contextlib.contextmanager
def _opened(delta):
    """Open a delta, all of whose bytes have been compared with their CRC-32."""
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(delta))
            wrong = archive.testzip()
            about = json.loads(archive.read(ABOUT))
            if wrong is None and about["format"] == FORMAT:
                missing = set(about["members"]) - set(archive.namelist())
                outside = {name for name in about["members"] if ".." in name.split("/")}
                wrong = min(missing | outside, default=None)
        except _DAMAGE as error:
            raise OSError(
                f"{os.fspath(delta)} is damaged: it must be a whole delta. Received: {error}"
            ) from error
        if about["format"] != FORMAT:
            raise ValueError(
                f"{os.fspath(delta)} must have the format {FORMAT}: take the apply.py of the version that "
                f"wrote it. Received: format {about['format']}"
            )
        if wrong is not None:
            raise OSError(f"{os.fspath(delta)} is damaged. Received: other bytes of {wrong!r}, or none")
        yield archive, about


def _check_version(found, about, delta):
    if found != about["base"]:
        raise ValueError(
            f"{os.fspath(delta)} changes the version {about['base']!r}: apply the deltas in their order, or "
            f"take a whole export. Received: the version {found!r}"
        )


def _changed(archive, key, said, base, delta):
    """Return the new value of a variable, an array; `base()` gives the array that it was."""
    old = base() if said["kept"] else None
    if old is not None and list(old.shape) == said["shape"]:
        value = old
    else:
        value = np.empty(said["shape"], tf.as_dtype(said["dtype"]).as_numpy_dtype)
        if old is not None:
            value[: said["kept"]] = old[: said["kept"]]
    for start in said["pieces"]:
        name = f"{said['name']}/{start}/"
        rows = tf.io.parse_tensor(archive.read(f"{name}rows"), said["dtype"]).numpy()
        if f"{name}ids" in archive.namelist():
            ids = tf.io.parse_tensor(archive.read(f"{name}ids"), tf.int32).numpy()
            value[start + ids.astype(np.int64)] = rows
        elif value.ndim:
            value[start : start + len(rows)] = rows
        else:
            value = np.asarray(rows, value.dtype)
    if crc32(value) != said["crc32"]:
        raise OSError(
            f"{key} of the base must have the values with which {os.fspath(delta)} was made. "
            f"Received: the CRC-32 {crc32(value):08x} in the place of {said['crc32']:08x}"
        )
    return value


def _update(served, archive, about, delta):
    """Assigns the variables of a loaded model."""
    if not hasattr(served, "version"):
        raise ValueError(
            "`served` must be what `tf.saved_model.load` returned of an export of `export_saved_model`; of "
            f"the path of an export `path` must be given. Received: {served!r:.200}"
        )
    _check_version(served.version.numpy().decode(), about, delta)
    said_of = {key: said for key, said in about["variables"].items() if key not in (VERSION, _OBJECTS)}
    variables = {key: _variable(served, key) for key in said_of}
    other = [key for key, said in said_of.items() if not _fits(variables[key], said)]
    if other or not about["same_graph"]:
        raise ValueError(
            f"{os.fspath(delta)} has another graph or other shapes than the loaded model: it must be applied "
            f"to the folder of the base, with `path`. Received: {other or 'another graph'}"
        )
    served.version.assign("")  # until all variables are of one version
    for key, variable in variables.items():
        if said_of[key]["pieces"]:
            variable.assign(_changed(archive, key, said_of[key], variable.numpy, delta))
    served.version.assign(about["version"])


def _fits(variable, said):
    """Return whether a variable can be assigned what a delta says of it, or nothing changes."""
    return not said["pieces"] if variable is None else variable.shape.is_compatible_with(said["shape"])


def _variable(served, key):
    """Return the variable of a loaded model that has a key; None where there is none."""
    path, _, attribute = key.partition("/.ATTRIBUTES/")
    try:
        for part in path.split("/"):
            served = served[int(part)] if part.isdigit() else getattr(served, part)
    except (AttributeError, LookupError, TypeError):
        return None
    return served if attribute == "VARIABLE_VALUE" and isinstance(served, tf.Variable) else None


def _write(base, archive, about, delta, path):
    """Writes a SavedModel beside `path`, and renames it."""
    if os.path.exists(path):
        raise FileExistsError(f"`path` must be new. Received: {path}")
    _check_version(version_of(base), about, delta)
    new = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    try:
        os.makedirs(os.path.join(new, "variables"))
        for name in about["members"]:
            if name.startswith(MODEL):
                to = os.path.join(new, *name[len(MODEL) :].split("/"))
                os.makedirs(os.path.dirname(to), exist_ok=True)
                with archive.open(name) as source, open(to, "wb") as target:
                    shutil.copyfileobj(source, target)
        values = (
            (key, _changed(archive, key, said, lambda k=key: read_tensor(base, k).numpy(), delta))
            for key, said in about["variables"].items()
        )
        _save(_prefix(new), os.path.join(new, "variables", "parts"), values)
        _flush(new)
        os.rename(new, path)
        _flush(os.path.dirname(path), files=False)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _save(prefix, scratch, values):
    """Writes a checkpoint, large variables in slices."""
    parts, small = [], []

    def save(*tensors):
        parts.append(os.path.join(scratch, f"part_{len(parts):05d}"))
        names, slices, values = zip(*tensors)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=parts[-1], tensor_names=names, shape_and_slices=slices, tensors=list(values)
            )

    for key, value in values:
        if value.dtype.kind in "OS" or value.nbytes <= _SMALL:
            small.append((key, "", tf.constant(value)))
            continue
        shape, whole = " ".join(map(str, value.shape)), ":-" * (value.ndim - 1)
        for start, rows in pieces(value):
            save((key, f"{shape} {start},{len(rows)}{whole}", tf.constant(rows)))
    save(*small)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False)
    shutil.rmtree(scratch, ignore_errors=True)


def pieces(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield `(start, rows)` for pieces of an array that has rows."""
    step = max(1, PIECE_BYTES * len(array) // max(array.nbytes, 1))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]


def _flush(folder, files=True):
    """Waits until a folder, and what is in it, is on the disk."""
    found = [folder]
    for top, folders, names in os.walk(folder) if files else ():
        found += [os.path.join(top, name) for name in (*folders, *names)]
    for path in found:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python apply.py BASE DELTA NEW")
    apply_delta(*sys.argv[1:])
