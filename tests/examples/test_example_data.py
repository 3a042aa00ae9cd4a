"""The data of the examples, from small sources: what no run of an example would notice."""

import ast
import gzip
import importlib
import math
import pathlib
import types

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SOURCE = '''
import top

def first(a, *rest, key=other):
    """Opens a file. Grüße."""
    import os.path, json
    from ..up import thing
    with open(os.path.join(a, name("x"))) as file:
        return file.read("ü").strip().split(key)

class C:
    async def second(self):
        def inner(x: int):
            return len(self.items)
        y = x = self.find(inner)[0]()
        for item in y:
            if item:
                y += os.path.join(item)
'''


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_windows_have_each_word_once_as_a_target_and_one_mask(example):
    lm = example("language_model")
    text = np.int32([5, 6, 7, 8, 9, lm.END])
    rows = lm.windows([text, text[2:]], steps=4)
    read, targets = (np.concatenate(side) for side in zip(*lm.batches(rows, batch=2).as_numpy_iterator()))
    np.testing.assert_array_equal(read, [[lm.END, 5, 6, 7], [8, 9, 0, 0], [lm.END, 7, 8, 9]])
    np.testing.assert_array_equal(targets, [[5, 6, 7, 8], [9, lm.END, 0, 0], [7, 8, 9, lm.END]])
    rare = lm.batches(np.tile(np.int32([[3, 4, 9]]), (2000, 1)), 500, first_rare=9, seed=0).take(4)
    hidden = np.concatenate([targets[:, 1] for _, targets in rare.as_numpy_iterator()]) == lm.UNKNOWN
    assert 0.05 < hidden.mean() < 0.15


def test_the_vocabulary_is_that_of_the_training_text(example, tmp_path):
    (tmp_path / "train.txt").write_text("b a a c a b\nc d\n")
    (tmp_path / "valid.gz").write_bytes(gzip.compress(b"a z d\n"))
    files = ["--corpus", str(tmp_path / "train.txt"), "--validation", str(tmp_path / "valid.gz")]
    lm = example("language_model")
    corpus = lm.read_corpus(lm.arguments(files))
    assert corpus.words == ["<pad>", "<unk>", "<end>", "a", "b", "c", "d"] and corpus.first_rare == 6
    assert corpus.train[0].tolist() == [4, 3, 3, 5, 3, 4, 2, 5, 6, 2]
    assert corpus.validation[0].tolist() == [3, 1, 6, 2]
    np.testing.assert_allclose(corpus.counts, [0.01, 0.1, 2, 3, 2, 2, 1])


def test_labels_of_a_function_are_cut_out_of_its_text(example, tmp_path):
    (tmp_path / "source.py").write_text(SOURCE, "utf-8")
    functions = example("extreme_classification").functions(tmp_path / "source.py")
    found = {name: (labels, " ".join(text.split())) for name, labels, text in functions}
    labels, text = found["first"]
    assert labels == {
        *("import os.path", "import json", "import ..up"),
        *("open", "os.path.join", "name", "file.read", ".strip", ".split"),
    }
    assert text.endswith('with ( (a, ("x"))) as file: return ("ü"). (). (key)')
    assert found["second"][0] == {"len", "self.find", "os.path.join"} and found["inner"][0] == {"len"}


def test_names_of_a_function_in_the_order_of_its_text(example):
    found = {names[0]: " ".join(names) for names in example("_common").names_used(ast.parse(SOURCE))}
    assert found == {
        "a": "a rest key open os path join a name file file read strip split key",
        "self": "self y x self find inner item y item y os path join item",
        "x": "x len self items",
    }


def test_lines_of_numbers_and_what_is_held_out(example, tmp_path):
    (tmp_path / "train.txt").write_text("7 10 20 30 10\n\n8 10 20 30 40 50\n9 10 20 30 40\n")
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"7 40 20 60\n"))
    data = example("_common").interactions(tmp_path)
    assert data.counts.tolist() == [2, 2, 2, 0, 0, 0]  # 9 has four items only
    assert [user[:4].tolist() for user in data.users] == [[0, 1, 2, 3]] * 2
    next_item = example("next_item")
    users = [np.arange(start, start + length, dtype=np.int32) for start, length in ((0, 5), (10, 13))]
    rows = next_item.rows_of(users, 4)
    assert sorted(rows[:, 1:][rows[:, 1:] >= 0].tolist()) == [1, 2, *range(11, 21)]
    ((inputs, items),) = next_item.held_out(users, 4, last=1)
    assert items.tolist() == [4, 22] and inputs["seen"][1].tolist() == list(range(10, 22))
    assert inputs["items"][1].tolist() == [18, 19, 20, 21]
    read, following = next(iter(next_item.batches(rows, 4, seed=0)))
    np.testing.assert_array_equal(read["items"] >= 0, following >= 0)


