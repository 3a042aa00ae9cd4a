"""The index of a head's classes, against the exact search of the head, with each installed library."""

import importlib.util
import json
import os

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.serving import _libraries, class_index

CLASSES, DIM = 500, 8


@pytest.fixture(params=_libraries.LIBRARIES)
def library(request):
    pytest.importorskip(request.param)
    return request.param


class _Exact:
    """Stands for a graph: the nearest rows, exactly."""

    def __init__(self, rows, connectivity, effort):
        assert rows.dtype == np.float32
        self.rows = rows

    def search(self, queries, k, effort):
        assert queries.dtype == np.float32 and queries.shape[1] == self.rows.shape[1] and effort >= k
        distances = np.square(queries[:, None].astype("float64") - self.rows).sum(axis=-1)
        ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, ids, axis=1).astype(np.float32), ids


@pytest.fixture
def exact(monkeypatch):
    monkeypatch.setattr(class_index, "load_library", lambda name: _Exact)


def make_head(rng, kind=kl.layers.FullSoftmax, **options):
    """Return a head with rows of different lengths, and biases of Zipf's law."""
    head = kind(CLASSES, **options)
    head.build((None, DIM))
    if kind is kl.layers.Retrieval:
        head.index(rng.normal(size=(CLASSES, DIM)).astype("float32"))
        return head
    head.kernel.assign(rng.normal(size=(CLASSES, DIM)) * np.exp(0.5 * rng.normal(size=(CLASSES, 1))) + 1)
    if head.bias is not None:
        head.bias.assign(-np.log(rng.permutation(CLASSES) + 1))
    return head


def check_equal(found, head, queries, k, exclude=None):
    scores, ids = head.top_k(queries, k, exclude=exclude)
    np.testing.assert_array_equal(found["ids"], ids)
    differences = found["scores"] - scores.numpy()  # of logits and log-probabilities: one number per query
    np.testing.assert_allclose(differences, np.repeat(differences[..., :1], k, axis=-1), atol=2e-3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kl.layers.FullSoftmax, {}),
        (kl.layers.FullSoftmax, {"use_bias": False, "temperature": 0.5}),
        (kl.layers.FullSoftmax, {"normalize": True, "temperature": 0.1}),
        (kl.layers.SampledSoftmax, {"num_sampled": 5, "temperature": 2.0}),
        (kl.layers.Retrieval, {"normalize": True, "temperature": 0.1}),
    ],
)
def test_the_nearest_rows_are_the_best_classes(rng, exact, kind, options):
    head = make_head(rng, kind, **options)
    queries = rng.normal(size=(3, 4, DIM)).astype("float32")
    found = kl.serving.index(head)
    check_equal(found.search(tf.constant(queries), 7), head, queries, 7)
    assert found.search(queries, 7)["ids"].dtype == np.int32
    assert found.check(queries) == 1
    one = found.search(queries[0, 0], 3)
    np.testing.assert_array_equal(one["ids"], found.search(queries, 3)["ids"][0, 0])
    weights = head.softmax_weights
    rows, query = weights.kernel.numpy(), queries[0, 0]
    if head.normalize:
        rows, query = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (rows, query))
    logits = query @ rows.T / head.temperature
    logits += 0 if head.bias is None else head.bias.numpy()
    np.testing.assert_allclose(one["scores"], np.sort(logits)[::-1][:3], atol=1e-3)


def test_with_each_library(rng, library):
    head = make_head(rng)
    queries = rng.normal(size=(50, DIM)).astype("float32")
    found = kl.serving.index(head, library)
    assert found.check(queries) == 1  # of so few classes
    seen = head.top_k(queries, 5)[1].numpy()
    check_equal(found.search(queries, 10, exclude=seen), head, queries, 10, seen)
    check_equal(found.search(queries[:1], 4), head, queries[:1], 4)
    most = head.top_k(queries, CLASSES - 10)[1].numpy()
    check_equal(found.search(queries, 5, exclude=most), head, queries, 5, most)
    assert found.search(queries[:0], 4)["ids"].shape == (0, 4)


def test_an_index_that_finds_too_little_says_so(rng, library):
    head = make_head(rng)
    found = kl.serving.index(head, library, connectivity=2, ef_construction=1, ef_search=1)
    with pytest.warns(UserWarning, match=r"The index found .*% of the 20 best classes, less than 95%. Raise"):
        recall = found.check(rng.normal(size=(50, DIM)))
    assert recall < 0.95


