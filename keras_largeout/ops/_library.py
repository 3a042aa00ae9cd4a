"""The only place that loads the compiled ops, and the only one that knows what can go wrong with it.

They are their own package, `keras_largeout_ops`. So the folder of a clone may be first on the Python
path: its Python files are then used with the library that was installed.
"""

import hashlib
import pathlib

import keras
import tensorflow as tf

from keras_largeout._version import __version__

_SOURCES = pathlib.Path(__file__).resolve().parents[2] / "custom_ops"


def _fail(found, remedy):
    raise ImportError(f"keras_largeout cannot be used here: {found} {remedy}")


def registrations(sources=_SOURCES):
    """Return a digest of the files in a folder of sources that register ops; None where there are none.

    `custom_ops/cmake/build_record.cmake` computes the same when it builds the library.
    """
    lines = []
    for path in sources.glob("*/op/*_op.cc"):
        text = path.read_bytes()
        if b"\nREGISTER_OP(" in text:
            lines.append(f"{path.relative_to(sources).as_posix()} {hashlib.sha256(text).hexdigest()}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16] if lines else None


def _load():
    if keras.backend.backend() != "tensorflow":
        _fail(
            f"Keras runs on the {keras.backend.backend()!r} backend, and its ops are TensorFlow ops.",
            "Set the environment variable KERAS_BACKEND=tensorflow (or `backend` in ~/.keras/keras.json) "
            "before keras is imported.",
        )
    try:
        from keras_largeout_ops import _build_info as built

        path = pathlib.Path(built.__file__).with_name("_largeout_ops.so").resolve(strict=True)
    except (ImportError, FileNotFoundError) as error:
        _fail(
            f"its compiled ops are missing ({error}).",
            "Install it with `pip install .` in the folder of its sources.",
        )
    own = registrations()
    if __version__ != built.VERSION or own not in (None, built.REGISTRATIONS):
        _fail(
            f"the compiled ops in {path.parent} (version {built.VERSION}, ops {built.REGISTRATIONS}) do not "
            f"belong to the sources in {_SOURCES.parent} (version {__version__}, ops {own}).",
            "Rebuild them with `pip install .` in the folder of these sources.",
        )
    running = tf.__version__
    if built.TENSORFLOW.split(".")[:2] != running.split(".")[:2]:
        _fail(
            f"its ops were built for TensorFlow {built.TENSORFLOW}, and TensorFlow {running} is installed.",
            f"Install tensorflow~={built.TENSORFLOW}, or rebuild keras_largeout against {running}.",
        )
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        _fail(
            f"TensorFlow {running} could not load {path}: {error}.",
            "Reinstall with `pip install --force-reinstall --no-cache-dir .`.",
        )


ops = _load()


def build_info() -> dict[str, str]:
    """Return how the compiled ops were built: a dict of str.

    `tensorflow`, `cuda` ("" without), `compiler`, `isa` (the instruction-set level in use), `sources` (a
    digest: two builds with the same one have the same ops). Under a `tf.device` of another process it speaks
    of that process.

    Example:

    >>> sorted(kl.ops.build_info())
    ['compiler', 'cuda', 'isa', 'sources', 'tensorflow']
    """
    values = [v.decode() for v in ops.largeout_build_info().numpy()]
    return dict(zip(("tensorflow", "cuda", "compiler", "isa", "sources"), values))
