"""The first half of an all-to-all lookup: which rows a batch of ids needs from each shard, each row once."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout._checks import check_one_of
from keras_largeout.ops._library import ops
from keras_largeout.ops.labels import on_the_host

OUT_OF_RANGE = ("error", "zero")

# How the op finds the position of a row. It is also the `kind` of a `distribute.Placement`, except for the
# kinds whose positions have the order of the rows.
KINDS = ("identity", "modulo", "permutation", "explicit")
_SAME_AS_IDENTITY = ("range", "table", "replicated")


class Partition(NamedTuple):
    """The rows that a batch needs from the shards of a table: `u` different ones.

    Attributes:
        unique: int64 `[u]`, ascending: the positions of the rows.
        local: int64 `[u]`: the index of each row within its shard, or among the hot rows.
        inverse: int32, the shape of the ids: the index into `unique` of each id; -1 where it was dropped.
        boundaries: int64 `[devices + 2]`, in host memory even if the op ran on a GPU. The hot rows are
            `unique[:boundaries[1]]`, those of shard `s` `unique[boundaries[s + 1]:boundaries[s + 2]]`.
    """

    unique: tf.Tensor
    local: tf.Tensor
    inverse: tf.Tensor
    boundaries: tf.Tensor


def partition_ids(
    ids,
    offsets,
    kind,
    rows,
    devices,
    multiplier=1,
    addend=0,
    position_of=None,
    hot=None,
    out_of_range="error",
):
    """Cuts a batch of ids into the rows that each shard has to send, without duplicates.

    Every row of the table has a position (see `distribute.Placement`). Positions below `offsets[0]` are hot
    rows, which every device has. Shard `s` has positions `offsets[s] .. offsets[s + 1] - 1`. The ids are
    mapped to positions, sorted and made unique. Then the rows of a shard are one contiguous run. There is no
    gradient, as all of it is integers.

    `offsets`, `position_of` and `hot` are tensors and may change between steps, when a table is rebalanced.
    Everything else is fixed when the graph is built.

    Args:
        ids: Integer tensor of any shape: rows of the table.
        offsets: int64 `[devices + 1]`, `Placement.offsets`.
        kind: `Placement.kind`, which says the position of a row that is not hot. With `h` hot rows it is
            `h + row` for `"range"`, `"table"`, `"replicated"` and `"identity"`,
            `offsets[row % devices] + row // devices` for `"modulo"`,
            `h + (row * multiplier + addend) % rows` for `"permutation"`, and `position_of[row]` for
            `"explicit"`.
        rows, devices: ints, the sizes of the placement.
        multiplier, addend: ints, of the permutation.
        position_of: int64 `[rows]`, `Placement.table_positions`. Read only if `kind` is `"explicit"`.
        hot: int64 ascending, `Placement.hot`; `None` for no hot rows. Not read if `kind` is `"explicit"`.
        out_of_range: What an id outside `[0, rows)` is: `"error"`, or `"zero"`: it is dropped.

    Returns:
        `Partition`.

    Raises:
        ValueError: An unknown `kind` or `out_of_range`, ids that are not integers, or wrong static shapes.
        tf.errors.InvalidArgumentError: Ids out of range (the message names the first one), or values that
            make no placement.
    """
    check_one_of("kind", kind, KINDS + _SAME_AS_IDENTITY)
    if kind in _SAME_AS_IDENTITY:
        kind = "identity"
    check_one_of("out_of_range", out_of_range, OUT_OF_RANGE)
    explicit = kind == "explicit"
    if explicit and position_of is None:
        raise ValueError("`position_of` must be given where kind='explicit'. Received: position_of=None")
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise ValueError(f"`ids` must be integers. Received: dtype={ids.dtype.name}")
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32 if ids.dtype.size < 4 else tf.int64)
    with on_the_host():
        offsets = tf.cast(offsets, tf.int64)
    permuted = {"multiplier": multiplier, "addend": addend} if kind == "permutation" else {}
    return Partition(
        *ops.largeout_partition_ids(
            ids,
            offsets,
            tf.cast(position_of, tf.int64) if explicit else tf.zeros([0], tf.int64),
            tf.zeros([0], tf.int64) if explicit or hot is None else tf.cast(hot, tf.int64),
            kind=kind,
            rows=rows,
            devices=devices,
            out_of_range=out_of_range,
            **permuted,
        )
    )


tf.no_gradient("Largeout>PartitionIds")


def partition_ids_reference(placement, ids, out_of_range="error"):
    """Return what `partition_ids` gives for a `distribute.Placement`, on NumPy arrays."""
    ids = np.asarray(ids)
    inside = (ids >= 0) & (ids < placement.rows)
    if out_of_range == "error" and not inside.all():
        raise IndexError(f"`ids` must lie in [0, {placement.rows}). Received: {ids[~inside][0]}")
    offsets = placement.offsets
    unique, index = np.unique(placement.position(ids[inside]), return_inverse=True)
    inverse = np.full(ids.shape, -1, np.int32)
    inverse[inside] = index.reshape(-1)
    owner = np.searchsorted(offsets, unique, side="right") - 1
    local = unique - np.where(owner < 0, 0, offsets[owner])
    boundaries = np.concatenate([[0], np.searchsorted(unique, offsets)])
    return Partition(unique, local, inverse, boundaries)