def test_refresh_after_training(rng, exact):
    head = make_head(rng)
    queries = rng.normal(size=(20, DIM)).astype("float32")
    found = kl.serving.index(head)
    head.kernel.assign(rng.normal(size=(CLASSES, DIM)))
    with pytest.warns(UserWarning, match=r"after training call `refresh\(\)`"):
        assert found.check(queries) < 0.5
    found.refresh()
    assert found.check(queries) == 1


@pytest.mark.parametrize("options", [{}, {"normalize": True, "temperature": 0.1}], ids=["plain", "cosine"])
def test_a_saved_index_answers_as_before(rng, library, options, tmp_path):
    head, path = make_head(rng, **options), tmp_path / "folder" / "items"
    queries = rng.normal(size=(20, DIM)).astype("float32")
    labels = [f"item {i} ü" for i in range(CLASSES)]
    found = kl.serving.index(head, library, labels, ef_search=200)
    found.save(path)
    loaded = kl.serving.load_index(path)
    assert loaded.ef_search == 200
    for exclude in (None, [["item 3 ü", best] for best in found.search(queries, 1)["labels"][:, 0]]):
        want = found.search(queries, 7, exclude)
        for name, values in loaded.search(queries, 7, exclude).items():
            np.testing.assert_array_equal(values, want[name])
    for needs_head in (loaded.refresh, lambda: loaded.check(queries)):
        with pytest.raises(ValueError, match="`head` must be given to `load_index`"):
            needs_head()
    again = kl.serving.load_index(path, head)
    assert again.check(queries) > 0.99
    head.kernel.assign(rng.normal(size=(CLASSES, DIM)))
    again.refresh()
    check_equal(again.search(queries, 5), head, queries, 5)
    kl.serving.index(head, library).save(path)  # replaces the other one
    assert sorted(os.listdir(path.parent)) == ["items"]
    check_equal(kl.serving.load_index(path, head).search(queries, 5), head, queries, 5)


def test_what_is_not_a_saved_index(rng, tmp_path):
    library = next(iter(filter(importlib.util.find_spec, _libraries.LIBRARIES)), None)
    if library is None:
        pytest.skip("no library is installed")
    head, other = make_head(rng), tmp_path / "other"
    found = kl.serving.index(head, library)
    other.mkdir()
    found.save(other)  # it is empty
    found.save(tmp_path / "index")
    for name in ("graph", "index.npz"):
        whole = (other / name).read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:700] + bytes([whole[700] ^ 1]) + whole[701:]):
            (other / name).write_bytes(damaged)
            with pytest.raises(OSError, match=f"{name} is damaged"):
                kl.serving.load_index(other)
        (other / name).write_bytes(whole)
    kl.serving.load_index(other)
    with pytest.raises(FileNotFoundError, match="`path` must be the folder of a saved index"):
        kl.serving.load_index(tmp_path)
    for path in (tmp_path, other / "graph"):
        with pytest.raises(FileExistsError, match="`path` must be new, or a saved index to replace"):
            found.save(path)
    with pytest.raises(ValueError, match="`path` must be a folder on a file system"):
        found.save("gs://bucket/index")
    for wrong in (make_head(rng, temperature=2.0), make_head(rng, normalize=True, use_bias=False)):
        with pytest.raises(ValueError, match="`head` must be as the head of the index"):
            kl.serving.load_index(other, wrong)
    rest = dict(np.load(other / "index.npz"))
    later = json.dumps({**json.loads(bytes(rest["settings"])), "format": 9})
    np.savez(other / "index.npz", **{**rest, "settings": np.frombuffer(later.encode(), np.uint8)})
    with pytest.raises(ValueError, match=r"must have the format 1 .*Received: format 9"):
        kl.serving.load_index(other)


def test_exclusion_leaves_no_more_than_there_is(rng, exact):
    head = make_head(rng)
    found = kl.serving.index(head)
    queries = rng.normal(size=(2, DIM)).astype("float32")
    exclude = np.stack([np.arange(CLASSES), np.full(CLASSES, -1)])
    exclude[0, :2] = CLASSES + 5  # is no class: 0 and 1 stay
    best = found.search(queries, 3, exclude=exclude)
    assert set(best["ids"][0, :2]) == {0, 1} and best["ids"][0, 2] == -1 and best["scores"][0, 2] == -np.inf
    check_equal({name: part[1:] for name, part in best.items()}, head, queries[1:], 3)
    lists = found.search(queries, 3, exclude=[[7, 8, 9], []])
    check_equal(lists, head, queries, 3, [[7, 8, 9], [-1, -1, -1]])
    check_equal(found.search(queries, 3, exclude=[[], []]), head, queries, 3)


