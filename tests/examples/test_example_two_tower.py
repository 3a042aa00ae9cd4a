"""The two-tower example: its parts, and the whole of it on a few users."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

needs_tfrs = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tensorflow_recommenders", "tf_keras"))),
    reason="TensorFlow Recommenders is not installed: pip install '.[recommenders]'",
)


def run(*command):
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@needs_tfrs
def test_the_parts():
    done = run(ROOT / "tests/examples/_two_tower_checks.py")
    assert done.returncode == 0 and "all checks passed" in done.stdout, done.stdout + done.stderr


@needs_tfrs
def test_the_whole_on_a_few_users(tmp_path):
    done = run(EXAMPLES / "two_tower.py", "--quick", "--export", tmp_path / "export")
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("epoch 3", "What is recommended?", "never imported", "answers of the export", "Recall@20"):
        assert said in done.stdout, done.stdout
    assert (tmp_path / "export/saved_model.pb").exists()
