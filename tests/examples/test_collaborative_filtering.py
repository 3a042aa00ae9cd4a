"""The example of collaborative filtering: data, negatives, measures, and the whole of it."""

import gzip
import importlib
import pathlib
import sys

import keras
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return lambda name, folder="_filtering": importlib.import_module(f"{folder}.{name}")


@pytest.fixture
def small(module, rng):
    """30 users, 40 items, 5 to 39 of them each."""
    found = [(user, item) for user in range(30) for item in rng.choice(40, 5 + user, replace=False)]
    pairs = module("pairs")
    return pairs.Pairs("small", 30, 40, *pairs.hold_out(np.array(found, np.int32), (0.1, 0.2), 0))


def keys(pairs):
    return {tuple(pair) for pair in pairs.tolist()}


def test_the_standard_library(module):
    data = module("pairs").standard_library(share=0.02)
    every = np.concatenate([data.train, data.valid, data.test])
    assert len(keys(every)) == len(every) and not any("import" in name.split() for name in data.item_names)
    assert np.bincount(every[:, 0]).min() >= 5 and set(every[:, 1]) == set(range(data.items))


def test_what_is_held_out(module, small):
    sides = [small.train, small.valid, small.test]
    for side in sides:
        assert side.dtype == np.int32 and sorted(side.tolist()) == side.tolist()
        assert set(side[:, 0]) == set(range(30))
    counts = np.array([np.bincount(side[:, 0]) for side in sides])
    np.testing.assert_array_equal(counts.sum(0), np.arange(5, 35))
    np.testing.assert_array_equal(counts[1], np.maximum(1, counts.sum(0) // 10))
    np.testing.assert_array_equal(counts[2], np.maximum(1, counts.sum(0) // 5))
    again = module("pairs").hold_out(np.concatenate(sides), (0.1, 0.2), 0)
    assert all((a == b).all() for a, b in zip(again, sides))
    np.testing.assert_array_equal(small.counts, [np.sum(small.train[:, 1] == i) for i in range(40)])


def test_lines_of_numbers(module, tmp_path):
    pairs = module("pairs")
    (tmp_path / "train.txt").write_text("7 10 20\n\n8 10 20 900000000000\n7 30 10\n")
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"7 40 20\n9\n8 40\n"))
    (tmp_path / "valid.txt").write_text("8 30\n")
    data = pairs.text_files(tmp_path)
    assert (data.users, data.items, data.item_names) == (2, 5, None)
    assert data.train.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 4]]
    assert data.valid.tolist() == [[1, 2]] and data.test.tolist() == [[0, 3], [1, 3]]  # 7 has 20 already
    (tmp_path / "valid.txt").unlink()
    data = pairs.text_files(tmp_path)
    assert len(data.train) == 4 and data.valid[:, 0].tolist() == [0, 1]


def test_negatives_are_not_the_users_own(module, small):
    batches = module("negatives").Batches(small, 64, 3, seed=5)
    assert batches.size == 256 and batches.steps == len(small.train) // 64
    known, drawn, positive = keys(small.train), [], []
    for ids, label in batches.epoch(2):
        found = np.stack([ids["user"], ids["item"]], axis=1)
        assert label.sum() == 64 and keys(found[:64]) <= known and not keys(found[64:]) & known
        np.testing.assert_array_equal(found[:, 0], np.tile(found[:64, 0], 4))
        positive += found[:64].tolist()
        drawn += found[64:].tolist()
    assert len(set(map(tuple, positive))) == len(positive)  # each once in an epoch
    assert {tuple(pair) for pair in drawn} & keys(small.test)  # what is held out is unknown
    again = [ids["item"] for ids, _ in batches.epoch(2)]
    other = [ids["item"] for ids, _ in batches.epoch(3)]
    first = [ids["item"].numpy() for ids, _ in batches.dataset().take(batches.steps)]
    np.testing.assert_array_equal(np.concatenate([items[64:] for items in again]), np.array(drawn)[:, 1])
    assert not np.array_equal(again, other)
    labels = [label for _, label in batches.epoch(0)]
    assert not np.shares_memory(labels[0], labels[1])  # TensorFlow may write to what a generator yields
    np.testing.assert_array_equal(first, [ids["item"] for ids, _ in batches.epoch(0)])
    with pytest.raises(ValueError, match="A user has all 2 items"):
        module("negatives").Negatives(np.array([[0, 0], [0, 1]]), 2)