def test_classes_without_an_id_are_not_found(rng, exact):
    items = kl.layers.DynamicVocabulary(CLASSES, num_oov_indices=1)
    classes = items(tf.range(5), training=True).numpy()
    head = kl.layers.FullSoftmax(items.vocabulary_size(), vocabulary=items)
    head.build((None, DIM))
    head.kernel.assign(rng.normal(size=(head.num_classes, DIM)))
    queries = rng.normal(size=(2, DIM)).astype("float32")
    found = kl.serving.index(head)
    best = found.search(queries, 7, exclude=[[classes[0]], [-1]])
    assert set(best["ids"][0]) == {-1, *classes[1:]} and best["ids"][:, 5:].tolist() == [[-1, -1]] * 2
    check_equal({name: part[:, :4] for name, part in best.items()}, head, queries, 4, [[classes[0]], [-1]])
    items(tf.constant([7]), training=True)
    found.refresh()
    check_equal(found.search(queries, 6), head, queries, 6)


def test_labels_both_ways(rng, exact):
    head = make_head(rng)
    labels = [f"item {i}" for i in range(CLASSES)]
    found = kl.serving.index(head, labels=tf.constant(labels).numpy())
    queries = rng.normal(size=(2, DIM)).astype("float32")
    best = found.search(queries, 3)
    assert best["labels"].tolist() == [[labels[i] for i in row] for row in best["ids"]]
    exclude = [[best["labels"][0, 0], "not there"], [best["labels"][1, 1].encode()]]
    again = found.search(queries, 3, exclude=exclude)
    ids = np.array([[best["ids"][0, 0], -1], [best["ids"][1, 1], -1]])
    check_equal(again, head, queries, 3, ids)
    for form in (ids, np.array([[labels[i] if i >= 0 else "" for i in row] for row in ids])):
        np.testing.assert_array_equal(found.search(queries, 3, exclude=form)["ids"], again["ids"])
    rest = found.search(queries[:1], 2, exclude=[labels[:-1]])
    assert rest["labels"].tolist() == [[labels[-1], ""]]


def test_errors(rng, exact, monkeypatch):
    head = make_head(rng)
    tree = kl.layers.HierarchicalSoftmax(9, counts=np.ones(9))
    for other in (tree, kl.layers.FullSoftmax(9)):
        with pytest.raises(ValueError, match="FullSoftmax, SampledSoftmax or Retrieval"):
            kl.serving.index(other)
    for labels in (["a"], ["a"] * CLASSES, list(range(CLASSES))):
        with pytest.raises(ValueError, match=f"`labels` must be num_classes={CLASSES} different strings"):
            kl.serving.index(head, labels=labels)
    for name in ("connectivity", "ef_construction", "ef_search"):
        with pytest.raises(ValueError, match=f"`{name}` must be a"):
            kl.serving.index(head, **{name: 0})
    found = kl.serving.index(head)
    with pytest.raises(ValueError, match=r"`queries` must be hidden vectors \[..., dim\] with dim=8"):
        found.search(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="`k` must be an integer in 1"):
        found.search(np.zeros((2, DIM)), 0)
    for exclude in (np.zeros((3, 1), int), np.zeros(2, int)):
        with pytest.raises(ValueError, match="`exclude` must have a list of classes for each query"):
            found.search(np.zeros((2, DIM)), exclude=exclude)
    for exclude in (np.zeros((2, 1)), np.array([["a"], ["b"]])):
        with pytest.raises(ValueError, match="`exclude` must be ids, integers; or labels"):
            found.search(np.zeros((2, DIM)), exclude=exclude)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="`library` must be one of"):
        kl.serving.index(head, "annoy")
    monkeypatch.setitem(_libraries.LIBRARIES, "missing", (None, "missing-package"))
    with pytest.raises(
        ImportError, match="`library='missing'` is not installed: pip install missing-package"
    ):
        kl.serving.index(head, "missing")
