"""Serving: changes of an exported model, and approximate search for the best classes of a head."""

from keras_largeout.serving.apply import apply_delta
from keras_largeout.serving.class_index import ClassIndex, index
from keras_largeout.serving.delta import export_delta

__all__ = ["ClassIndex", "apply_delta", "export_delta", "index"]
