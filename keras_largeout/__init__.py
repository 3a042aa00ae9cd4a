"""Keras 3 layers for models whose first or last layer is too large."""

from keras_largeout.ops import _library as _library

__version__ = "0.1.0"
