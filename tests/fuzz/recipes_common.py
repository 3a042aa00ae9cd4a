"""Calls of the ops of common that they accept."""

import pathlib
import tempfile

import tensorflow as tf

from tests.fuzz.recipes import RECIPES

_FOLDER = pathlib.Path(tempfile.gettempdir(), "largeout-fuzz")


def file_arguments(d):
    """A file of a few sizes, which the next calls find, or do not."""
    _FOLDER.mkdir(exist_ok=True)
    dtype = d.pick([tf.float32, tf.bfloat16, tf.uint8])
    return {
        "path": tf.constant(str(_FOLDER / f"rows{d.size(0, 9)}")),
        "shape": tf.constant([d.size(0, 5), d.size(0, 2000)][: d.size(0, 3)], tf.int64),
        "dtype": dtype,
        "read_only": d.chance(0.3),
    }


RECIPES.update(MappedTable=file_arguments)
