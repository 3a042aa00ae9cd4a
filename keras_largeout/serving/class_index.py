"""`index`: approximate search for the best classes of a head whose scores are inner products.

The scores are `hidden . kernel[class] / temperature + bias[class]`, with `normalize=True` of vectors of
length 1. Three steps make them distances:

- The bias becomes a column of the rows, and a query gets a 1.
- The mean row is subtracted. That changes all scores of a query by one number, which is added again, and
  makes rows shorter.
- Another column makes all rows equally long, and a query has a 0 there. The nearest row then has the largest
  product (Bachrach et al., 2014, "Speeding up the Xbox recommender system", section 3).
"""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.layers.heads._table_head import TableHead
from keras_largeout.layers.heads.retrieval.candidates import NOT_THERE
from keras_largeout.ops.rows import unit_rows
from keras_largeout.serving._libraries import load_library

_LEAST_RECALL = 0.95


def index(
    head: keras.Layer,
    library: str = "faiss",
    labels: Sequence[str] | None = None,
    connectivity: int = 32,
    ef_construction: int = 200,
    ef_search: int = 512,
) -> "ClassIndex":
    """Return an index of the classes of a head, for approximate search.

    It holds a copy of the head's rows, in a graph of nearest neighbours (HNSW) of the library.

    Args:
        head: a `FullSoftmax`, `SampledSoftmax` or `Retrieval` that is built.
        library: "faiss", "usearch" or "hnswlib". Install the one that you use, or all with
            `pip install "keras-largeout[index]"`. Defaults to `"faiss"`.
        labels: the names of the classes, different strings, one for each class; or None. Defaults to `None`.
        connectivity: int > 1, neighbours of a row in the graph. Defaults to `32`.
        ef_construction: int > 0, candidates that are kept while the graph is made. Defaults to `200`.
        ef_search: int > 0, candidates that are kept in a search: more find more of the best classes, and take
            longer. Defaults to `512`.

    Returns:
        A `ClassIndex`.

    Raises:
        ImportError: the library is not installed.
        ValueError: `library` is unknown; `head` is another layer, or is not built; `labels` are not different
            strings, one for each class; a number is out of range.

    Example:

    ```python
    found = kl.serving.index(head, library="faiss")
    hidden = model.predict(history)[:, -1]  # [users, dim]
    print(found.check(hidden))  # the share of the 20 best classes that it finds
    best = found.search(hidden, k=10, exclude=history)["ids"]
    ```
    """
    return ClassIndex(head, library, labels, connectivity, ef_construction, ef_search)


