"""`ShardedTable`: the one home of a large parameter."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout.ops import export_mode
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.repacking import spread_rows
from keras_largeout.replicas.devices import (
    least_loaded_server,
    on_servers,
    replica_copy,
    table_devices,
)
from keras_largeout.replicas.exchange_dtype import exchange_dtype_of
from keras_largeout.replicas.hosts import current_hosts
from keras_largeout.tables.array import ShardedArray
from keras_largeout.tables.exchange import Exchange
from keras_largeout.tables.export_proxy import proxy_variable, quantized
from keras_largeout.tables.moving import check_move
from keras_largeout.tables.placing import check_placement, place
from keras_largeout.tables.row_range import RowRange
from keras_largeout.tables.storage.lazy_initializer import LazyInitializer
from keras_largeout.tables.storage.opening import open_folder
from keras_largeout.tables.storage.places import (
    check_loaded_size,
    check_storage,
    files_of,
    folder_of,
    memories_of,
    planned_storage,
)
from keras_largeout.tables.storage.row_cache import RowCaches


def track_shards(layer, *tables):
    """Make the parts of `tables` weights of `layer`: tracked, saved with it, frozen where it is frozen."""
    layer.shards = [shard for table in tables for shard in table.shards]  # Keras tracks attributes
    if not layer.trainable:
        for shard in layer.shards:
            shard.trainable = False


class ShardedTable:
    """A logical `[rows, dim]` (or `[rows]`) array, cut over the devices of the current strategy.

    Without a strategy it is one shard. Under `tf.distribute.MirroredStrategy` it has a part on every device
    (model parallelism inside one process), and replicated rows where its placement has such. Under
    `tf.distribute.ParameterServerStrategy` its parts are on the servers; what would be replicated is there
    once. `track_shards` makes its parts weights of a layer.

    Args:
        shape: tuple of ints, `(rows, dim)` or `(rows,)`.
        initializer: Keras initializer of the logical array; the values do not depend on the placement.
        dtype: dtype name. Defaults to `"float32"`.
        name: str. Defaults to `"table"`.
        trainable: bool. Defaults to `True`.
        constraint: Keras constraint, kept on the shards for the optimizer; it must act row by row. Defaults
            to `None`.
        placement: where the rows go: "auto" (replicated up to 1 MiB, else by a permutation), "replicated",
            "range", "modulo", "permutation", "columns", a `Placement`, or a `Plan`. Defaults to `"auto"`.
        plan_name: the name by which a `Plan` knows the table. None: no plan places it, its load is not
            measured, and `rebalance` leaves it alone (as `SparseOutput`, which is even by nature). Defaults
            to `None`.
        storage: where the memory of a device's rows is: "device", or "host", that of its process. A `Plan`
            may say "host", too. Defaults to `"device"`.
        cache_rows: None, or int: so many rows of a table in host memory, with their slots, each device keeps
            in its own. Defaults to `None`.
        beside: None, or the table on whose parameter server its replicated rows are to be. Defaults to
            `None`.

    Attributes:
        placement: the `Placement`.
        devices: tuple of the devices' names (`None`: TensorFlow's choice), of all hosts.
        hosts: the `Hosts`, each with the parts of its own devices.
        memories: tuple of the names of the devices in whose memory their rows are.
        remote: bool, True if the devices are parameter servers.
        exchange_dtype: the narrower dtype in which rows travel, and hidden vectors to them; None: their own.
            Always None where a value is not float32, and for single numbers, such as biases.
        is_offloaded: bool, True if the rows are stored off the devices that compute: on servers, or in host
            memory where GPUs compute. Unique rows are fetched then, and there is one copy of each row.
        folder: the `TableFolder` of a table in files, else None.
        caches: the `RowCaches` of a table in host memory that has such, else None.
        hot_device: the device that has the hot rows of a table of which there is one copy; else None.
        array: the `ShardedArray` of the values.
        placement_unit: what is placed and rebalanced as a whole: the table, the `ShardedTree` that has it,
            or None. Both have `plan_name`, `tables`, `placement`, `counter` and the methods
            `even_placement`, `check_move` and `move_to`.
        counter: a `LoadCounter` where the load is measured, else None.
        resets: list of weak references to the `RowReset`s, by which a step may give rows back their first
            values.
        sections, family: of a `StackedTable`; a table by itself has neither.

    Example:

    >>> table = kl.distribute.ShardedTable((1000, 8), keras.initializers.Zeros())
    >>> table.assign(np.ones([1000, 8], "float32"))
    >>> table.numpy().sum()
    np.float32(8000.0)
    """

    resets: list[Any] = []  # noqa: RUF012
    sections = ()
    family = None

    def __init__(
        self,
        shape: tuple[int, ...],
        initializer: str | keras.Initializer,
        dtype: str = "float32",
        name: str = "table",
        trainable: bool = True,
        constraint: keras.constraints.Constraint | None = None,
        placement: str | Placement | Plan = "auto",
        plan_name: str | None = None,
        storage: str = "device",
        cache_rows: int | None = None,
        beside: "ShardedTable | None" = None,
    ) -> None:
        dtype = keras.backend.standardize_dtype(dtype)
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"`dtype` of a table must be float32 or bfloat16. Received: dtype={dtype}. "
                "(A mixed_float16 policy has float32 tables.)"
            )
        self.shape = tuple(int(n) for n in shape)
        self.name = name
        narrow = dtype == "float32" and len(self.shape) > 1
        self.exchange_dtype = exchange_dtype_of(tf.distribute.get_strategy()) if narrow else None
        self.devices, self.remote, self.hosts = table_devices(), on_servers(), current_hosts()
        itemsize = 2 if dtype == "bfloat16" else 4
        if not self.remote:  # servers may have files of their own
            check_loaded_size(plan_name or name, math.prod(self.shape) * itemsize)
        self.placement = place(check_placement(placement), self.shape, len(self.devices), itemsize, plan_name)
        storage = planned_storage(check_storage(storage), placement, plan_name)
        self.memories = memories_of(self.devices, storage)
        self.is_offloaded = self.remote or self.memories != self.devices or folder_of(storage) is not None
        hot_rows = self.placement.num_hot
        # One replica that computes over several devices has one copy of the hot rows.
        alone = len(self.devices) > 1 and not tf.distribute.has_strategy()
        self.hot_device = self.memories[self.here[0]] if self.is_offloaded or alone else None
        if self.remote and hot_rows:  # no server has a copy of another's rows: they are on one
            nbytes = hot_rows * int(np.prod(self.shape[1:])) * itemsize
            self.hot_device = least_loaded_server(nbytes) if beside is None else beside.hot_device
        self.folder = open_folder(self, files_of(storage, plan_name or name), initializer, dtype)
        self.plan_name, self.tables, self.counter = plan_name, [self], None
        self.caches = RowCaches.of_table(self, cache_rows)
        self.array = ShardedArray(self.shape, self, initializer, dtype=dtype, name=name, trainable=trainable)
        self.placement_unit = None if plan_name is None else self
        self._exchange: Exchange | None = None
        if constraint is not None:
            for shard in self.shards:
                shard.constraint = constraint

    def close(self) -> None:
        """Closes the files of a table that is in files. It can no longer be used then."""
        if self.folder is not None:
            self.folder.close()

    def lazy_initializer(
        self, initializer: keras.Initializer, shape: tuple[int, ...], dtype: str, of_table: bool
    ) -> LazyInitializer:
        """Return the `LazyInitializer` of the table's array or of one of a slot, in files."""
        if of_table:  # those that it had when the folder was made
            return LazyInitializer(self.folder.first, shape, dtype)
        return LazyInitializer.of(initializer, shape, dtype)

    def reset_new_slots(self) -> None:
        """Reset rows in slots that an optimizer has made in a graph in which they were reset before."""
        for reset in filter(None, [reference() for reference in self.resets]):
            reset.reset_new_slots()

    @property
    def shards(self) -> list[keras.Variable]:
        """The parts, `ShardVariable`s: replicated rows first, then the shards in the order of devices."""
        return list(self.array.parts.values())

    @property
    def initialized(self) -> bool:
        return self.array.initialized

    @property
    def here(self) -> range:
        """The indices of the devices that this process has, among `devices`: a range."""
        return range(len(self.devices)) if self.hosts.is_alone else self.hosts.here

    @property
    def is_whole(self) -> bool:
        """True if every replica has the whole table: one shard, or a replicated table."""
        return not any(self.placement.sizes) or len(self.devices) == 1

    @property
    def exchange(self) -> Exchange:
        """The `Exchange` that finds rows of a table that is not whole."""
        if self._exchange is None:
            self._exchange = Exchange(self)
        return self._exchange

    def even_placement(self, recorded: Any) -> tuple[Placement, np.ndarray]:
        """Return the `Placement` that is even for what a counter recorded, and what it makes each device
        do.
        """
        return spread_rows(self.placement, recorded)

    def check_move(self, placement: Placement) -> None:
        """Raises ValueError where rows cannot be moved to `placement`: parts of other sizes, or files."""
        check_move(self, placement)

    def move_to(self, placement: Placement) -> bool:
        """Takes over a placement of the same sizes; the rows' values are then to be written again.

        Returns:
            Whether functions that were traced before still find the rows.
        """
        explicit = self.placement.kind == placement.kind == "explicit"
        self.placement = placement
        if self._exchange is None:
            return True
        if explicit:
            self._exchange.refresh()
            return True
        self._exchange.retire()
        self._exchange = None
        return False

    @property
    def variable(self) -> Any:
        """The `tf.Variable` of a table that is whole; this replica's copy of it where it is replicated.

        In an export a table in parts is one variable too, and one in int8 is `QuantizedRows`: see
        `tables/export_proxy.py`.
        """
        if export_mode.is_exporting() and len(self.shape) == 2 and export_mode.in_int8():
            return quantized(self.array)
        if not self.is_whole or self.folder is not None:
            return proxy_variable(self.array)
        if self.caches is not None:
            self.caches.flush()
        (part,) = self.shards
        return replica_copy(part.value) if part.initialized else part.value

    def numpy(self) -> np.ndarray:
        """Return the logical array, one copy of it."""
        return self.array.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.array, dtype)

    def assign(self, value: ArrayLike) -> None:
        """Overwrites the logical array.

        Args:
            value: array of the shape of the table.
        """
        self.array.assign(value)

    def save(self, store: Any) -> None:
        """Writes the logical array in chunks of rows.

        Args:
            store: dict of arrays, such as Keras gives to `save_own_variables`.
        """
        self.array.save(store, self.name)

    def load(self, store: Any) -> None:
        """Reads what `save` wrote, or the one array that an ordinary Keras layer wrote.

        Args:
            store: dict of arrays, such as Keras gives to `load_own_variables`.

        Raises:
            ValueError: the file holds another shape; the table is then unchanged.
        """
        self.check(store)
        if self.folder is not None and self.folder.read_only:
            return  # it has its rows
        for key in (self.name, "0"):
            if key in store:
                return self.assign(np.asarray(store[key]))
        self.array.load(store, self.name)

    def check(self, store: Any) -> None:
        """Raises ValueError unless `load` could read this table from `store`."""
        whole = [key for key in (self.name, "0") if key in store]
        if not whole:
            RowRange(self.array).check(store, self.name)
        elif tuple(store[whole[0]].shape) != self.shape:
            raise ValueError(
                f"The weights file does not fit `{self.name}`: expected shape {self.shape}. "
                f"Received: shape {tuple(store[whole[0]].shape)}."
            )
