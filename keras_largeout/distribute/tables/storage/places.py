"""Which memory a table's rows lie in: a question apart from which device owns a row (`Placement`)."""

import os

import tensorflow as tf

from keras_largeout.distribute.planning.specs import STORAGES

_FILE, _READ_ONLY = "file:", "?mode=ro"


def check_storage(storage):
    """`storage` itself, an argument of a layer. Raises ValueError where it is none."""
    if storage in STORAGES or folder_of(storage):
        return storage
    raise ValueError(f"`storage` must be one of {STORAGES} or 'file:<folder>'. Received: storage={storage!r}")


def folder_of(storage):
    """The path of the folder in which the rows are files; None where they are in memory."""
    if not isinstance(storage, str) or not storage.startswith(_FILE):
        return None
    path = storage[len(_FILE) :].removesuffix(_READ_ONLY)
    return os.path.abspath(path) if path else None


def is_read_only(storage):
    """Whether rows in files are looked up and never trained, by any number of processes: "?mode=ro"."""
    return isinstance(storage, str) and storage.startswith(_FILE) and storage.endswith(_READ_ONLY)


def planned_storage(storage, placement, name):
    """`storage`, or "host" where a `Plan` says so of the table `name`."""
    return getattr(placement, "storages", {}).get(name, storage) if storage == "device" else storage


def storage_of_spec(storage):
    """What a planner is told: rows in files take nothing of a device's memory, as those in host memory."""
    return "host" if folder_of(storage) else storage


def memories_of(devices, storage):
    """The device in whose memory the rows lie that each of `devices` owns.

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
