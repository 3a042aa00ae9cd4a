"""The data of the ranking example: the made log, and Criteo's lines."""

import gzip
import importlib
import pathlib

import numpy as np
import pytest
import tensorflow as tf

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return lambda name: importlib.import_module(f"_ranking.{name}")


@pytest.fixture
def small(module):
    """A made log of three features, the last one of bags."""
    feature = module("models").Feature
    return module("click_logs").ClickLogs([feature("a", 10), feature("b", 1000), feature("c", 50, 3)], seed=1)


def rows_of(dataset):
    parts = [tf.nest.flatten(batch) for batch in dataset]
    return [np.concatenate(part) for part in zip(*parts)]


def test_zipf_has_the_shares_that_it_says(module):
    logs = module("click_logs")
    for rows, exponent in ((5, 1.2), (1000, 1.05), (5_000_000, 1.3)):
        shares = logs.zipf_shares(rows, exponent)
        assert shares.sum() == pytest.approx(1) and (np.diff(shares) < 0).all()
        uniform = (np.arange(200_000) + 0.5) / 200_000
        ranks = logs.zipf_ranks(uniform, float(rows), exponent).numpy()
        assert ranks.min() == 0 and ranks.max() < rows
        found = np.bincount(ranks, minlength=5)[:5] / len(ranks)
        np.testing.assert_allclose(found, shares[:5], atol=1e-5)
    ends = logs.zipf_ranks(np.array([0, 1 - 2**-53]), 5e6, 1.3).numpy()
    assert ends[0] == 0 and 4_999_990 < ends[1] < 5_000_000


def test_the_ids_of_a_log(module, small):
    logs = module("click_logs")
    *ids, dense, labels, truth = rows_of(small.dataset(30_000, 5000, truth=True))
    a, b, bags = ids
    assert dense.shape == (30_000, 13) and (dense >= 0).all() and bags.shape == (30_000, 3)
    for found, rows, exponent in ((a, 10, small.exponents[0]), (b, 1000, small.exponents[1])):
        assert found.min() >= 0 and found.max() < rows
        shares = np.sort(np.bincount(found, minlength=rows))[::-1][:5] / len(found)
        np.testing.assert_allclose(shares, logs.zipf_shares(rows, exponent)[:5], atol=0.01)
    assert bags[:, 0].min() == 1 and bags.max() == 49  # 0 is padding, and behind all others
    np.testing.assert_allclose((bags[:, 1:] != 0).mean(0), [0.7, 0.49], atol=0.01)
    assert not (bags[:, 2] != 0)[bags[:, 1] == 0].any()
    assert labels.mean() == pytest.approx(truth.mean(), abs=0.01) and set(labels.tolist()) == {0, 1}
    high = truth > np.median(truth)  # labels are drawn from the probabilities
    assert labels[high].mean() == pytest.approx(truth[high].mean(), abs=0.015)


def test_a_log_follows_from_its_seed_and_not_from_the_batches(module, small):
    whole = rows_of(small.dataset(5000, 5000, truth=True))
    again = rows_of(module("click_logs").ClickLogs(small.features, seed=1).dataset(5000, 700, truth=True))
    for one, other in zip(whole, again):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(whole, rows_of(small.dataset(100, 64, truth=True))):
        np.testing.assert_array_equal(one[:100], other)
    test = rows_of(small.dataset(5000, 5000, side="test"))
    other = rows_of(module("click_logs").ClickLogs(small.features, seed=2).dataset(5000, 5000))
    assert (test[1] != whole[1]).mean() > 0.5 and (other[1] != whole[1]).mean() > 0.5


def test_a_log_is_made_while_it_is_read(small):
    dataset = small.dataset(10**12, 1000)
    assert dataset.cardinality() == 10**9
    inputs, labels = next(iter(dataset))
    assert {name: part.shape.as_list() for name, part in inputs.items()} == {
        **{"a": [1000], "b": [1000], "c": [1000, 3]},
        "dense": [1000, 13],
    }
    assert labels.shape == [1000]


def test_an_id_means_the_same_wherever_it_stands(module):
    logs = module("click_logs")
    salts = np.array([3, 2**63 + 5], np.uint64)
    first = logs._hashed(tf.constant([[7, 7], [8, 7]], tf.int64), salts).numpy()
    np.testing.assert_array_equal(first[0, 1], first[1, 1])
    assert (first[0, 0] != first[1, 0]).all() and (first[0, 0] != first[0, 1]).all()
    many = logs._hashed(tf.range(40_000, dtype=tf.int64)[:, None], salts[:1]).numpy()[:, 0]
    np.testing.assert_allclose(many.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(many.T), np.eye(4), atol=0.03)
    for rows in (1, 2, 10, 999, 50_000):
        step = logs._coprime(rows)
        assert len(np.unique(np.arange(rows) * step % rows)) == rows


def criteo_lines(rng, count):
    """Lines as in Criteo's files: some integers and strings are missing, some integers are negative."""
    lines = []
    for _ in range(count):
        integers = ["" if n < -2 else str(n) for n in rng.integers(-4, 300, 13)]
        strings = ["" if n == 0 else f"{n * 2654435761 % 2**32:08x}" for n in rng.integers(0, 40, 26)]
        lines.append("\t".join([str(int(rng.random() < 0.25)), *integers, *strings]))
    return lines


def test_the_fields_of_criteos_lines(module, tmp_path):
    strings = ["68fd1e64", ""] + [f"{i:08x}" for i in range(24)]
    line = "\t".join(["1", "0", "", "-2", *(["9"] * 10), *strings])
    (tmp_path / "train.txt").write_text("\n".join([line] * 20))  # the last line has no end
    data = module("criteo").Criteo(tmp_path, most_rows=1000)
    assert data.rows == {"train": 18, "test": 2} and len(data.features) == 26
    assert [f.rows for f in data.features[:6]] == [1000, 1000, 1000, 1000, 1000, 96]
    inputs, labels = next(iter(data.dataset(None, 5)))
    assert labels.numpy().tolist() == [1] * 5
    np.testing.assert_allclose(inputs["dense"][0], np.log([1, 1, 1, *([10] * 10)]), atol=1e-6)
    for feature, string in zip(data.features, strings):
        want = tf.strings.to_hash_bucket_fast(string, feature.rows)
        assert inputs[feature.name].dtype == tf.int32
        np.testing.assert_array_equal(inputs[feature.name], np.full(5, want))


@pytest.mark.parametrize("files", [["train.txt"], ["train_a.txt", "train_b.txt.gz"]])
def test_a_tenth_of_criteos_lines_is_held_out(module, rng, tmp_path, files):
    lines = criteo_lines(rng, 95)
    parts = [lines[:80], lines[80:]] if len(files) > 1 else [lines]
    for name, part in zip(files, parts):
        text = ("\n".join(part) + "\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (tmp_path / "test.txt").write_text("no labels here\n")
    data = module("criteo").Criteo(tmp_path)
    held_out = 15 if len(files) > 1 else 9
    sides = {"train": lines[:-held_out], "test": lines[-held_out:]}
    for side, want in sides.items():
        dataset = data.dataset(None, 32, side)
        for found, expected in zip(rows_of(dataset), rows_of([data.parse(want)])):
            np.testing.assert_array_equal(found, expected)
        if len(files) == 1:
            assert dataset.cardinality() == -(-len(want) // 32)
    assert len(rows_of(data.dataset(40, 32))[-1]) == 40
