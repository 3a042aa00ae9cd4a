"""Names of classes, and the classes that a search leaves out."""

import numpy as np
import tensorflow as tf


def checked_labels(labels, num_classes):
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


def excluded_ids(exclude, rows, lead, class_of):
    """Return int64 `[rows, m]`: the ids of excluded classes, filled up with -1.

    Args:
        exclude: as `ClassIndex.search` takes it.
        rows: int, how many queries there are.
        lead: tuple, the shape of the queries, `[...]`.
        class_of: dict from labels to ids, or None.

    Raises:
        ValueError: `exclude` has another shape, or holds neither ids nor labels.
    """
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
    if class_of is None or exclude.dtype.kind not in "USO":
        known = "no labels" if class_of is None else "labels"
        raise ValueError(
            "`exclude` must be ids, integers; or labels, where the index has some. "
            f"Received: {exclude.dtype.name}, for an index with {known}"
        )
    places = [class_of.get(_text(label), -1) for label in exclude.ravel()]
    return np.reshape(np.array(places, np.int64), exclude.shape)


def _text(label):
    return label.decode() if isinstance(label, bytes) else label


def _filled(lists):
    """Return lists of ids or of labels as one array, filled up with -1 or ""."""
    strings = any(isinstance(value, (str, bytes)) for row in lists for value in row)
    longest = max(map(len, lists), default=0)
    filler = "" if strings else -1
    rows = [[*map(_text, row), *[filler] * (longest - len(row))] for row in lists]
    return np.array(rows, None if longest else np.int64).reshape([len(lists), longest])
