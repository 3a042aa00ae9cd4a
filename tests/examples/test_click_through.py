"""The click-through example: its rows, its model, its peers, files of one's own."""

import csv
import importlib
import pathlib

import numpy as np
import pytest
from _forked import run

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
pytest.importorskip("pyarrow", reason="pip install keras-largeout[tables]")

SOURCE = """
class Owner:
    def method(self, items, key=None):
        total = 0
        for item in items:
            if item:
                total += os.path.join(item, key)
        with open(key) as file, other() as (left, right):
            text: str = file.read()
        def inner():
            total = 1
        return total

def free():
    x = y = lambda: 3
    x = [y for y in x]
"""


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return lambda name: importlib.import_module(f"_click_through.{name}")


def test_assignments_by_hand(module):
    assignments = module("assignments")
    columns = [*assignments.CATEGORIES, *assignments.NUMBERS, assignments.LABEL]
    rows = [dict(zip(columns, row)) for row in assignments.rows_of(SOURCE, "pkg.mod")]
    assert all(len(columns) == len(row) for row in assignments.rows_of(SOURCE, "pkg.mod"))
    by_function = {}
    for row in rows:
        by_function.setdefault(row["function"], []).append((row["name"], row["again"]))
    assert by_function == {
        "method": [
            ("total", 1),
            ("item", 0),
            ("total", 0),
            ("file", 0),
            ("left", 0),
            ("right", 0),
            ("text", 0),
        ],
        "inner": [("total", 0)],
        "free": [("x", 1), ("y", 0), ("x", 0)],
    }
    added = rows[2]
    assert (added["class"], added["package"], added["statement"]) == ("Owner", "pkg", "AugAssign")
    assert (added["called"], added["inside"], added["depth"]) == ("path.join", "For>If", 2)
    assert (added["line"], added["arguments"], added["operand"]) == (4, 3, "item")


def test_all_rows_of_a_group_go_to_one_side(module, tmp_path):
    with module("tables").Writer(tmp_path, ["group", "number"]) as write:
        for i in range(500):
            write(f"g{i}", [[f"g{i}", j] for j in range(3)])
    sides = [list(csv.reader(path.open())) for path in write.paths]
    assert sides[0][0] == sides[1][0] == ["group", "number"]
    train, test = ({group for group, _ in side[1:]} for side in sides)
    assert not train & test and len(train | test) == 500 and 20 < len(test) < 90
    assert sum(map(len, sides)) == 1502


def own_files(folder, rows=4000):
    """Rows whose label follows from one category alone, which occurs about four times."""
    rng = np.random.default_rng(0)
    users, ads = rng.integers(0, 1000, rows), rng.integers(0, 7, rows)
    with (folder / "rows.csv").open("w") as file:
        file.write("user,ad,price,bought\n")
        for user, ad in zip(users, ads):
            file.write(f"u{user},{ad},{user / 7:.2f},{user % 3 == 0:d}\n")
    return folder


def test_files_of_ones_own(tmp_path):
    options = ["--data", str(own_files(tmp_path)), "--label", "bought", "--quick", "--epochs", "5"]
    options += ["--categories", "user,ad", "--numbers", "price", "--crosses", "user*ad"]
    code, said = run([EXAMPLES / "click_through.py", *options])
    assert code == 0, said
    assert "2 categories" in said and "1 numbers" in said
    assert "answers of the export: the same" in said
    (line,) = (line for line in said.splitlines() if line.startswith("   this model"))
    assert float(line.split()[2]) > 0.8  # AUC: a third of the users buys, always


def test_the_peers_learn(module, tmp_path):
    pytest.importorskip("sklearn")
    peers, tables, rng = module("peers"), module("tables"), np.random.default_rng(0)
    table = tables.Table("rows", [], [], ["a", "b"], ["n"], "y", [("a", "b")])
    ids = rng.integers(0, 50, (2, 20, 200))
    words = [np.array([b"w:%d |x" % i for i in part.ravel()], object).reshape(part.shape) for part in ids]
    labels = (ids[0] % 2).astype("float32")
    batches = [
        ({"a": a, "b": b, "n": np.float32(b_ids)}, y) for a, b, b_ids, y in zip(*words, ids[1], labels)
    ]
    runs = [peers.sklearn(table, batches[:15], batches[15:])]
    if importlib.util.find_spec("vowpalwabbit"):
        runs.append(peers.vowpal_wabbit(table, batches[:15], batches[15:], tmp_path))
    for truth, found, rate in runs:
        assert rate > 0 and ((found > 0.5) == truth).mean() > 0.95
