"""Large tables over several devices: where rows go, and why."""

from keras_largeout.distribute.errors import ServerLostError
from keras_largeout.distribute.placement import Placement
from keras_largeout.distribute.plan_from import plan_from
from keras_largeout.distribute.planner import plan
from keras_largeout.distribute.plans import Plan
from keras_largeout.distribute.rebalance import rebalance
from keras_largeout.distribute.server_files import server_files
from keras_largeout.distribute.specs import Device, TableSpec
from keras_largeout.distribute.strategy import strategy
from keras_largeout.distribute.table import ShardedTable
from keras_largeout.distribute.tree_placement import place_tree

__all__ = [
    "Device",
    "Placement",
    "Plan",
    "ServerLostError",
    "ShardedTable",
    "TableSpec",
    "place_tree",
    "plan",
    "plan_from",
    "rebalance",
    "server_files",
    "strategy",
]
