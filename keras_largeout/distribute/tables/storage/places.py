"""The memory that stores a table's rows, whichever device owns a row (`Placement`)."""

import contextlib
import contextvars
import os

import tensorflow as tf

from keras_largeout.distribute.planning.specs import STORAGES

_FILE, _MODE = "file:", "?mode="
READ_ONLY, NEW = "ro", "new"

# What `storage` says: the folder in place of every other one, or None; whether what is there is overwritten.
_CHOSEN = contextvars.ContextVar("keras_largeout_storage", default=(None, False))


@contextlib.contextmanager
def storage(folder=None, overwrite=False):
    """A context in which tables in files (`storage="file:<folder>"`) are made elsewhere, or anew.

    `keras.models.load_model`, `clone_model` and `kl.resize` never change files that are there. Where the
    folder of a table exists, the table of their model gets a new one beside it: `<folder>/<name>-2`, `-3`,
    and so on. In this context

    - `folder` takes the place of the folder that a layer was given, for instance on another machine;
    - `overwrite=True` has a model that is loaded, cloned or resized take the folder itself. What is in there
      is deleted, unless a process uses it.

    Args:
        folder: str or path, or None: that of the layer.
        overwrite: bool.

    Example:

    >>> with kl.storage("/scratch/rows"):
    ...     model = keras.models.load_model("model.keras")
    """
    chosen = None if folder is None else os.path.abspath(os.fspath(folder))
    token = _CHOSEN.set((chosen, bool(overwrite)))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def check_storage(storage):
    """Return `storage` itself, an argument of a layer. Raises ValueError where it is none."""
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


def of_a_copy(storage):
    """Return the `storage` of a layer that is made from the config of another one: its files are new."""
    return storage if folder_of(storage) is None or mode_of(storage) else f"{storage}{_MODE}{NEW}"


def in_a_config(storage):
    """Return the `storage` of a layer as its config says it."""
    return storage.removesuffix(f"{_MODE}{NEW}") if folder_of(storage) else storage


def files_of(storage, name):
    """Return where the files of the table `name` go.

    Returns:
        `(path of its folder, mode, whether what is in there is deleted)`; None where it is not in files.
    """
    folder, mode = folder_of(storage), mode_of(storage)
    if folder is None:
        return None
    chosen, overwrite = _CHOSEN.get()
    return os.path.join(chosen or folder, name), mode, overwrite and mode == NEW


def planned_storage(storage, placement, name):
    """Return `storage`, or "host" where a `Plan` says so of the table `name`."""
    return getattr(placement, "storages", {}).get(name, storage) if storage == "device" else storage


def storage_of_spec(storage):
    """Return what a planner is told: rows in files take nothing of a device's memory, as those in host
    memory.
    """
    return "host" if folder_of(storage) else storage


def memories_of(devices, storage):
    """Return the device in whose memory the rows lie that each of `devices` owns.

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
