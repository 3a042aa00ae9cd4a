"""Tables on parameter servers, written to files and read again by the servers themselves."""

import contextlib
import contextvars
import json
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from keras_largeout._context import setting
from keras_largeout.files.origin import path_from_file, path_in_file
from keras_largeout.replicas.devices import device_scope
from keras_largeout.tables.shard import ShardVariable, outside_tables

_FILE_BYTES = 128 << 20
_FOLDER = "tables-"
_active: contextvars.ContextVar["_Files | None"] = contextvars.ContextVar(
    "keras_largeout_server_files", default=None
)


@contextlib.contextmanager
def server_files(folder: str | os.PathLike, keep: int = 1) -> Iterator[None]:
    """Let parameter servers write their tables to files, not through the chief.

    What is saved inside (`model.save_weights`, `model.save`) holds everything but the rows of such tables and
    of their optimizer slots, and says where those are: in a new folder inside `folder`, a file of up to
    128 MiB for so many rows of a server. It says so relative to its own folder: both may be moved together.
    Loading needs no context: the servers read their rows. It needs the same placement, so as many servers and
    the same plan. When the context ends without an error, folders written before are removed. Tables that are
    not on parameter servers are saved as ever.

    Args:
        folder: path that the chief and all servers reach under this name.
        keep: int > 0, how many folders, the new one among them, are left. Defaults to `1`.

    Raises:
        OSError: a server's files cannot be written, or the chief does not find them.

    Example:

    ```python
    with kl.distribute.server_files("/shared/run"):
        model.save_weights("/shared/run/model.weights.h5")
    ```
    """
    if keep < 1:
        raise ValueError(f"`keep` must be positive. Received: keep={keep}")
    folder = os.path.abspath(folder) if "://" not in os.fspath(folder) else os.fspath(folder)
    files = _Files(f"{folder}/{_FOLDER}{1 + max(_numbers(folder), default=0)}")
    try:
        with setting(_active, files):
            yield
    except BaseException:
        files.remove()
        raise
    if files.count:
        for number in sorted(_numbers(folder))[:-keep]:
            tf.io.gfile.rmtree(f"{folder}/{_FOLDER}{number}")


def bytes_to_save(model):
    """Return how many bytes a file of `model` has at least: those of its variables and of its tables'
    slots.
    """
    variables = list(model.variables)
    if getattr(model, "optimizer", None) is not None:
        variables += model.optimizer.variables
    tables = {id(v.array): v.array for v in variables if isinstance(v, ShardVariable)}.values()
    there = _active.get() is not None
    arrays = [a for table in tables for a in table.arrays() if not (there and a.table.remote)]
    arrays = {id(array): array for array in [*arrays, *outside_tables(variables)]}.values()
    return sum(math.prod(array.shape) * tf.as_dtype(array.dtype).size for array in arrays)


def save_there(span, store, key):
    """Let servers write the rows of a `RowRange`, inside `server_files`. Return whether they did."""
    files = _active.get()
    if files is None or not span.array.table.remote:
        return False
    said = {
        "files": path_in_file(files.write(span)),
        "shape": span.shape,
        "placement": span.array.placement.digest,
    }
    store[_key(key)] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    return True


def saved_there(store, key):
    """Return what `save_there` has said about the rows `key`: a dict with "shape"; None where it wrote
    none.
    """
    if _key(key) not in store:
        return None
    said = json.loads(bytes(np.asarray(store[_key(key)], np.uint8)))
    return {**said, "files": path_from_file(said["files"], store)}


def check_there(span, said, read):
    """Looks for what `save_there` wrote; `read`: the servers read all of it, too, and change nothing.

    Raises:
        ValueError: the rows were placed otherwise when they were written.
        OSError: a file is missing, or its rows do not have the checksums that TensorFlow saved with them.
    """
    if not span.array.table.remote or said["placement"] != span.array.placement.digest:
        raise ValueError(
            f"The rows of `{span.array.name}` in {said['files']} were written by parameter servers under "
            "another placement: there must be as many servers, and the same plan. (What is saved without "
            "`kl.distribute.server_files` can be loaded anywhere.) "
            f"Received: {span.array.placement!r}"
        )
    pieces = list(_pieces(span, said["files"]))
    _all_there(prefix for _, prefix, _ in pieces)
    if read:
        _on_each_server(pieces, _read_only)


