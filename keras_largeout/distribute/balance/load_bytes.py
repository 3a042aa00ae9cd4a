"""The bytes that steps send from device to device, computed from counts.

Replica `r` runs on device `r`. Entry `[i, j]` of an array `[devices, devices]` is what device i sends to
device j; the diagonal is 0.
"""

import numpy as np
import tensorflow as tf

from keras_largeout.planning.exchange_estimator import SUMMED_IN_PARTS

#: Bytes of an index: rows, positions and classes are sent as int64.
_INDEX = 8


def table_bytes(table, asked, updated, replicated, merged, of_hosts):
    """Return bytes between devices for a `ShardedTable`: int64 `[devices, devices]`.

    A replica sends the local indices of rows to their shard, gets the rows, and sends their gradients back.
    (The shard has the indices already.) Gradients of replicated rows are sent to the first device of a host,
    and their sums from there to all devices.

    Args:
        table: `ShardedTable`.
        asked: int64 `[replicas, shards]`: how many unique rows each replica asked of each shard.
        updated: bool, whether there are gradients.
        replicated: int64 `[replicas]`: rows of gradients for replicated rows.
        merged: int, how many of these rows are left when the rows of all replicas are summed.
        of_hosts: int64 `[hosts]`: how many are left when the rows of the replicas of each host are.
    """
    itemsize = tf.as_dtype(table.array.dtype).size
    dim = int(np.prod(table.shape[1:], dtype=np.int64))
    back = asked * _bytes_of_row(table)
    there = asked * _INDEX + updated * back
    return _without_own(there + back.T) + _replicated(
        replicated, dim * itemsize + _INDEX, merged, 4 * dim + _INDEX, of_hosts
    )


def asked_after_dedup(asked, carried, per_host):
    """Return how many rows each device asks of each, where those of a host ask others together: `[devices] *
    2`.

    A replica asks device e of its host for what it needs of device e of any host.

    Args:
        asked: int64 `[devices, devices]`: what each replica requests of each shard.
        carried: int64 `[devices, devices]`: what each asks of other hosts, for all of its own.
        per_host: int, how many devices a host has.
    """
    devices = len(asked)
    host = np.arange(devices) // per_host
    within = np.tile(asked.reshape(devices, -1, per_host).sum(axis=1), devices // per_host)
    return np.where(host[:, None] == host, within, carried)


def tree_bytes(tree, tokens, vector_bytes, scalar_bytes, replicated, merged, of_hosts):
    """Return bytes between devices for a `ShardedTree`: int64 `[devices, devices]`.

    Hidden vectors are sent to subtrees, and their gradients come back. The gradients of a subtree's rows stay
    on its device. Those of the top are summed as in `table_bytes`.

    Args:
        tree: `ShardedTree`.
        tokens: int64 `[replicas, shards]`: how many hidden vectors each replica sent to each shard.
        vector_bytes: int, bytes of a hidden vector and its gradient together.
        scalar_bytes: int, bytes of what goes with them: loss, gradient of the loss, class.
        replicated, merged, of_hosts: as in `table_bytes`.
    """
    there = tokens * (vector_bytes // 2 + scalar_bytes - 4)
    back = tokens * (vector_bytes // 2 + 4)
    kernel, bias = tree.kernel, tree.bias
    itemsize = tf.as_dtype(kernel.array.dtype).size
    row = kernel.shape[1] * itemsize + _INDEX + (0 if bias is None else 4)
    merged_row = 4 * kernel.shape[1] + _INDEX + (0 if bias is None else 4 + _INDEX)
    return _without_own(there + back.T) + _replicated(replicated, row, merged, merged_row, of_hosts)


def server_table_bytes(table, asked, gradients):
    """Return bytes between each parameter server and all workers for a `ShardedTable`: int64 `[servers]`.

    Args:
        table: `ShardedTable`.
        asked: int64 `[servers]`: unique rows of lookups. For each, an index is sent and a row comes back.
        gradients: int64 `[servers]`: rows of gradients. For each, an index and a row are sent.
    """
    return (asked + gradients) * (_bytes_of_row(table) + _INDEX)


def server_tree_bytes(tree, tokens, token_bytes, top_rows):
    """Return bytes between each parameter server and all workers for a `ShardedTree`: int64 `[servers]`.

    Args:
        tree: `ShardedTree`.
        tokens: int64 `[servers]`: hidden vectors sent to subtrees.
        token_bytes: int, bytes of a hidden vector, its gradient, and what goes with them.
        top_rows: int64 `[servers]`: rows of the top that are fetched. As many gradients are sent back.
    """
    kernel, bias = tree.kernel, tree.bias
    row = kernel.shape[1] * _size_of_value(kernel) + _INDEX + (0 if bias is None else 4 + _INDEX)
    return tokens * token_bytes + 2 * top_rows * row


def _size_of_value(table):
    """Return bytes of a value of a row of a `ShardedTable` while it travels."""
    return tf.as_dtype(table.exchange_dtype or table.array.dtype).size


def _bytes_of_row(table):
    """Return int64 `[devices]`: bytes of what each device sends of a row. Column-wise, that is a part of
    the row.
    """
    dim = int(np.prod(table.shape[1:], dtype=np.int64))
    columns = table.placement.columns
    widths = np.full(table.placement.devices, dim) if columns is None else np.diff(columns, axis=1)[:, 0]
    return widths * _size_of_value(table)


def _replicated(rows, row_bytes, merged, merged_bytes, of_hosts):
    """Return bytes of the gradients of replicated rows.

    They go to the first device of their host, its float32 sums to those of other hosts, as
    `optimizers.row_slices` says, and the sums of all from there to the other devices of the host.
    """
    devices, hosts = len(rows), len(of_hosts)
    index, firsts = np.arange(devices), np.arange(0, devices, devices // hosts)
    first = np.repeat(firsts, devices // hosts)
    between = np.zeros((devices, devices), np.int64)
    between[index, first] = rows * row_bytes
    between[first, index] = merged * merged_bytes
    sent = of_hosts if hosts < SUMMED_IN_PARTS else (of_hosts + merged) // hosts
    between[np.ix_(firsts, firsts)] = sent[:, None] * merged_bytes
    return _without_own(between)


def _without_own(between):
    np.fill_diagonal(between, 0)
    return between
