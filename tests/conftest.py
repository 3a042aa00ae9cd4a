"""Shared fixtures. The suite runs in parallel processes: TensorFlow must be quiet."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
