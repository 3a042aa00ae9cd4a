"""The vectors of all items of a catalogue, for the index of a `Retrieval`."""

import keras
import numpy as np
import tensorflow as tf


def item_vectors(items, model, ids, batch_size):
    """Return `(vectors, ids)`: float32 `[n, dim]` and int64 `[n]`; see `Retrieval.index`.

    Raises:
        ValueError: ids that do not belong to the items.
    """
    if isinstance(items, tf.data.Dataset):
        items, ids = _collected(items, ids)
    if isinstance(ids, str):
        if not isinstance(items, dict) or ids not in items:
            raise ValueError(
                "`ids` must be None, an array, or the name of a feature of `items`. "
                f"Received: ids={ids!r}, items={list(items) if isinstance(items, dict) else type(items)}"
            )
        ids = items[ids]
    if model is None:
        vectors = np.asarray(items)
    else:
        batches = tf.data.Dataset.from_tensor_slices((_as_inputs(items),)).batch(batch_size)
        vectors = model.predict(batches, verbose=0)
    vectors = np.asarray(vectors).astype("float32")
    ids = np.arange(len(vectors)) if ids is None else np.asarray(ids).reshape(-1)
    if vectors.ndim != 2 and model is None:
        raise ValueError(
            "`items` must be vectors [items, dim] where `model`, the item tower, is not given. "
            f"Received: model=None, items of shape {vectors.shape}"
        )
    if vectors.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or len(ids) != len(vectors):
        raise ValueError(
            "`ids` must be an integer for each item, whose vectors are [items, dim]. "
            f"Received: ids of shape {ids.shape} and dtype {ids.dtype}, vectors of shape {vectors.shape}"
        )
    if len(ids) and (ids.min() < 0 or len(np.unique(ids)) < len(ids)):
        raise ValueError(
            "`ids` must be different integers from 0 on. Received: ids of shape "
            f"{ids.shape}, {len(ids) - len(np.unique(ids))} of them repeated, the smallest {ids.min()}"
        )
    return vectors, ids.astype("int64")


def _as_inputs(items):
    """Return the inputs of a model as `tf.data.Dataset` takes them: a list would be one array."""
    return tuple(items) if isinstance(items, list) else items


def _collected(batches, ids):
    """Return the items of a dataset of batches, `inputs` or `(inputs, ids)`, and their ids."""
    every = list(batches)
    joined = keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *every)
    if isinstance(joined, tuple):
        joined, ids = joined
    return joined, ids
