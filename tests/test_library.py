"""Loading the compiled ops: what they say of themselves, and what is said when they can't be used."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

import keras_largeout
from keras_largeout.ops import build_info

PACKAGE = pathlib.Path(keras_largeout.__file__).parent


def _import_error(path, before=""):
    """The ImportError of `import keras_largeout` in a fresh process, with `path` first on the Python path."""
    code = f"{before}\ntry:\n import keras_largeout\nexcept ImportError as e: print('ImportError:', e)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(path), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert result.stdout.startswith("ImportError: keras_largeout cannot be used here"), result.stderr
    assert result.stdout.count("\n") == 1
    return result.stdout


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "keras_largeout", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_build_info():
    info = build_info()
    assert info["tensorflow"].split(".")[:2] == tf.__version__.split(".")[:2]
    assert info["isa"] in ("generic", "x86-64-v3", "x86-64-v4")


def test_another_backend():
    message = _import_error(PACKAGE.parent, "import keras; keras.backend.backend = lambda: 'jax'")
    assert "'jax' backend" in message and "KERAS_BACKEND=tensorflow" in message


def test_missing_library(copy):
    (copy / "keras_largeout/ops/_largeout_ops.so").unlink()
    assert "pip install ." in _import_error(copy)


def test_another_tensorflow(copy):
    info = copy / "keras_largeout/ops/_build_info.py"
    info.write_text(info.read_text().replace('TENSORFLOW = "', 'TENSORFLOW = "9.'))
    message = _import_error(copy)
    assert f"TensorFlow {tf.__version__} is installed" in message and "rebuild" in message


def test_broken_library(copy):
    (copy / "keras_largeout/ops/_largeout_ops.so").write_bytes(b"not a library")
    assert "could not load" in _import_error(copy)
