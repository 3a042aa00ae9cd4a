"""The two-tower example: its parts, the whole of it on a few users, and what it says without TFRS."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import _forked
import numpy as np
import pytest
from _pictures import check_legible

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


def test_without_tensorflow_recommenders(tmp_path):
    (tmp_path / "tensorflow_recommenders.py").write_text("raise ImportError('it is not here')")
    path = os.pathsep.join(map(str, filter(None, [tmp_path, os.environ.get("PYTHONPATH")])))
    code, said = _forked.run([EXAMPLES / "two_tower.py", "--quick"], {**os.environ, "PYTHONPATH": path})
    assert code == 1 and "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert "needs TensorFlow Recommenders: pip install '.[recommenders]'. (it is not here)" in last


def test_the_picture(monkeypatch, figures, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(EXAMPLES)
    plots = importlib.import_module("_plots.two_tower")
    for kind in ("ours", "keras"):
        for epochs in (1, 9):
            scores = [{plots.RECALL: 0.2 * (1 - 0.6**epoch)} for epoch in np.arange(1, epochs + 1)]
            plots.course(tmp_path, kind, scores)
    for figure in figures:
        check_legible(figure)
    assert len(figures[-1].axes[0].lines) == 2
