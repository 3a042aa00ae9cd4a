"""Answers without the whole of a head: approximate search by libraries that are made for it."""

from keras_largeout.serving.class_index import ClassIndex, index

__all__ = ["ClassIndex", "index"]