def load_there(span, said):
    """Let the servers read the files that `save_there` wrote and `check_there` found."""
    _on_each_server(list(_pieces(span, said["files"])), _read)


class _Files:
    """A folder that servers write to."""

    def __init__(self, folder):
        self._folder = folder
        self.count = 0

    def write(self, span):
        """Writes the rows of `span`; the beginning of the files' names."""
        prefix = f"{self._folder}/{self.count:04d}"
        tf.io.gfile.makedirs(self._folder)
        self.count += 1
        pieces = list(_pieces(span, prefix))
        _on_each_server(pieces, _write)
        _all_there(prefix for _, prefix, _ in pieces)
        return prefix

    def remove(self):
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.rmtree(self._folder)


def _numbers(folder):
    """Return the numbers of the folders of tables in `folder`; a later one has a larger number."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    found = [re.fullmatch(rf"{_FOLDER}([1-9]\d*)/?", name) for name in names]
    return [int(match[1]) for match in found if match]


def _key(key):
    return f"{key}_on_servers"


def _pieces(span, prefix):
    """Yield `(tf.Variable, path, its rows)` of each file; rows: `(start, stop)`, or an array of them."""
    array = span.array
    all_rows = span.shape[0] == array.shape[0]
    for key, part in array.parts.items():
        (variable,) = part.copies
        held = None
        if not all_rows:
            _, held = array.held(key, np.arange(span.start, span.start + span.shape[0]))
        count = variable.shape[0] if held is None else len(held)
        row_bytes = int(np.prod(variable.shape[1:], dtype=np.int64)) * variable.dtype.size
        step = max(1, _FILE_BYTES // max(1, row_bytes))
        for index, start in enumerate(range(0, count, step)):
            stop = min(start + step, count)
            rows = (start, stop) if held is None else held[start:stop]
            yield variable, f"{prefix}-{key}-{index:05d}", rows


def _on_each_server(pieces, function):
    """Run `function(*piece)` for all pieces: in parallel on the servers, one after another on each."""
    servers = {}
    for piece in pieces:
        servers.setdefault(piece[0].device, []).append(piece)

    def work(own):
        for piece in own:
            function(*piece)
        with device_scope(own[-1][0]):
            tf.zeros([]).numpy()  # an answer: what came before it is done

    with ThreadPoolExecutor(max(1, len(servers))) as threads:
        list(threads.map(work, servers.values()))


def _write(variable, prefix, rows):
    with tf.init_scope(), device_scope(variable):
        values = tf.gather(variable, _indices(rows))
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["rows"], shape_and_slices=[""], tensors=[values])


def _read_only(variable, prefix, rows):
    with tf.init_scope(), device_scope(variable):
        try:
            (values,) = _restored(variable, prefix)
            found = tf.shape(values).numpy()[0]
        except (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError) as error:
            raise OSError(f"{prefix} is damaged: a server must read it. Received: {error.message}") from error
    expected = rows[1] - rows[0] if isinstance(rows, tuple) else len(rows)
    if found != expected:
        raise OSError(f"{prefix} is damaged: it must have {expected} rows. Received: {found}")


def _restored(variable, prefix):
    return tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=["rows"], shape_and_slices=[""], dtypes=[variable.dtype]
    )


def _read(variable, prefix, rows):
    with tf.init_scope(), device_scope(variable):
        (values,) = _restored(variable, prefix)
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=_indices(rows), updates=values)


def _indices(rows):
    return tf.range(*rows, dtype=tf.int64) if isinstance(rows, tuple) else tf.constant(rows, tf.int64)


def _all_there(prefixes):
    for prefix in prefixes:
        if not tf.io.gfile.exists(f"{prefix}.index"):
            raise FileNotFoundError(
                f"The chief does not find {prefix}.index, which a parameter server writes and reads: its "
                "folder must be one that all machines of the cluster reach under this name."
            )
