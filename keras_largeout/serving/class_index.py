"""`index`: approximate search for the best classes of a head whose scores are inner products.

The scores are `hidden . kernel[class] / temperature + bias[class]`, with `normalize=True` of vectors of
length 1. Three steps make them distances:

- The bias becomes a column of the rows, and a query gets a 1.
- The mean row is subtracted. That changes all scores of a query by one number, which is added again, and
  makes rows shorter.
- Another column makes all rows equally long, and a query has a 0 there. The nearest row then has the largest
  product (Bachrach et al., 2014, "Speeding up the Xbox recommender system", section 3).
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import number_of_classes, positive_int
from keras_largeout.layers.heads._table_head import TableHead
from keras_largeout.layers.heads.retrieval.candidates import NOT_THERE
from keras_largeout.ops.rows import unit_rows
from keras_largeout.serving import _index_files
from keras_largeout.serving._labels import checked_labels, excluded_ids
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


def load_index(path: str | os.PathLike, head: keras.Layer | None = None) -> "ClassIndex":
    """Return an index that `ClassIndex.save` has written.

    It needs neither a model nor the time in which the index was made. All bytes are compared with the digests
    that were saved.

    Args:
        path: the folder.
        head: the head of the model, which `check` and `refresh` need; or None. Defaults to `None`.

    Returns:
        A `ClassIndex`.

    Raises:
        FileNotFoundError: `path` is no saved index.
        ImportError: the library is not installed.
        OSError: a file is damaged.
        ValueError: `head` has other classes, or other scores, than the head of the index; a later version
            wrote the folder.

    Example:

    ```python
    kl.serving.index(head, labels=vocabulary).save("items.index")
    found = kl.serving.load_index("items.index")  # in any process
    best = found.search(hidden, k=10)["labels"]
    ```
    """
    graph, settings, arrays = _index_files.read(path)
    loaded = ClassIndex.__new__(ClassIndex)
    loaded._load(graph, settings, arrays)
    if head is not None:
        own = _settings_of(head)
        if own != {name: settings[name] for name in own}:
            raise ValueError(
                f"`head` must be as the head of the index: {settings}. Received: {head.name!r} with {own}"
            )
        loaded._head = head
    return loaded


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
        self._settings = {**_settings_of(head), "library": library}
        self._graph_of = load_library(library)
        self._head = head
        self._set_labels(None if labels is None else checked_labels(labels, head.num_classes))
        if positive_int("connectivity", connectivity) < 2:
            raise ValueError(f"`connectivity` must be at least 2. Received: connectivity={connectivity}")
        self._effort = connectivity, positive_int("ef_construction", ef_construction)
        self.ef_search = positive_int("ef_search", ef_search)
        self.refresh()

    def _set_labels(self, labels):
        self.labels, self._class_of = labels, None
        if labels is not None:
            self._class_of = {label: i for i, label in enumerate(labels)}

    def save(self, path: str | os.PathLike) -> None:
        """Writes the index, with its labels, to a folder that `kl.serving.load_index` reads.

        The folder appears when it is complete. A saved index at `path` is replaced.

        Args:
            path: a folder that is new, empty or a saved index.

        Raises:
            FileExistsError: there is something else at `path`.
            ValueError: `path` is an address such as "gs://...".
        """
        numbers = {"effort": self._effort, "ef_search": self.ef_search}
        arrays = {"mean": self._mean, "longest": self._longest, "classes": self._classes}
        arrays |= {} if self.labels is None else {"labels": self.labels}
        _index_files.write(path, self._graph, {**self._settings, **numbers}, arrays)

    def _load(self, graph, settings, arrays):
        """Take what `save` has written, without a head."""
        self._head, self._settings = None, settings
        self._effort, self.ef_search = tuple(settings.pop("effort")), settings.pop("ef_search")
        self._graph_of = load_library(settings["library"])
        self._set_labels(arrays.get("labels"))
        self._mean, self._longest = arrays["mean"], arrays["longest"]
        self._classes = arrays.get("classes", np.arange(settings["num_classes"]))
        self._graph = self._graph_of.load(graph, len(self._mean) + 1)

    def _needed_head(self):
        if self._head is None:
            raise ValueError(
                "`head` must be given to `load_index` for what compares with its weights. Received: head=None"
            )
        return self._head

    def refresh(self) -> None:
        """Makes the index again, of the weights that the head has now: call it after training.

        Raises:
            ValueError: the index was loaded without a head, or a `Retrieval` lacks the vectors of items.
        """
        head = self._needed_head()
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
        self._classes = np.arange(len(rows))
        if head.vocabulary is not None:  # those that stand for no id are never found
            self._classes = np.flatnonzero(head.class_vocabulary.present(len(rows)))
            rows = rows[self._classes]
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
        num_classes, dim = self._settings["num_classes"], self._settings["dim"]
        k, queries = number_of_classes(k, num_classes), np.asarray(queries, np.float32)
        if queries.ndim < 1 or queries.shape[-1] != dim:
            raise ValueError(
                f"`queries` must be hidden vectors [..., dim] with dim={dim}. "
                f"Received: queries of shape {queries.shape}"
            )
        lead, flat = queries.shape[:-1], queries.reshape([-1, dim])
        excluded = excluded_ids(exclude, len(flat), lead, self._class_of)
        wanted = min(k + excluded.shape[1], len(self._classes))
        scores, ids = self._nearest(flat, wanted)
        if wanted < k:
            missing = [(0, 0), (0, k - wanted)]
            scores, ids = (np.pad(found, missing, constant_values=-1) for found in (scores, ids))
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

        Raises:
            ValueError: the index was loaded without a head.
        """
        head = self._needed_head()
        k = min(k, head.num_classes)
        found = self.search(queries, k)["ids"].reshape([-1, k])
        exact = head.top_k(tf.constant(np.asarray(queries, np.float32)), k)[1].numpy().reshape([-1, k])
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
        if self._settings["normalize"]:
            queries = unit_rows(tf.constant(queries)).numpy()
        queries = queries / np.float32(self._settings["temperature"])
        vectors = np.c_[queries, np.ones_like(queries[:, :1])]
        ends = np.zeros_like(queries[:, :1])
        distances, ids = self._graph.search(np.c_[vectors, ends], k, max(self.ef_search, k))
        squares = np.square(vectors).sum(axis=1, keepdims=True)
        scores = (self._longest + squares - distances) / 2 + vectors @ self._mean[:, None]
        ids = np.array(ids)
        return scores, np.where(ids < 0, -1, self._classes[ids])


def _settings_of(head):
    """Return what the scores of a head are made of: numbers that JSON can hold."""
    if not isinstance(head, TableHead) or not head.built:
        raise ValueError(
            "`head` must be a FullSoftmax, SampledSoftmax or Retrieval that is built. (`top_k` of a "
            f"HierarchicalSoftmax is a search already.) Received: head={head!r}"
        )
    names = "num_classes", "dim", "normalize", "temperature"
    return {name: getattr(head, name) for name in names}
