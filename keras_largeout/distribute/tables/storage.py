"""Where the memory of a table's rows is: a question apart from which device owns a row (`Placement`)."""

import tensorflow as tf

from keras_largeout.distribute.planning.specs import STORAGES


def check_storage(storage):
    """`storage` itself, an argument of a layer. Raises ValueError where it is none."""
    if storage in STORAGES:
        return storage
    raise ValueError(f"`storage` must be one of {STORAGES}. Received: storage={storage!r}")


def planned_storage(storage, placement, name):
    """`storage`, or "host" where a `Plan` says so of the table `name`."""
    return getattr(placement, "storages", {}).get(name, storage) if storage == "device" else storage


def memories_of(devices, storage):
    """The device in whose memory the rows lie that each of `devices` owns.

    Args:
        devices: tuple of names of devices, or of None (TensorFlow's choice).
        storage: "device" (its own memory), or "host" (that of its process).

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
