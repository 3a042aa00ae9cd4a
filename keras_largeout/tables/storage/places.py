"""The memory that stores a table's rows, whichever device owns a row (`Placement`)."""

import contextlib
import contextvars
import os
import secrets

import tensorflow as tf

from keras_largeout._context import setting
from keras_largeout._keras import in_safe_mode, while_loading
from keras_largeout.files.origin import current_origin, loading_from
from keras_largeout.planning.specs import STORAGES

_FILE, _MODE = "file:", "?mode="
READ_ONLY, NEW = "ro", "new"

# A folder of tables has a random number in this file, and so has the config of a layer with tables there.
_ID, _ID_FILE = "storage_id", "storage_id"

# Whether `from_config` was called outside of safe mode. (Keras is in it for the configs inside that one.)
_VOUCHED = contextvars.ContextVar("keras_largeout_vouched", default=False)

while_loading(loading_from)

# What `storage` says: the folder in place of every other one, or None; whether what is there is overwritten.
_CHOSEN: contextvars.ContextVar[tuple[str | None, bool]] = contextvars.ContextVar(
    "keras_largeout_storage", default=(None, False)
)


def storage(
    folder: str | os.PathLike | None = None, overwrite: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which tables in files (`storage="file:<folder>"`) are made elsewhere, or again.

    `keras.models.load_model`, `clone_model` and `kl.resize` never change files that are there. Where the
    folder of a table exists, the table of their model gets a new one beside it: `<folder>/<name>-2`, `-3`,
    and so on. In this context

    - `folder` takes the place of the folder that a layer was given, for instance on another machine, or
      where a file is a stranger's;
    - `overwrite=True` has a model that is loaded, cloned or resized take the folder itself. What is in there
      is deleted, unless a process uses it.

    A file says where its tables go, and the one who sent it may have chosen that. So `load_model` in safe
    mode, which is Keras's default, makes folders only

    - in the folder that `kl.storage` names,
    - below the folder of the `.keras` file, where `storage` has a relative path without "..",
    - where the tables of the saved model are: that folder has the same random number as the file.

    Anything else is a ValueError, and so is a table that is larger than the file. `safe_mode=False` loads a
    file that you trust.

    Args:
        folder: str or path, or None: that of the layer. Defaults to `None`.
        overwrite: bool. Defaults to `False`.

    Example:

    ```python
    with kl.storage("/scratch/rows"):
        model = keras.models.load_model("model.keras")
    ```
    """
    chosen = None if folder is None else os.path.abspath(os.fspath(folder))
    return setting(_CHOSEN, (chosen, bool(overwrite)))


def check_storage(storage):
    """Validate and return `storage`, an argument of a layer. Raises ValueError where it is not valid."""
    if storage in STORAGES or (folder_of(storage) and mode_of(storage) in (None, READ_ONLY, NEW)):
        return storage
    raise ValueError(
        f"`storage` must be one of {STORAGES} or 'file:<folder>', which may end in ?mode=ro or ?mode=new. "
        f"Received: storage={storage!r}"
    )


def folder_of(storage):
    """Return the path of the folder in which the rows are files; None where they are in memory."""
    if not isinstance(storage, str) or not storage.startswith(_FILE):
        return None
    path = storage[len(_FILE) :].partition(_MODE)[0]
    return os.path.abspath(path) if path else None


def mode_of(storage):
    """Return how the files of a table are used.

    Returns:
        `READ_ONLY`: they are looked up and never trained, by any number of processes. `NEW`: they are in a
        folder that was not there. None: they are opened again.
    """
    return (storage.partition(_MODE)[2] or None) if folder_of(storage) else None


def config_of_copy(config):
    """Return the config for a copy of a layer, or of a `TableConfig`: the copy has new files.

    Raises:
        ValueError: the config comes from a file in safe mode, and its folder is not allowed (`storage`).
    """
    config = dict(config)
    number, storage = config.pop(_ID, None), config.get("storage", "device")
    if folder_of(storage) is None:
        return config
    chosen, mode = _CHOSEN.get()[0], mode_of(storage) or NEW
    return {**config, "storage": f"{_FILE}{chosen or _allowed(storage, number)}{_MODE}{mode}"}


def storage_config(storage):
    """Return what the config of a layer, or of a `TableConfig`, says of its `storage`: a dict."""
    folder = folder_of(storage)
    if folder is None:
        return {"storage": storage}
    number = _number_of(folder)
    known = {} if number is None else {_ID: number}
    return {"storage": storage.removesuffix(f"{_MODE}{NEW}"), **known}


def _allowed(storage, number):
    """Return the folder of a config's `storage`, as an absolute path or as it stands there."""
    path, folder, origin = storage[len(_FILE) :].partition(_MODE)[0], folder_of(storage), current_origin()
    if _is_vouched() or (number is not None and number == _number_of(folder)):
        return path
    if origin is not None and not os.path.isabs(path) and _is_plain(os.path.normpath(path)):
        root = os.path.realpath(origin.folder)
        inside = os.path.realpath(os.path.join(root, path))
        if os.path.commonpath([root, inside]) == root:
            return inside
    raise ValueError(
        "`storage` in a file that is loaded in safe mode must be a relative path without '..' or hidden "
        "folders, or the folder in which the tables of the saved model are. To put the tables elsewhere, "
        f"load the file inside `with kl.storage({folder!r}):`, or with another folder there. "
        f"(`safe_mode=False` allows what a file says.) Received: storage={storage!r}"
    )


def as_safe_as_here():
    """Return a context in which configs inside another config are deserialized, and trusted where that is."""
    return setting(_VOUCHED, _is_vouched())


def _is_vouched():
    return _VOUCHED.get() or not in_safe_mode()


def _is_plain(path):
    """Return whether every part of a path is a visible name."""
    return all(part and not part.startswith(".") for part in path.split("/"))


def _number_of(folder):
    """Return the random number of a folder of tables, a str; None where it has none."""
    try:
        with open(os.path.join(folder, _ID_FILE), encoding="ascii") as file:
            return file.read(64) or None
    except (OSError, ValueError):
        return None


def number_folder(folder):
    """Give a folder of tables, which is made if needed, its random number."""
    with contextlib.suppress(FileExistsError, PermissionError):  # `TableFolder` says what it cannot write
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(os.path.join(folder, _ID_FILE), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(16))


def check_loaded_size(name, nbytes):
    """Raise ValueError where a file in safe mode makes something that is larger than the file itself.

    Args:
        name: str, of the table or vocabulary, for the error.
        nbytes: int, the bytes of its values.
    """
    origin = current_origin()
    if origin is None or origin.nbytes is None or not in_safe_mode() or nbytes <= origin.nbytes:
        return
    raise ValueError(
        f"The size of {name!r} must be at most that of the file that is loaded, {origin.nbytes:,} bytes: the "
        f"file has its values. (`safe_mode=False` allows what a file says.) Received: {nbytes:,} bytes"
    )


def files_of(storage, name):
    """Return where the files of the table `name` go.

    Returns:
        `(folder of all tables, path of its own folder, mode, whether what is in there is deleted)`; None
        where it is not in files.

    Raises:
        ValueError: `name` cannot be the name of a folder.
    """
    folder, mode = folder_of(storage), mode_of(storage)
    if folder is None:
        return None
    if not _is_plain(name):
        raise ValueError(
            f"The name of a table in files must not begin with '.' or have an empty part. Received: {name!r}"
        )
    chosen, overwrite = _CHOSEN.get()
    folder = chosen or folder
    return folder, os.path.join(folder, name), mode, overwrite and mode == NEW


def planned_storage(storage, placement, name):
    """Return `storage`, or "host" where a `Plan` says so of the table `name`."""
    return getattr(placement, "storages", {}).get(name, storage) if storage == "device" else storage


def storage_of_spec(storage):
    """Return what a planner is told: rows in files take nothing of a device's memory, as those in host
    memory.
    """
    return "host" if folder_of(storage) else storage


def memories_of(devices, storage):
    """Return the device in whose memory the rows are that each of `devices` owns.

    Args:
        devices: tuple of names of devices, or of None (TensorFlow's choice).
        storage: "device" (its own memory), or another (that of its process).

    Returns:
        A tuple of names; those of `devices` where nothing is gained by another.
    """
    if storage == "device":
        return devices
    return tuple(_host_of(device) for device in devices)


def _host_of(device):
    if device is None:  # what TensorFlow chooses has host memory unless there is a GPU
        return "CPU:0" if tf.config.list_logical_devices("GPU") else None
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type="CPU", device_index=0).to_string()
