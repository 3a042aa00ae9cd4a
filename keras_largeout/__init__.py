"""Keras 3 layers for models whose first or last layer is too large."""

from keras_largeout._version import __version__
from keras_largeout.ops import _library as _library  # first: it says what is wrong with an installation

# isort: split
from keras_largeout import callbacks, datasets, distribute, layers, metrics, optimizers, serving, trees
from keras_largeout.export import export_saved_model, stock_ops
from keras_largeout.model import Model, Sequential
from keras_largeout.resizing import resize
from keras_largeout.tables.storage.closing import close_files
from keras_largeout.tables.storage.places import storage
from keras_largeout.versions import show_versions
from keras_largeout.warm_starting import warm_start

__all__ = [
    "Model",
    "Sequential",
    "__version__",
    "callbacks",
    "close_files",
    "datasets",
    "distribute",
    "export_saved_model",
    "layers",
    "metrics",
    "optimizers",
    "resize",
    "serving",
    "show_versions",
    "stock_ops",
    "storage",
    "trees",
    "warm_start",
]
