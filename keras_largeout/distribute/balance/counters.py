"""Which counter counts what."""

from keras_largeout.distribute.balance.table_counter import TableCounter
from keras_largeout.distribute.balance.tree_counter import TreeCounter
from keras_largeout.distribute.outputs.sharded_tree import ShardedTree


def make_counter(placed, record):
    """A `LoadCounter` of a `ShardedTable` or `ShardedTree`; with `record` also of its rows or subtrees.

    What is recorded is what `placed.even_placement` takes.
    """
    return (TreeCounter if isinstance(placed, ShardedTree) else TableCounter)(placed, record)
