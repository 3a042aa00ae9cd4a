"""Large tables over several devices: where rows go, and why."""

from keras_largeout.distribute.balance.plan_from import plan_from
from keras_largeout.distribute.balance.rebalance import rebalance
from keras_largeout.distribute.cluster.errors import ServerLostError
from keras_largeout.distribute.planning.placement import Placement
from keras_largeout.distribute.planning.plan import Plan
from keras_largeout.distribute.planning.planner import plan
from keras_largeout.distribute.planning.specs import Device, TableSpec
from keras_largeout.distribute.planning.tree_placement import place_tree
from keras_largeout.distribute.strategies import strategy
from keras_largeout.distribute.tables.server_files import server_files
from keras_largeout.distribute.tables.table import ShardedTable

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
