"""Shared fixtures. The suite runs in parallel processes: TensorFlow must be quiet."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# `python -m pytest` puts the repository first on the path, and the sources in it have no compiled ops unless
# they were installed in place: the installed package is the one to test.
_ROOT = pathlib.Path(__file__).resolve().parents[1]
if not (_ROOT / "keras_largeout/ops/_largeout_ops.so").exists():
    sys.path[:] = [p for p in sys.path if pathlib.Path(p or ".").resolve() != _ROOT]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