class ClassIndex:
    """An index of the classes of a head. `keras_largeout.serving.index` makes it.

    Args:
        head, library, labels, connectivity, ef_construction, ef_search: as in `index`.

    Attributes:
        ef_search: int, as in `index`. It may be changed at any time.
        labels: string array `[num_classes]`, or None.

    Example:

    ```python
    found = kl.serving.index(head, labels=vocabulary)
    best = found.search(model.predict(history)[:, -1], k=3, exclude=[["word 1", "word 2"]] * 4)
    print(best["labels"][0], best["scores"][0])
    ```
    """

    def __init__(
        self,
        head: keras.Layer,
        library: str,
        labels: Sequence[str] | None,
        connectivity: int,
        ef_construction: int,
        ef_search: int,
    ) -> None:
        if not isinstance(head, TableHead) or not head.built:
            raise ValueError(
                "`head` must be a FullSoftmax, SampledSoftmax or Retrieval that is built. (`top_k` of a "
                f"HierarchicalSoftmax is a search already.) Received: head={head!r}"
            )
        self._graph_of = load_library(library)
        self._head, self.labels, self._class_of = head, None, None
        if labels is not None:
            self.labels = _checked_labels(labels, head.num_classes)
            self._class_of = {label: i for i, label in enumerate(self.labels)}
        if positive_int("connectivity", connectivity) < 2:
            raise ValueError(f"`connectivity` must be at least 2. Received: connectivity={connectivity}")
        self._effort = connectivity, positive_int("ef_construction", ef_construction)
        self.ef_search = positive_int("ef_search", ef_search)
        self.refresh()

    def refresh(self) -> None:
        """Makes the index again, of the weights that the head has now: call it after training."""
        head = self._head
        rows = np.asarray(head.kernel.numpy(), np.float32)
        if head.normalize:
            rows = unit_rows(tf.constant(rows)).numpy()
        bias = np.zeros(len(rows)) if head.bias is None else head.bias.numpy()
        if (bias <= NOT_THERE / 2).any():
            raise ValueError(
                "`head` must have a vector of each item: call its `index` with all of them. "
                f"Received: a head without those of {np.sum(bias <= NOT_THERE / 2)} items"
            )
        rows = np.c_[rows, np.float32(bias)]
        self._mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        rows -= self._mean
        squares = np.square(rows).sum(axis=1, keepdims=True)
        self._longest = squares.max()
        rows = np.c_[rows, np.sqrt(self._longest - squares)]
        self._graph = self._graph_of(rows, *self._effort)

    def search(
        self,
        queries: ArrayLike | tf.Tensor,
        k: int = 10,
        exclude: Any = None,
    ) -> dict[str, np.ndarray]:
        """Return the best classes that the graph finds.

        Args:
            queries: float `[..., dim]`, hidden vectors: what the model returns.
            k: int, `1 <= k <= num_classes`. Defaults to `10`.
            exclude: classes that are left out, of each query: ids `[..., m]` filled up with -1; labels
                `[..., m]`, filled up with "", where the index has some; or lists of different lengths. What
                is no class excludes nothing. Defaults to `None`.

        Returns:
            A dict of `"ids"`, int32 `[..., k]`, the best first; `"scores"`, float32 `[..., k]`, logits: for
            each query the scores of `head.top_k` up to one number; and, if the index has labels, `"labels"`,
            strings `[..., k]`. Where too few classes were found, -1, `-inf` and "" follow.

        Raises:
            ValueError: `k` or a shape is wrong; strings to exclude where the index has no labels.
        """
        self._head.check_k(k)
        queries = np.asarray(queries, np.float32)
        if queries.ndim < 1 or queries.shape[-1] != self._head.dim:
            raise ValueError(
                f"`queries` must be hidden vectors [..., dim] with dim={self._head.dim}. "
                f"Received: queries of shape {queries.shape}"
            )
        lead, flat = queries.shape[:-1], queries.reshape([-1, self._head.dim])
        excluded = self._ids(exclude, len(flat), lead)
        wanted = min(k + excluded.shape[1], self._head.num_classes)
        scores, ids = self._nearest(flat, wanted)
        left_out = np.zeros(ids.shape, bool)
        for column in excluded.T:
            left_out |= ids == column[:, None]
        scores[left_out | (ids < 0)] = -np.inf
        ids[left_out] = -1
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, ids = (np.take_along_axis(found, order, axis=1) for found in (scores, ids))
        found = {"ids": ids.astype(np.int32), "scores": scores.astype(np.float32)}
        if self.labels is not None:
            found["labels"] = np.where(ids < 0, "", self.labels[ids])
        return {name: values.reshape([*lead, k]) for name, values in found.items()}

    def check(self, queries: ArrayLike | tf.Tensor, k: int = 20) -> float:
        """Return the share of the exact best classes that `search` finds: its recall.

        The exact ones are those of `head.top_k`, with the weights that the head has now. If less than 95% are
        found, a warning says so.

        Args:
            queries: float `[..., dim]`, some hundred hidden vectors of the kind that will be searched for.
            k: int, how many of the best. Defaults to `20`, or to all classes if there are fewer.

        Returns:
            A float in [0, 1].
        """
        k = min(k, self._head.num_classes)
        found = self.search(queries, k)["ids"].reshape([-1, k])
        exact = self._head.top_k(tf.constant(np.asarray(queries, np.float32)), k)[1].numpy().reshape([-1, k])
        recall = float(np.mean([np.isin(right, ids).mean() for right, ids in zip(exact, found)]))
        if recall < _LEAST_RECALL:
            warnings.warn(
                f"The index found {recall:.1%} of the {k} best classes, less than {_LEAST_RECALL:.0%}. Raise "
                f"`ef_search` (now {self.ef_search}), `ef_construction` or `connectivity`; after training "
                "call `refresh()`.",
                stacklevel=2,
            )
        return recall

    def _nearest(self, queries, k):
        """Return logits and ids, float32 and int64 `[n, k]`, the best first."""
        queries = self._head.scaled(tf.constant(queries)).numpy()
        vectors = np.c_[queries, np.ones_like(queries[:, :1])]
        ends = np.zeros_like(queries[:, :1])
        distances, ids = self._graph.search(np.c_[vectors, ends], k, max(self.ef_search, k))
        squares = np.square(vectors).sum(axis=1, keepdims=True)
        scores = (self._longest + squares - distances) / 2 + vectors @ self._mean[:, None]
        return scores, np.array(ids)

    def _ids(self, exclude, rows, lead):
        """Return int64 `[rows, m]`: the ids of excluded classes, filled up with -1."""
        if exclude is None:
            return np.full([rows, 0], -1)
        if isinstance(exclude, (tf.RaggedTensor, tf.SparseTensor)):
            raise ValueError(
                "`exclude` must be an array, or lists: call `.numpy()` or `tf.sparse.to_dense` first. "
                f"Received: {type(exclude).__name__}"
            )
        if not hasattr(exclude, "shape"):
            exclude = _filled([list(row) for row in exclude])
        exclude = np.asarray(exclude)
        if exclude.shape[:-1] != lead or exclude.ndim < 1:
            raise ValueError(
                "`exclude` must have a list of classes for each query: [..., m] for queries [..., dim]. "
                f"Received: exclude of shape {exclude.shape}, for queries of shape {lead}"
            )
        exclude = exclude.reshape([rows, -1]) if rows else np.zeros([0, 0], np.int64)
        if exclude.dtype.kind in "iu":
            return exclude.astype(np.int64)
        if self._class_of is None or exclude.dtype.kind not in "USO":
            known = "no labels" if self._class_of is None else "labels"
            raise ValueError(
                "`exclude` must be ids, integers; or labels, where the index has some. "
                f"Received: {exclude.dtype.name}, for an index with {known}"
            )
        places = [self._class_of.get(_text(label), -1) for label in exclude.ravel()]
        return np.reshape(np.array(places, np.int64), exclude.shape)


def _checked_labels(labels, num_classes):
    """Return an array of `num_classes` different strings."""
    texts = [_text(label) for label in labels]
    if (
        len(texts) != num_classes
        or len(set(texts)) != num_classes
        or not all(isinstance(t, str) for t in texts)
    ):
        raise ValueError(
            f"`labels` must be num_classes={num_classes} different strings. "
            f"Received: {len(texts)} labels, {len(set(texts))} of them different"
        )
    return np.array(texts)


def _text(label):
    return label.decode() if isinstance(label, bytes) else label


def _filled(lists):
    """Return lists of ids or of labels as one array, filled up with -1 or ""."""
    strings = any(isinstance(value, (str, bytes)) for row in lists for value in row)
    longest = max(map(len, lists), default=0)
    filler = "" if strings else -1
    rows = [[*map(_text, row), *[filler] * (longest - len(row))] for row in lists]
    return np.array(rows, None if longest else np.int64).reshape([len(lists), longest])
