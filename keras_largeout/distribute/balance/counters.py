"""`make_counter`: the load counter for a table or a tree."""

from keras_largeout.distribute.balance.table_counter import TableCounter
from keras_largeout.distribute.balance.tree_counter import TreeCounter
from keras_largeout.distribute.outputs.sharded_tree import ShardedTree


def make_counter(placed, record):
    """Return the `LoadCounter` of a `ShardedTable` or `ShardedTree`.

    Args:
        placed: `ShardedTable` or `ShardedTree`.
        record: bool, whether it also records how often each row or subtree is used. `placed.even_placement`
            takes that record.
    """
    return (TreeCounter if isinstance(placed, ShardedTree) else TableCounter)(placed, record)
