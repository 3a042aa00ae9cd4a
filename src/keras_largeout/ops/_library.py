"""The only place that loads the compiled ops, and the only one that knows what can go wrong with it."""

import importlib.resources

import keras
import tensorflow as tf


def _fail(found, remedy):
    raise ImportError(f"keras_largeout cannot be used here: {found} {remedy}")


def _load():
    if keras.backend.backend() != "tensorflow":
        _fail(
            f"Keras runs on the {keras.backend.backend()!r} backend, and its ops are TensorFlow ops.",
            "Set the environment variable KERAS_BACKEND=tensorflow (or `backend` in ~/.keras/keras.json) "
            "before keras is imported.",
        )
    path = importlib.resources.files("keras_largeout.ops").joinpath("_largeout_ops.so")
    if not path.is_file():
        _fail(
            f"the compiled ops are missing ({path} does not exist).",
            "Install the package with `pip install .` from its source folder; a folder of sources on the "
            "Python path is not enough.",
        )
    try:
        from keras_largeout.ops import _build_info
    except ImportError:
        _fail("the record of the build (ops/_build_info.py) is missing.", "Reinstall with `pip install .`.")
    built, running = _build_info.TENSORFLOW, tf.__version__
    if built.split(".")[:2] != running.split(".")[:2]:
        _fail(
            f"its ops were built for TensorFlow {built}, and TensorFlow {running} is installed.",
            f"Install tensorflow~={built}, or rebuild keras_largeout from source against {running}.",
        )
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        _fail(
            f"TensorFlow {running} could not load {path}: {error}.",
            "Reinstall with `pip install --force-reinstall --no-cache-dir .`.",
        )


ops = _load()


def build_info():
    """How the compiled ops were built: a dict of str.

    `tensorflow`, `cuda` ("" without), `compiler`, `isa` (the instruction-set level in use), `sources` (a
    digest: two builds with the same one have the same ops). Under a `tf.device` of another process it speaks
        of that process.
    """
    values = [v.decode() for v in ops.largeout_build_info().numpy()]
    return dict(zip(("tensorflow", "cuda", "compiler", "isa", "sources"), values))
