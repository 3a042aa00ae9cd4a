"""The data set of the extreme classification example: what functions call, and the rest of their text."""

import importlib.util
import pathlib

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

SOURCE = '''"""Not in a function: outside()"""
import top

def first(a):
    """Opens a file. Grüße."""
    import os.path, json
    from . import sibling
    from ..up import thing
    with open(os.path.join(a, name("x"))) as file:
        return file.read("ü").strip().split(sep)

def quiet(): return 1

class C:
    async def second(self):
        def inner():
            return len(self.items)
        self.find(inner)[0]()
        return [inner() for _ in range(3)]
'''


@pytest.fixture(scope="module")
def functions():
    spec = importlib.util.spec_from_file_location("_functions", EXAMPLES / "_functions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_labels_are_what_is_called_and_imported_and_cut_out(functions, tmp_path):
    path = tmp_path / "source.py"
    path.write_text(SOURCE, "utf-8")
    found = {name: (labels, " ".join(text.split())) for name, labels, text in functions.functions_of(path)}
    assert list(found) == ["first", "second", "inner"]
    labels, text = found["first"]
    assert labels == {
        *("import os.path", "import json", "import .", "import ..up"),
        *("open", "os.path.join", "name", "file.read", ".strip", ".split"),
    }
    assert text.startswith('def first(a): """Opens a file. Grüße."""')
    assert text.endswith('with ( (a, ("x"))) as file: return ("ü"). (). (sep)')
    labels, text = found["second"]
    assert labels == {"len", "self.find", "inner", "range"}
    assert text.endswith("def inner(): return (self.items) (inner)[0]() return [ () for _ in (3)]")
    assert found["inner"] == ({"len"}, "def inner(): return (self.items)")
    outer = [(name, labels) for name, labels, _ in functions.functions_of(path, nested=False)]
    assert outer == [(name, found[name][0]) for name in ("first", "second")]  # for collaborative filtering


def test_labels_and_words_are_those_of_the_training_functions(functions):
    train = [("a", {"x", "y"}, "red green red"), ("b", {"y"}, "red blue green")]
    task = functions.index("tiny", train, [("c", {"y", "new"}, "green grey"), ("d", {"new"}, "red")])
    assert task.label_names == ["x", "y"] and task.test_names == ["c", "d"]
    assert task.train.num_labels == 2 and task.train.num_features == 2  # blue occurs once
    assert task.train.label_counts().tolist() == [1, 2]
    inputs, labels = task.test.batch()
    assert labels.to_list() == [[1], []]
    assert inputs["ids"].row_lengths().numpy().tolist() == [1, 1]
    np.testing.assert_allclose(inputs["values"].flat_values, 1.0)


def test_files_are_split_by_name_and_seed(functions, tmp_path, monkeypatch):
    for i in range(60):
        folder = tmp_path / ("site-packages" if i >= 50 else "kept")
        folder.mkdir(exist_ok=True)
        broken = "def f(:\n" if i == 7 else f"def f{i}(a, value):\n    return call{i}(a, value)\n"
        (folder / f"m{i}.py").write_text(broken)
    monkeypatch.setattr(functions.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    task = functions.standard_library(test=0.3)
    assert len(task.train) + len(task.test) == 49 and 5 <= len(task.test) <= 25
    assert task.name.startswith("functions in 49 files of the Python 3")
    assert all(name.startswith("kept/m") for name in task.test_names)
    assert functions.standard_library(test=0.3).label_names == task.label_names
    assert functions.standard_library(seed=1, test=0.3).label_names != task.label_names
    half = functions.standard_library(test=0.3, share=0.5)
    assert 12 <= len(half.train) + len(half.test) <= 37