def test_negatives_and_measures_of_collaborative_filtering(example, rng, tmp_path):
    filtering = example("collaborative_filtering")
    users = [rng.permutation(40)[: 6 + user].astype(np.int32) for user in range(30)]
    train, test = [user[3:] for user in users], [user[:3] for user in users]
    args = types.SimpleNamespace(**vars(filtering.arguments(["--quick", "--negatives", "3"])))
    batches = filtering.Batches(args, train, 40)
    pairs = {(user, item) for user, items in enumerate(train) for item in items.tolist()}
    for ids, label in batches.epoch(2):
        found = list(zip(ids["user"].tolist(), ids["item"].tolist()))
        assert set(found[: args.batch]) <= pairs and not set(found[args.batch :]) & pairs
        assert label[:, 0].tolist() == [1] * args.batch + [0] * 3 * args.batch
    for kind in ("factorisation", "neural"):
        args.model = kind
        model = filtering.build(args, 30, 40, batches.size, tmp_path)
        every = {"user": np.repeat(np.arange(30), 40), "item": np.tile(np.arange(40), 30)}
        scores = model.predict(every, verbose=0, batch_size=1200).reshape(30, 40)
        recalls, gains = [], []
        for user in range(30):
            scores[user, train[user]] = -np.inf
            hits = np.isin(np.argsort(-scores[user])[:5], test[user])
            recalls.append(hits.sum() / 3)
            gains.append((hits / np.log2(np.arange(2, 7))).sum() / sum(1 / math.log2(i) for i in (2, 3, 4)))
        found = filtering.measure(model, train, test, k=5)
        assert found["Recall@5"] == pytest.approx(np.mean(recalls), rel=1e-5)
        assert found["NDCG@5"] == pytest.approx(np.mean(gains), rel=1e-5)


def test_assignments_by_hand(example):
    click = example("click_through")
    columns = [*click.CATEGORIES, *click.NUMBERS, "again"]
    rows = [dict(zip(columns, row)) for row in click.rows_of(ast.parse(SOURCE), "pkg.mod")]
    found = [(row["function"], row["name"], row["again"]) for row in rows if row["function"] == "second"]
    assert found == [("second", *rest) for rest in (("y", 1), ("x", 0), ("item", 0), ("y", 0))]
    added = rows[[row["inside"] for row in rows].index("For>If")]
    assert (added["package"], added["statement"], added["called"]) == ("pkg", "AugAssign", "os.path.join")
    assert (added["line"], added["arguments"], added["depth"]) == (6, 1, 2)


def test_lines_of_criteo(example, tmp_path):
    line = "\t".join(["1", *map(str, range(13)), *["68fd1e64"] * 25, ""])
    (tmp_path / "train.txt").write_text(f"{line}\n" * 30)
    ranking = example("ranking")
    rows, train, test, best = ranking.read(ranking.arguments(["--data", str(tmp_path / "train.txt")]))
    assert len(rows) == 26 and best is None
    assert [sum(len(labels) for _, labels in side) for side in (train, test)] == [27, 3]
    inputs, _ = next(iter(train))
    np.testing.assert_allclose(inputs["numbers"][0], np.log1p(np.arange(13)), rtol=1e-6)
    assert inputs["c1"][0] < rows[0] and inputs["c26"].shape == (27,)


def test_the_generated_log_is_that_of_its_seed(example):
    ranking = example("ranking")
    rows = np.geomspace(10, 2000, 26).round().astype(int).tolist()
    (x, labels, truth), (other, *_) = ranking.generate(rows, 3, [7, 8])
    again, *_ = next(ranking.generate(rows, 3, [7]))
    np.testing.assert_array_equal(x["c20"], again["c20"])
    assert not np.array_equal(x["c20"], other["c20"])
    assert all(x[f"c{i + 1}"].max() < count for i, count in enumerate(rows)) and x["c9"].shape == (4096, 5)
    for part in np.array_split(np.argsort(truth), 4):  # labels are drawn from the probabilities
        assert labels[part].mean() == pytest.approx(truth[part].mean(), abs=0.05)
