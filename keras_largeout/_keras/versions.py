"""The versions of Keras that are known to work, and names that one of them may lack."""

import keras

from keras_largeout._private import private

# The versions on which the tests have run. pyproject.toml allows no others.
KNOWN = ">=3.12,<3.16"


def _need(owner, name):
    return private(owner, name, "Keras", keras.__version__, KNOWN)
