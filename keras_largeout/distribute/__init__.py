"""Large tables over several devices: where rows go, and why.

One process and one graph: the model is data-parallel, its tables are model-parallel. A `Placement` maps
rows to *positions*. Shard `s` owns the positions `offsets[s] .. offsets[s + 1]`; positions below
`offsets[0]` are *hot* rows, of which every device has a copy. Everything else follows. Initial values,
saving and loading go by logical rows, so they do not depend on the number of devices. The exchange of ids
and rows is a sort.

The parts of a table are weights of its layer: plain resource variables, since a strategy would mirror
them. The optimizer's step is one call that all replicas make together. Dense gradients are summed by the
strategy. The slices of a shard are joined on its device and applied there, once. Slices of hot rows are
summed once and applied to every copy, so that the copies stay the same bit for bit.

What works under `tf.distribute.MirroredStrategy` is what the tests run against one device on the same
global batch: every optimizer with clipping, accumulation, decay, schedules and loss scaling, also inside
`MultiOptimizer`; `steps_per_execution`, `run_eagerly`, freezing, shared and tied tables, models built
inside `fit`, metrics, `evaluate`, `predict`, predictors, export; files of N devices on M. After 20 steps
float32 tables agree within 2e-5 (relative), heads within 2e-4, a logged loss within 1e-5: only the order
of sums differs. (`benchmarks.same_numbers` does 50 steps of a larger model.) Under mixed precision they
agree within 2e-2, since the float16 or bfloat16 sums of a replica are rounded.

What to know:

- A head's loss is the mean over the terms of all replicas, whatever masks leave to each of them and
  however a last batch divides. Keras's own losses are a mean per replica, averaged over the replicas.
  With a mask, or a last batch that does not divide, an example then counts more where its replica has
  fewer: of 5 examples on 3 replicas, the last one alone counts a third. Take `drop_remainder=True`, or
  fill up with weight 0. An `embeddings_regularizer` likewise sees the rows of each replica, averaged.
- Under a strategy the `fit` of `keras.Model` takes no ragged or sparse batches, and its first batch must
  divide by the replicas. `kl.Model` has neither limit. `train_on_batch` and `predict_on_batch` give every
  replica the whole batch. A loss logged after a step averages the replicas' means; that of an epoch is
  exact.
- Synchronous hosts (`tf.distribute.MultiWorkerMirroredStrategy`) give the same numbers, with `kl.Model`.
  All hosts must do what reads a table. Refused there: tables in files, and `rebalance`.
- Refused by name, early: Keras's own optimizers for tables; other strategies; `RowWiseAdagrad` and norms
  over rows where columns are apart, and `use_ema` there and over several machines; `embeddings` of a table
  in parts (tied weights take `placement="replicated"`: a head has its own table, in the order of its tree).
- Under mixed_float16 `compile` wraps optimizers in Keras's `LossScaleOptimizer`, which looks at one
  replica only. In the first call of a table it becomes the one of this package.
"""

from keras_largeout.distribute.balance.plan_from import plan_from
from keras_largeout.distribute.balance.rebalance import rebalance
from keras_largeout.distribute.cluster.errors import ServerLostError
from keras_largeout.distribute.hosts.shared_folder import shared_folder
from keras_largeout.distribute.hosts.watch import HostLostError
from keras_largeout.distribute.parallel.on_device import OnDevice
from keras_largeout.distribute.parallel.parallelize import parallelize
from keras_largeout.distribute.strategies import strategy
from keras_largeout.planning.devices import Device
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.planner import plan
from keras_largeout.planning.specs import TableSpec
from keras_largeout.planning.tree_placement import place_tree
from keras_largeout.tables.server_files import server_files
from keras_largeout.tables.storage.prefetch import prefetch_rows
from keras_largeout.tables.table import ShardedTable

__all__ = [
    "Device",
    "HostLostError",
    "OnDevice",
    "Placement",
    "Plan",
    "ServerLostError",
    "ShardedTable",
    "TableSpec",
    "parallelize",
    "place_tree",
    "plan",
    "plan_from",
    "prefetch_rows",
    "rebalance",
    "server_files",
    "shared_folder",
    "strategy",
]