@pytest.mark.parametrize("side", ["valid", "test"])
def test_measures_against_a_brute_force(module, small, rng, side):
    measures = module("measures")
    scores = rng.normal(size=(30, 40)).astype("float32")
    found = measures.Measure(small, side, cells=800)(lambda users: scores[users.numpy()])
    recalls, gains = [], []
    for user in range(30):
        known = keys(small.train) | (keys(small.valid) if side == "test" else set())
        others = [item for item in range(40) if (user, item) not in known]
        order = sorted(others, key=lambda item: -scores[user, item])[: measures.K]
        hits = [(user, item) in keys(getattr(small, side)) for item in order]
        wanted = sum(u == user for u, _ in keys(getattr(small, side)))
        discounts = 1 / np.log2(np.arange(2, measures.K + 2))
        recalls.append(sum(hits) / wanted)
        gains.append(np.dot(hits, discounts[: len(hits)]) / discounts[:wanted].sum())
    assert found[measures.RECALL] == pytest.approx(np.mean(recalls), rel=1e-5)
    assert found[measures.NDCG] == pytest.approx(np.mean(gains), rel=1e-5)
    assert len(measures.Measure(small, side, most=7).users) == 7


@pytest.mark.parametrize("kind", ["neural", "factorisation"])
def test_scores_of_all_items_are_those_of_the_model(module, small, kind):
    model = module("models").build(kind, (30, 40), 6, ({}, {}), first=1)
    users = np.array([3, 29], np.int32)
    found = module("measures").of_model(model, small)(users)
    asked = {"user": np.repeat(users, 40), "item": np.tile(np.arange(40, dtype=np.int32), 2)}
    np.testing.assert_allclose(np.reshape(found, -1), model(asked)[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none")
def test_two_optimizers(module):
    models = module("models")
    model = models.build("neural", (30, 40), 4, ({}, {}))
    models.compiled(model, models.optimizer("lazy_adam", two=True))
    model.optimizer.build(model.trainable_variables)
    of = {
        type(part).__name__: [v.path for v in part._trainable_variables]
        for part in model.optimizer.optimizers
    }
    assert [path.split("/")[-2:] for path in of["Adagrad"]] == [
        ["users", "embeddings"],
        ["items", "embeddings"],
    ]
    assert (
        len(of["Adam"]) == 6
        and type(models.optimizer("sgd", two=True, kind="factorisation")).__name__ == "Adagrad"
    )


def test_the_losses_side_by_side(module, capsys):
    show = module("report").print_losses
    assert show({"device": [0.5, 0.25], "host": [0.5, 0.25]})
    assert not show({"device": [0.5, 0.25], "host": [0.5, np.nextafter(0.25, 1)]})
    assert "0x1.0000000000001p-2" in capsys.readouterr().out


def test_the_whole_on_a_few_functions(monkeypatch, tmp_path, capsys):
    """With rows in files; the comparison of all storages is a part of `--quick`."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("collaborative_filtering")
    folder = str(tmp_path / "rows")
    monkeypatch.setattr(sys, "argv", ["", "--quick", "--storage", "file", "--folder", folder])
    example.main()
    said = capsys.readouterr().out
    for part in ("the same, to the last bit", "epoch 2", "What is recommended?", "the same, bit for bit"):
        assert part in said, said
    scores = said[said.index("The test:") :]
    assert all(f"\n{name} " in scores for name in ("most popular", "neural model", "matrix factorisation"))
    with pytest.raises(SystemExit):
        example.main()
    assert f"--folder must be empty or new: rows in it would be trained on. Received: {folder}" in (
        capsys.readouterr().err
    )
