"""The examples: one file each, and what `--quick` of `.ci/jobs.py` does not run."""

import ast
import importlib.util
import itertools
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from _forked import run

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_is_one_file_of_at_most_200_lines(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    imported = {alias.name for node in ast.walk(ast.parse(text)) for alias in getattr(node, "names", ())}
    assert text.count("\n") <= 200
    assert not imported & set(PROGRAMS), "an example imports another one"


def test_there_is_one_helper():
    assert [path.name for path in EXAMPLES.rglob("_*.py")] == ["_common.py"]


def numbers(said, line):
    """Return `{name: number}` of the line that has a text."""
    (found,) = (text for text in said.splitlines() if line in text)
    words = found.replace(",", "").split()
    return {name: float(value.rstrip("%")) for name, value in itertools.pairwise(words) if value[0].isdigit()}


def test_click_through_on_own_files(tmp_path):
    """The label follows from one category alone, which occurs about four times."""
    rng = np.random.default_rng(0)
    for side, rows in ("train", 4000), ("test", 500):
        users, ads = rng.integers(0, 1000, rows), rng.integers(0, 7, rows)
        lines = [f"u{u},{a},{u / 7:.2f},{u % 3 == 0:d}\n" for u, a in zip(users, ads)]
        (tmp_path / f"{side}.csv").write_text("user,ad,price,bought\n" + "".join(lines))
    options = [
        "--data",
        tmp_path,
        "--label",
        "bought",
        "--quick",
        "--epochs",
        "5",
        "--categories",
        "user",
        "ad",
    ]
    options += ["--numbers", "price", "--crosses", "user*ad"]
    code, said = run([EXAMPLES / "click_through.py", *options])
    assert code == 0, said
    assert numbers(said, "base rate")["auc"] > 0.8 and "The export answers as the model does" in said


@pytest.mark.parametrize("tied", [(), ("--tied",)], ids=["own rows", "tied"])
def test_next_item_on_lines_of_numbers(tmp_path, tied):
    """Each user goes round a circle of 30 items: what comes next is certain."""
    starts = np.random.default_rng(0).integers(0, 30, 400)
    rows = [" ".join(map(str, [user, *((start + np.arange(12)) % 30)])) for user, start in enumerate(starts)]
    (tmp_path / "train.txt").write_text("\n".join(rows))
    options = ["--data", tmp_path, "--quick", "--head", "full", "--epochs", "40", "--learning-rate", "0.01"]
    code, said = run([EXAMPLES / "next_item.py", *options, *tied, "--save", tmp_path / "model.keras"])
    assert code == 0, said
    assert numbers(said, "the last item of each user")["NDCG@10"] > 80
    assert (tmp_path / "model.keras").exists()


def test_collaborative_filtering_with_rows_in_files(tmp_path):
    options = ["--quick", "--storage", "file", "--folder", tmp_path / "rows"]
    code, said = run([EXAMPLES / "collaborative_filtering.py", *options])
    assert code == 0, said
    found = [line for line in said.splitlines() if line.startswith("Recall@20")]
    assert float(found[-1].split()[1].rstrip("%,")) > 15
    code, said = run([EXAMPLES / "collaborative_filtering.py", *options])
    assert code == 2 and "--folder must be empty or new" in said


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tensorflow_recommenders", "tf_keras"))),
    reason="TensorFlow Recommenders is not installed: pip install '.[recommenders]'",
)
def test_two_towers():
    """In its own process: TensorFlow Recommenders needs a variable before TensorFlow is imported."""
    command = [sys.executable, EXAMPLES / "two_tower.py", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(done.stdout, "the last item of each user")["Recall@20"] > 5
    assert "never imported" in done.stdout
