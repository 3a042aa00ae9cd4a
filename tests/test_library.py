"""Loading the compiled ops: what they say of themselves, and what is said when they can't be used."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras_largeout_ops
import pytest
import tensorflow as tf
from keras_largeout_ops import _build_info

import keras_largeout
from keras_largeout.ops import _library, build_info

pytestmark = pytest.mark.full  # each imports the package in its own process

PACKAGE = pathlib.Path(keras_largeout.__file__).parent
OPS = pathlib.Path(keras_largeout_ops.__file__).parent
IN_A_CLONE = (PACKAGE.parent / "custom_ops").is_dir()


# TensorFlow is imported once; a fork of that process imports this package in each of the ways.
_IMPORTS = """
import json, os, sys
import keras, tensorflow
for line in sys.stdin:
    path, before = json.loads(line)
    if os.fork() == 0:
        sys.path.insert(0, path)
        loaded, message = set(sys.modules), ""
        try:
            exec(before)
            import keras_largeout, keras_largeout_ops
            message = f"{keras_largeout.__file__} {keras_largeout_ops.__file__}"
        except ImportError as error:
            message = str(error)
        print(json.dumps([message, sorted(set(sys.modules) - loaded)]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def imported():
    """`imported(path)`: what `import keras_largeout` says in its own process, with `path` first on the
    Python path (the files of both packages, or an error), and the modules that it brings after those of Keras
    and TensorFlow."""
    process = subprocess.Popen(
        [sys.executable, "-c", _IMPORTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )

    def ask(path, before=""):
        process.stdin.write(json.dumps([str(path), before]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    assert process.wait() == 0


@pytest.fixture
def import_error(imported):
    """`import_error(path)`: why it cannot be used there, in one line."""

    def ask(path, before=""):
        message, _ = imported(path, before)
        assert message.startswith("keras_largeout cannot be used here") and "\n" not in message
        return message

    return ask


@pytest.fixture
def copy(tmp_path):
    """A folder with copies of both packages: its own installation."""
    for package in (PACKAGE, OPS):
        shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_build_info():
    info = build_info()
    assert info["tensorflow"].split(".")[:2] == tf.__version__.split(".")[:2]
    assert info["isa"] in ("generic", "x86-64-v3", "x86-64-v4", "x86-64-v4 with AVX512-BF16")


def test_show_versions(capsys):
    keras_largeout.show_versions()
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["keras_largeout"] == keras_largeout.__version__ and said["tensorflow"] == tf.__version__
    assert "CPU" in said["devices"] and said["python"].startswith("3.")


def test_level_of_instructions_is_lowered_by_the_environment(imported):
    told, _ = imported(
        PACKAGE.parent,
        "os.environ['LARGEOUT_ISA'] = 'generic'\n"
        "from keras_largeout.ops import build_info\n"
        "raise ImportError(build_info()['isa'])",
    )
    assert told == "generic"


def test_import_brings_nothing_else(imported):
    """What few need (SciPy, scikit-learn, PyArrow, Matplotlib, more of TensorFlow) waits until it is used."""
    _, brought = imported(PACKAGE.parent)
    roots = {name.partition(".")[0] for name in brought}
    assert {"keras_largeout", "keras_largeout_ops"} <= roots
    others = roots - set(sys.stdlib_module_names) - {"keras_largeout", "keras_largeout_ops"}
    # TensorFlow makes a module of the library's ops, and names it by a digest.
    assert not {name for name in others if not re.fullmatch(r"[0-9a-f]{40}", name)}


def test_another_backend(import_error):
    message = import_error(PACKAGE.parent, "import keras; keras.backend.backend = lambda: 'jax'")
    assert "'jax' backend" in message and "KERAS_BACKEND=tensorflow" in message


def test_missing_library(copy, import_error):
    (copy / "keras_largeout_ops/_largeout_ops.so").unlink()
    assert "pip install ." in import_error(copy)


def test_another_tensorflow(copy, import_error):
    info = copy / "keras_largeout_ops/_build_info.py"
    info.write_text(info.read_text().replace('TENSORFLOW = "', 'TENSORFLOW = "9.'))
    message = import_error(copy)
    assert f"TensorFlow {tf.__version__} is installed" in message and "rebuild" in message


def test_broken_library(copy, import_error):
    (copy / "keras_largeout_ops/_largeout_ops.so").write_bytes(b"not a library")
    assert "could not load" in import_error(copy)


def test_missing_package(copy, import_error):
    (copy / "keras_largeout_ops/_build_info.py").unlink()
    assert "pip install ." in import_error(copy)


def test_another_version(copy, import_error):
    info = copy / "keras_largeout_ops/_build_info.py"
    info.write_text(info.read_text().replace('VERSION = "', 'VERSION = "9.'))
    message = import_error(copy)
    assert "version 9." in message and "do not belong" in message and "Rebuild" in message


@pytest.mark.skipif(not IN_A_CLONE, reason="the sources of the ops are not beside the package")
def test_library_of_other_sources(copy, import_error):
    """A clone whose ops were edited (or pulled) and not built says so; kernels may differ."""
    shutil.copytree(PACKAGE.parent / "custom_ops", copy / "custom_ops")
    assert _library.registrations(copy / "custom_ops") == _build_info.REGISTRATIONS
    with open(copy / "custom_ops/exchange/exchange.cc", "a") as kernel:
        kernel.write("// edited\n")
    assert _library.registrations(copy / "custom_ops") == _build_info.REGISTRATIONS
    with open(copy / "custom_ops/exchange/op/exchange_op.cc", "a") as registration:
        registration.write("// edited\n")
    message = import_error(copy)
    assert "do not belong" in message and "Rebuild them with `pip install .`" in message


@pytest.mark.skipif(not IN_A_CLONE, reason="the sources of the ops are not beside the package")
def test_sources_of_a_clone_are_found_from_its_folder(imported):
    """`python -m keras_largeout...` in a clone runs its Python files with the library that is installed."""
    said, _ = imported(PACKAGE.parent)
    assert said.split() == [str(PACKAGE / "__init__.py"), str(OPS / "__init__.py")]


# Prints every attribute of Keras and TensorFlow, and of their classes, that importing the package changes.
_CHANGES = """
import json, sys, types
import keras, tensorflow

def snapshot():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("keras", "tensorflow"):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, types.ModuleType):
                continue
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{inner}": held for inner, held in list(vars(value).items())}
    return found

before = snapshot()
import keras_largeout
after = snapshot()
print(json.dumps([name for name, value in before.items() if name not in after or after[name] is not value]))
"""
#: Both call what they replace, with the same arguments. Without a public way, one tells a tied head of a copy
#: which embedding is its own, the other tells a table from which file it is loaded (paths in the file of a
#: stranger are refused).
_PASSED_THROUGH = {
    "keras.src.layers.core.embedding.Embedding.__init__",
    "keras.src.saving.saving_lib.load_model",
}


def test_importing_changes_nothing_of_keras_and_tensorflow():
    command = [sys.executable, "-c", _CHANGES]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == _PASSED_THROUGH
