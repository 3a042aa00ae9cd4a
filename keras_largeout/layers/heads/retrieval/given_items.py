"""The item vectors that a `Retrieval` is called with: whether they fit, and as one row an item."""

import tensorflow as tf

from keras_largeout._head_annotations import GivenItems
from keras_largeout.ops.rows import unit_rows


def check_given(given, hidden):
    """Raise ValueError where `GivenItems` do not belong to user vectors `hidden`."""
    dim = hidden.shape[-1]
    if given.vectors is None:
        raise ValueError(
            "`item_vectors` must be given with `negatives` and `hard_negatives`. Received: item_vectors=None"
        )
    if not hidden.shape.is_compatible_with(given.vectors.shape):
        raise ValueError(
            "`item_vectors` must have the shape of the user vectors. "
            f"Received: item_vectors.shape={given.vectors.shape}, inputs.shape={hidden.shape}"
        )
    for name in ("negatives", "hard_negatives"):
        vectors = getattr(given, name)
        if vectors is not None and vectors.shape[-1] != dim:
            raise ValueError(
                f"`{name}` must have vectors as long as the user vectors, {dim}. "
                f"Received: {name}.shape={vectors.shape}"
            )
    if given.negatives is not None and given.negative_ids is None:
        raise ValueError("`negative_ids` must be given with `negatives`. Received: negative_ids=None")


def flat_rows(vectors, dim, there=None):
    """Return vectors `[..., dim]` as float32 `[n, dim]`, 0 where the bools `there` (`[n]`) are False."""
    flat = tf.cast(tf.reshape(vectors, [-1, dim]), tf.float32)
    return flat if there is None else tf.where(there[:, None], flat, 0.0)


def flat_items(given, there, dim, normalize, checked):
    """Return `GivenItems` of a row an item, as `BatchSoftmax` takes them.

    Args:
        given: the `GivenItems` of a call.
        there: bool `[n]`, the user vectors that count.
        dim: int, the length of vectors.
        normalize: bool, whether they are divided by their Euclidean norms.
        checked: function from ids to the same ids, which raises where one is no item.

    Returns:
        `GivenItems`: `vectors` float32 `[n, dim]`; `negatives` float32 `[m, dim]` and `negative_ids` int64
        `[m]`; `hard_negatives` float32 `[n, k, dim]` and `hard_negative_ids` int64 `[n, k]`. None where not
        given.
    """
    unit = unit_rows if normalize else tf.identity
    negatives, negative_ids, hard, hard_ids = given[1:]
    if negatives is not None:
        negative_ids = checked(tf.reshape(tf.cast(negative_ids, tf.int64), [-1]))
        negatives = unit(flat_rows(negatives, dim, negative_ids >= 0))
    if hard is not None:
        count = tf.shape(hard)[-2]
        hard = unit(tf.reshape(flat_rows(hard, dim), [-1, count, dim]))
        if hard_ids is not None:
            hard_ids = tf.reshape(tf.cast(hard_ids, tf.int64), [-1, count])
    return GivenItems(unit(flat_rows(given.vectors, dim, there)), negatives, negative_ids, hard, hard_ids)
