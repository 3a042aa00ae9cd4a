"""`show_versions`: what a report of a bug needs to say of the machine and the packages."""

import importlib.metadata
import os
import platform

import keras
import tensorflow as tf

from keras_largeout._version import __version__
from keras_largeout.ops import build_info


def _installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def show_versions() -> None:
    """Print the versions that a bug report needs.

    One line each: this package and its compiled ops, TensorFlow, Keras, NumPy, optional packages, Python, the
    operating system, the number of devices, and environment variables that change what runs. The call starts
    TensorFlow: make it after `kl.distribute.strategy(n)`, not before.

    Example:

    ```python
    kl.show_versions()
    ```
    """
    built = build_info()
    devices = [device.device_type for device in tf.config.list_logical_devices()]
    lines = {
        "keras_largeout": __version__,
        "compiled ops": ", ".join(f"{name} {value or 'none'}" for name, value in built.items()),
        "tensorflow": tf.__version__,
        "keras": f"{keras.__version__}, backend {keras.backend.backend()}",
        **{name: _installed(name) for name in ("numpy", "h5py", "scipy", "pyarrow")},
        "python": platform.python_version(),
        "system": f"{platform.platform()}, {os.cpu_count()} processors",
        "devices": ", ".join(f"{devices.count(kind)} {kind}" for kind in sorted(set(devices))),
        "dtype policy": keras.config.dtype_policy().name,
    }
    variables = ("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")
    lines |= {name: os.environ[name] for name in variables if name in os.environ}
    for name, value in lines.items():
        print(f"{name:24}{value}")
