"""The guide to approximate search: its recipe, with a library that searches exactly."""

import pathlib
import re
import sys
import types

import numpy as np
import pytest

import keras_largeout as kl

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guides" / "search.md"
(RECIPE,) = re.findall(
    r"^```python\n(import faiss.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)


class _Index:
    """Stands for an index of faiss with METRIC_L2: squared distances, the nearest rows first."""

    def __init__(self, dim, kind, metric):
        assert metric == "l2"
        self.dim, self.hnsw = dim, types.SimpleNamespace()

    def add(self, rows):
        assert rows.shape[1] == self.dim and rows.dtype == np.float32
        lengths = np.linalg.norm(rows, axis=1)
        np.testing.assert_allclose(lengths, lengths[0], rtol=1e-5)  # what a graph of rows needs
        self.rows = rows

    def search(self, queries, k):
        assert queries.shape[1] == self.dim and queries.dtype == np.float32
        distances = np.square(queries[:, None].astype("float64") - self.rows).sum(axis=-1)
        ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, ids, axis=1), ids


@pytest.mark.parametrize(
    "options", [{}, {"use_bias": False, "temperature": 0.5}, {"normalize": True, "temperature": 0.5}]
)
def test_the_nearest_rows_are_the_best_classes(options, rng, monkeypatch):
    faiss = types.SimpleNamespace(index_factory=_Index, METRIC_L2="l2", METRIC_INNER_PRODUCT="product")
    monkeypatch.setitem(sys.modules, "faiss", faiss)
    head = kl.layers.FullSoftmax(300, **options)
    head.build((None, None, 8))
    head.kernel.assign(rng.normal(size=(300, 8)) * np.exp(rng.normal(size=(300, 1))))
    if head.bias is not None:
        head.bias.assign(-np.log(np.arange(300) + 1))
    history = rng.normal(size=(6, 2, 8)).astype("float32")
    names = {"head": head, "model": lambda history: history, "history": history}
    exec(RECIPE, names)
    scores, ids = head.top_k(history[:, -1], 10)
    np.testing.assert_array_equal(names["ids"], ids)
    differences = names["scores"] - scores  # of logits and log-probabilities: one number per query
    np.testing.assert_allclose(differences, np.repeat(differences[:, :1], 10, axis=1), atol=1e-3)
