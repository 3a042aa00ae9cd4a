"""Which bytes a step sends from device to device, from what was counted. Arithmetic on NumPy arrays.

Replica `r` runs on device `r`. Arrays `[devices, devices]` are from row to column; the diagonal is 0.
"""

import numpy as np
import tensorflow as tf

#: Row numbers, positions and classes travel as int64.
_INDEX = 8


def table_bytes(table, asked, updated, replicated, merged):
    """Bytes between devices for a `ShardedTable`.

    A replica sends the rows' local indices to their shard, gets the rows, and sends their gradients (for the
    same indices, which are there already). Gradients of replicated rows go to the first device, and their
    sums from there to all.

    Args:
        table: `ShardedTable`.
        asked: int64 `[replicas, shards]`, unique rows.
        updated: whether there are gradients.
        replicated: int64 `[replicas]`: rows of gradients for replicated rows.
        merged: int, how many they are when those of all replicas are summed.
    """
    itemsize = tf.as_dtype(table.array.dtype).size
    dim = int(np.prod(table.shape[1:], dtype=np.int64))
    back = asked * _bytes_of_row(table)
    there = asked * _INDEX + updated * back
    return _without_own(there + back.T) + _replicated(
        replicated, dim * itemsize + _INDEX, merged, 4 * dim + _INDEX
    )


def tree_bytes(tree, tokens, vector_bytes, scalar_bytes, replicated, merged):
    """Bytes between devices for a `ShardedTree`: hidden vectors there, their gradients back.

    The gradients of a subtree's rows stay on its device. Those of the top are summed as in `table_bytes`.

    Args:
        tree: `ShardedTree`.
        tokens: int64 `[replicas, shards]`.
        vector_bytes: of a vector and its gradient together.
        scalar_bytes: of what goes with them: loss and its gradient, class, weight.
        replicated, merged: as in `table_bytes`.
    """
    there = tokens * (vector_bytes // 2 + scalar_bytes - 4)
    back = tokens * (vector_bytes // 2 + 4)
    kernel, bias = tree.kernel, tree.bias
    itemsize = tf.as_dtype(kernel.array.dtype).size
    row = kernel.shape[1] * itemsize + _INDEX + (0 if bias is None else 4)
    merged_row = 4 * kernel.shape[1] + _INDEX + (0 if bias is None else 4 + _INDEX)
    return _without_own(there + back.T) + _replicated(replicated, row, merged, merged_row)


def server_table_bytes(table, asked, gradients):
    """Bytes between each parameter server and all workers for a `ShardedTable`: int64 `[servers]`.

    Args:
        table: `ShardedTable`.
        asked: int64 `[servers]`, unique rows of lookups: an index there, a row back.
        gradients: int64 `[servers]`, rows of gradients: an index and a row there.
    """
    return (asked + gradients) * (_bytes_of_row(table) + _INDEX)


def server_tree_bytes(tree, tokens, token_bytes, top_rows):
    """Bytes between each parameter server and all workers for a `ShardedTree`: int64 `[servers]`.

    Args:
        tree: `ShardedTree`.
        tokens: int64 `[servers]`, hidden vectors sent to subtrees.
        token_bytes: of a vector, its gradient, and what goes with them.
        top_rows: int64 `[servers]`, rows of the top fetched; as many gradients come back.
    """
    kernel, bias = tree.kernel, tree.bias
    itemsize = tf.as_dtype(kernel.array.dtype).size
    row = kernel.shape[1] * itemsize + _INDEX + (0 if bias is None else 4 + _INDEX)
    return tokens * token_bytes + 2 * top_rows * row


def _bytes_of_row(table):
    """Bytes of what each part has of a row: int64 `[devices]`."""
    dim = int(np.prod(table.shape[1:], dtype=np.int64))
    columns = table.placement.columns
    widths = np.full(table.placement.devices, dim) if columns is None else np.diff(columns, axis=1)[:, 0]
    return widths * tf.as_dtype(table.array.dtype).size


def _replicated(rows, row_bytes, merged, merged_bytes):
    """Gradients of replicated rows: to the first device, and their (float32) sums from there to all."""
    between = np.zeros((len(rows), len(rows)), np.int64)
    between[1:, 0] = rows[1:] * row_bytes
    between[0, 1:] = merged * merged_bytes
    return between


def _without_own(between):
    np.fill_diagonal(between, 0)
    return between
