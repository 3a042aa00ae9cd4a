"""The next-item example: its data, its model, and the whole of it on a few sequences."""

import ast
import gzip
import importlib
import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from _forked import run

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


SOURCE = '''
outside(1)

@decorated(by)
def first(a, *rest, key=default):
    """Not a name."""
    with open(os.path.join(a, rest[0])) as file:
        return file.read().strip(a).split(key)

class C:
    async def second(self):
        def inner(x):
            return len(self.items)
        return [inner(y) for y in self.find(lambda z: z + 1)]
'''


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_the_names_of_a_function_in_the_order_of_the_text(module):
    found = {name: names for name, _, names in module("_next_item.sequences").functions_of(ast.parse(SOURCE))}
    assert found == {
        "first": ["a", "rest", "key", "open", "os", "path", "join", "file", "read", "strip", "split"],
        "second": ["self", "inner", "y", "find", "z"],
        "inner": ["x", "len", "self", "items"],
    }


def test_lines_of_numbers(module, tmp_path):
    sequences = module("_next_item.sequences")
    (tmp_path / "train.txt").write_text("7 10 20 30 10\n\n8 10 20 30 40 50\n9 10 20 30 40\n")
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"7 40 20 60\n"))
    data = sequences.text_files(tmp_path)
    assert "train.txt + test.txt.gz" in data.name and data.item_names is None
    assert data.counts.tolist() == [2, 2, 2, 0, 0, 0]  # 9 has 4 items only
    assert [len(user) for user in data.users] == [5, 5] and data.users[0][:4].tolist() == [0, 1, 2, 3]
    assert sequences.text_files(tmp_path / "train.txt").counts.tolist() == [1, 1, 1, 0, 0]


def test_training_rows_predict_every_known_item_once_and_none_that_is_held_out(module):
    sequences = module("_next_item.sequences")
    users = [np.arange(start, start + length, dtype=np.int32) for start, length in ((0, 5), (10, 13))]
    data = sequences.Sequences("tiny", users, np.ones(23, int))
    rows = data.rows(4)
    assert rows.shape == (4, 5)
    assert sorted(rows[:, 1:][rows[:, 1:] >= 0].tolist()) == [1, 2, *range(11, 21)]
    _, histories, items = data.held_out(1)
    assert items.tolist() == [4, 22] and histories[1].tolist() == list(range(10, 22))
    assert data.held_out(2)[2].tolist() == [3, 21]
    assert len(data.held_out(1, most=1)[1]) == 1
    read, following = next(iter(sequences.batches(rows, 4, seed=0)))
    assert read["items"].shape == following.shape == (4, 4)
    np.testing.assert_array_equal(read["items"] >= 0, following >= 0)


def test_the_model_reads_what_was_before_and_no_padding(module):
    sasrec = module("_next_item.sasrec")
    head = sasrec.make_head("tree", np.arange(40, 0, -1), 8)
    model = sasrec.build(head, 40, length=6, dim=8)
    short, long = np.array([[3, 1, 4]]), np.array([[3, 1, 4, 5, -1, -1]])
    hidden = model({"items": long})
    np.testing.assert_allclose(hidden[:, :3], model({"items": short}), atol=1e-6)
    seen = keras.Input((None,), dtype="int32", name="seen")
    predictor = head.predictor(model, k=5, position="last", exclude=seen)
    found = predictor({"items": long, "seen": long})["ids"]
    np.testing.assert_array_equal(found, head.top_k(hidden[:, 3], 5, long)[1])


def test_the_most_frequent_items_that_a_user_has_not(module):
    histories = [np.array([0, 1, 2]), np.array([4])]
    most_frequent = module("_next_item.sequences").most_frequent
    assert most_frequent((None, histories, np.array([12, 11]))) == 0.5
    assert most_frequent((None, histories, np.array([2, 10]))) == 0.5


def test_the_course_ends_in_time_and_knows_the_best(module, tmp_path):
    callbacks = module("_next_item.callbacks")
    ticks, scores = iter(np.arange(0, 1000, 0.5)), iter((0.1, 0.3, 0.2, 0.3))

    def measure():
        for _ in range(50):  # the time of measuring does not count
            next(ticks)
        return {callbacks.RECALL: next(scores), callbacks.NDCG: 0.0}

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    best = str(tmp_path / "best.weights.h5")
    course = callbacks.Course(measure, 3, 2 / 60, None, 0.5, best, clock=lambda: next(ticks))
    data = tf.data.Dataset.from_tensors((np.ones((2, 1)), np.ones((2, 1)))).repeat()
    model.fit(data, epochs=9, steps_per_epoch=3, callbacks=[course], verbose=0)
    assert [point["seconds"] for point in course.points] == [0.5, 1.0, 1.5, 2.0]
    assert course.best_point is course.points[1] and course.done == 5 and course.milliseconds == 500
    assert os.path.exists(best)


def test_the_whole_on_a_few_sequences(tmp_path):
    code, printed = run([EXAMPLES / "next_item.py", "--quick", "--save", tmp_path / "model.keras"])
    assert code == 0, printed
    for said in ("best weights, of epoch", "What comes next?", "the same, bit for bit", "Done in"):
        assert said in printed, printed
    assert (tmp_path / "model.keras").exists()
