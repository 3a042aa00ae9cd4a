"""Shared fixtures. TensorFlow must be quiet and take few threads: the suite runs in parallel processes."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _fresh_keras():
    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()


@pytest.fixture
def rng():
    return np.random.default_rng(0)
