"""Fixtures and devices that all tests share. `_tiers.py` says which tests run."""

import gc
import importlib.util
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest
import tensorflow as tf

pytest_plugins = ["_tiers", "tests.distribute._processes"]

# Processes that tests start run the same Python files as the tests, wherever they are started.
_package = pathlib.Path(importlib.util.find_spec("keras_largeout").origin).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_package), os.environ.get("PYTHONPATH")]))

# Logical CPUs stand for GPUs: 8 devices whatever the machine has. Before anything else runs on a device.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
# A single GPU is cut into 8 as well, of a GB each: several processes share it.
for gpu in tf.config.list_physical_devices("GPU")[:1]:
    tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(1024)] * 8)


def pytest_addoption(parser):
    parser.addoption(
        "--defaults",
        action="store_true",
        help="leave TensorFlow's defaults on a GPU: products of TF32, and ops that are not deterministic",
    )


def pytest_configure(config):
    """TensorFlow's rewriting of graphs is off: it takes longer than the few runs that a graph has here.

    (The table of layers: 306 s without it, 444 with it.) It is on in the soak tier, and in processes that
    tests, examples and benchmarks start: servers, `benchmarks.same_numbers`.
    """
    _rewrite_graphs("soak" in (config.option.markexpr, config.option.tier))
    if not config.option.defaults:
        _be_exact()


def _be_exact():
    # Products of Keras layers as exact on a GPU as on a CPU.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if tf.config.list_physical_devices("GPU"):
        # Two trainings have the same bits there only if TensorFlow's own ops have.
        tf.config.experimental.enable_op_determinism()


def _rewrite_graphs(on):
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not on})


def pytest_collection_finish():
    """Python's collector goes through all objects again and again while graphs are traced.

    Those of the imports stay: it need not look at them. (45 tests of 4 devices: 123 s for 132.)
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def rewritten_graphs():
    """For a test whose tolerance holds for graphs as a user's program runs them."""
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    _rewrite_graphs(True)
    yield
    _rewrite_graphs(not before)


@pytest.fixture
def on_cpu():
    """The test runs on the CPU also where there is a GPU: its ops, or what it says of them, are of CPUs."""
    with tf.device("CPU:0"):
        yield


@pytest.fixture
def gpus(monkeypatch):
    """Logical CPUs are GPUs for code that asks whether there are some: all but CPU:0, the host."""
    known = tf.config.list_logical_devices
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: known("CPU")[1:] if kind == "GPU" else known(kind),
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def figures(monkeypatch):
    """The pictures that a test draws. They are kept, and not written."""
    figure = pytest.importorskip("matplotlib.figure")
    kept = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *args, **kwargs: kept.append(self))
    return kept
