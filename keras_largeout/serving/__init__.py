"""Serving: changes of an exported model, approximate search for the best classes of a head, beam search."""

from keras_largeout.serving.apply import apply_delta
from keras_largeout.serving.beams import beam_search
from keras_largeout.serving.class_index import ClassIndex, index, load_index
from keras_largeout.serving.delta import export_delta

__all__ = ["ClassIndex", "apply_delta", "beam_search", "export_delta", "index", "load_index"]
