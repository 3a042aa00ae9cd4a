"""Custom ops, one wrapper module a family; each has its gradient and a readable `*_reference`."""

from keras_largeout.ops._library import build_info

__all__ = ["build_info"]
