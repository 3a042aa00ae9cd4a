"""The exchange of a sharded table: which rows a batch of ids asks of each shard, each once."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout.ops._library import ops

OUT_OF_RANGE = ("error", "zero")

# The kinds of `distribute.Placement` whose positions follow the rows, and the arithmetic that they share.
KINDS = ("identity", "modulo", "permutation", "explicit")
_SAME_AS_IDENTITY = ("range", "table", "replicated")


class Partition(NamedTuple):
    """What a batch asks of the shards of a table. `u` is the number of its different rows.

    Attributes:
        unique: int64 `[u]`, ascending: the positions of the rows.
        local: int64 `[u]`: their index within their shard; of hot rows, which every device has, among those.
        inverse: int32, the shape of the ids: the index into `unique` of each; -1 where it was dropped.
        cuts: int64 `[devices + 2]`: `unique[:cuts[1]]` are hot, `unique[cuts[s + 1]:cuts[s + 2]]` belong to
            shard `s`. (In host memory also where the op ran on a GPU.)
    """

    unique: tf.Tensor
    local: tf.Tensor
    inverse: tf.Tensor
    cuts: tf.Tensor


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

    Every row of the table has a position (`distribute.Placement`): those below `offsets[0]` are hot rows that
    every device has, shard `s` has `offsets[s] .. offsets[s + 1]`. The ids are mapped to positions, sorted
    and made unique; a shard's rows are then one contiguous run. Integers only, so there is no gradient.

    `offsets`, `position_of` and `hot` are tensors and may change between steps (a table is rebalanced); all
    else is fixed when the graph is built.

    Args:
        ids: Integer tensor of any shape: rows of the table.
        offsets: int64 `[devices + 1]`, `Placement.offsets`.
        kind: The position of a row that is not hot: `"identity"` (`h + row`, `h` hot rows; also the `kind` of
            placements whose rows stay in order: `"range"`, `"table"`, `"replicated"`), `"modulo"`
            (`offsets[row % devices] + row // devices`), `"permutation"`
            (`h + (row * multiplier + addend) % rows`) or `"explicit"` (`position_of[row]`).
        rows, devices: ints, the sizes of the placement.
        multiplier, addend: ints, of the permutation.
        position_of: int64 `[rows]`, `Placement.table_positions`; read where `kind` is `"explicit"`.
        hot: int64 ascending, `Placement.hot`; not read where `kind` is `"explicit"`. `None`: no hot rows.
        out_of_range: `"error"`: an id outside `[0, rows)` is an error. `"zero"`: it is dropped.

    Returns:
        `Partition`.

    Raises:
        ValueError: A wrong name, or shapes that are known to be wrong.
        tf.errors.InvalidArgumentError: Ids out of range (the first one is named), or values that make no
            placement.
    """
    if kind in _SAME_AS_IDENTITY:
        kind = "identity"
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {KINDS + _SAME_AS_IDENTITY}. Received: kind={kind!r}")
    if out_of_range not in OUT_OF_RANGE:
        raise ValueError(
            f"`out_of_range` must be one of {OUT_OF_RANGE}. Received: out_of_range={out_of_range!r}"
        )
    explicit = kind == "explicit"
    if explicit and position_of is None:
        raise ValueError("`position_of` must be given where kind='explicit'. Received: position_of=None")
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise ValueError(f"`ids` must be integers. Received: dtype={ids.dtype.name}")
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32 if ids.dtype.size < 4 else tf.int64)
    permuted = {"multiplier": multiplier, "addend": addend} if kind == "permutation" else {}
    return Partition(
        *ops.largeout_partition_ids(
            ids,
            tf.cast(offsets, tf.int64),
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
    """What `partition_ids` gives for a `distribute.Placement`, on NumPy arrays."""
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
    cuts = np.concatenate([[0], np.searchsorted(unique, offsets)])
    return Partition(unique, local, inverse, cuts)
