"""Shared fixtures. The suite runs in parallel processes: TensorFlow must be quiet."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# `python -m pytest` puts the repository first on the path, and the sources in it have no compiled ops unless
# they were installed in place: the installed package is the one to test. Last on the path, the repository
# still has the benchmarks to offer.
_ROOT = pathlib.Path(__file__).resolve().parents[1]
if not (_ROOT / "keras_largeout/ops/_largeout_ops.so").exists():
    sys.path[:] = [p for p in sys.path if pathlib.Path(p or ".").resolve() != _ROOT] + [str(_ROOT)]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

# Logical CPUs stand for GPUs: 8 devices whatever the machine has. Before anything else runs on a device.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
