"""`LoadBalance`: measures the load of each device, shows it, and plans how to make it even."""

import os
import warnings
from typing import Any

import keras
import tensorflow as tf

from keras_largeout.callbacks._counting import counted_training
from keras_largeout.callbacks._load_plot import plot_loads
from keras_largeout.distribute.balance.counters import make_counter
from keras_largeout.distribute.balance.rebalance import placed_tables
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model
from keras_largeout.distribute.parallel.transfers import TransferCounter, memory_of
from keras_largeout.planning.repacking import MeasuredPlan
from keras_largeout.planning.tree_estimator import max_over_mean


class LoadBalance(keras.callbacks.Callback):
    """Measures what each device does for the tables that are sharded over several devices, and shows it.

    At the end of an epoch it adds `<name>_load` to `logs` for every such table: the work of the busiest
    device over the mean work of a device. 1.0 is even; 2.0 means that a step takes twice as long as it
    should. So the progress bar, `History`, and callbacks after this one (`CSVLogger`, `TensorBoard`) show it.

    For an embedding, work is counted in rows that are looked up. A row counts once per lookup and replica, as
    duplicates are not sent. For a hierarchical softmax, work is counted in (token, node) pairs. The busiest
    device is that of each step. So if every step has another busiest device, the load is not even, although
    the sums over the epoch may be.

    Counting takes a few small ops per step, and happens only in the training steps of `fit` with this
    callback. The callback makes the model's training function again, and gives back the old one at the end of
    training. Replicated tables are always even, and are not counted.

    On parameter servers it counts what all workers ask of each server. No step is common to all servers, so
    the busiest server is that of the epoch. `rebalance` cannot move rows there: make the model again with the
    plan, and load the saved weights.

    Of a model that `kl.distribute.parallelize` made of stages or sections it also counts what its layers
    send from device to device, forward and back: `layer_bytes` in `logs`, bytes per step, and the attributes
    below. (Tables count theirs themselves.)

    Args:
        plot: None, or the path of a PNG that is written at the end of every epoch. Needs matplotlib. Defaults
            to `None`.
        warn_above: float of at least 1: a load above it causes a warning that says what to do. None: no
            warnings. Defaults to `1.25`.
        log_dir: None, or a folder for TensorBoard, for the loads and the work of every device by epoch.
            Defaults to `None`.
        record: bool, whether to record what `plan` needs: how often each row was looked up (4 bytes per row,
            on the device of the row), and how often each subtree was used (8 bytes per subtree, on every
            device). Defaults to `True`.

    Attributes:
        loads: dict from names of tables to the `MeasuredLoad` of the last epoch: rows, pairs and bytes of
            each device.
        history: dict from names of tables to the list of loads of all epochs.
        layer_bytes: float64 `[devices, devices]`, in the order of `model.parallel_plan.devices`: the bytes
            per step that the layers on device i sent to those on device j; None for other models.
        memory: int64 `[devices]`: the bytes of weights and optimizer slots on each of them; None likewise.

    Raises:
        ValueError: `warn_above` is below 1.

    Example:

    ```python
    balance = kl.callbacks.LoadBalance(plot="load.png")
    model.fit(data, epochs=1, callbacks=[balance])   # ... words_load: 3.91
    kl.distribute.rebalance(model, balance.plan())
    model.fit(data, epochs=9, callbacks=[balance])   # ... words_load: 1.02
    ```
    """

    def __init__(
        self,
        plot: str | os.PathLike | None = None,
        warn_above: float | None = 1.25,
        log_dir: str | os.PathLike | None = None,
        record: bool = True,
    ) -> None:
        super().__init__()
        if warn_above is not None and not warn_above >= 1:
            raise ValueError(f"`warn_above` must be at least 1, or None. Received: warn_above={warn_above!r}")
        self.plot = None if plot is None else os.fspath(plot)
        self.warn_above, self.log_dir, self.record = warn_above, log_dir, record
        self.loads, self.history = {}, {}
        self.layer_bytes = self.memory = self._transfers = None
        self._tables, self._warned, self._writer = {}, set(), None

    def plan(self) -> MeasuredPlan:
        """Plans new placements from what was recorded in the last epoch, for `kl.distribute.rebalance`.

        Rows (for a hierarchical softmax, whole subtrees) are assigned so that the work is even. Equal ones go
        to the devices in turn. So neighbours, which often come in the same batch, are on different devices.
        The replicated rows and the sizes of the shards stay as they are.

        Returns:
            A `MeasuredPlan`. It has `placements`, and as `expected` the max/mean that they would have given.

        Raises:
            RuntimeError: no epoch was trained on several devices, or nothing was recorded.
        """
        if not self._tables:
            raise RuntimeError("`LoadBalance.plan` needs an epoch of training on several devices.")
        placements, expected = {}, {}
        for name, table in self._tables.items():
            if table.placement.columns is not None or table.placement.kind == "table":
                continue  # by columns it is always even; a whole table is meant to be on one device
            recorded = table.counter.recorded()
            if recorded is None or not recorded.any():
                raise RuntimeError(
                    "`LoadBalance.plan` needs an epoch of training with `record=True`, and before the rows "
                    f"were moved. Received: record={self.record}, nothing was counted for {name!r}"
                )
            placements[name], work = table.even_placement(recorded)
            expected[name] = max_over_mean(work)
        return MeasuredPlan(placements, expected)

    # Keras's calls.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._tables, self._warned = placed_tables(self.model, remote=True), set()
        for table in self._tables.values():
            if table.counter is None or (self.record and not table.counter.records):
                table.counter = make_counter(table, self.record)
        plan = getattr(self.model, "parallel_plan", None)
        self._transfers = None if plan is None else TransferCounter([d.name for d in plan.devices])
        counted_training(self.model).add(self._counters())

    def _counters(self):
        tables = [table.counter for table in self._tables.values()]
        return tables if self._transfers is None else [*tables, self._transfers]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        counted_training(self.model).ensure()
        for counter in self._counters():
            counter.reset()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name, table in self._tables.items():
            load = self.loads[name] = table.counter.load()
            self.history.setdefault(name, []).append(load.imbalance)
            if logs is not None:
                logs[f"{name}_load"] = load.imbalance
            self._warn(name, load)
        if self._transfers is not None:
            self.layer_bytes = self._transfers.bytes_per_step()
            variables = [*self.model.weights, *self.model.optimizer.variables]
            self.memory = memory_of(variables, self._transfers.devices)
            if logs is not None:
                logs["layer_bytes"] = float(self.layer_bytes.sum())
        if not hosts_of_model(self.model).is_first:
            return  # the first host draws and writes
        if self.plot is not None and self.loads:
            plot_loads(self.plot, self.loads, self.history)
        if self.log_dir is not None:
            self._write(epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        counted_training(self.model).remove(self._counters())

    def _warn(self, name, load):
        whole = self._tables[name].placement.kind == "table"  # other devices have other tables
        if self.warn_above is None or load.imbalance <= self.warn_above or whole or name in self._warned:
            return
        self._warned.add(name)
        remote = self._tables[name].counter.remote
        moving = (
            "Between epochs, kl.distribute.rebalance(model, callback.plan()) moves rows so that the work is "
            "even; a"
        )
        work = [round(n / max(1, load.steps)) for n in load.work.tolist()]
        warnings.warn(
            f"The busiest {'server' if remote else 'device'} does {load.imbalance:.2f} times the mean for "
            f"{name!r} ({load.unit} per step: {work}). "
            f"{'A' if remote else moving} placement planned from the frequencies of ids avoids it from the "
            "start.",
            stacklevel=2,
        )

    def _write(self, epoch):
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(os.fspath(self.log_dir))
        values = {}
        for name, load in self.loads.items():
            values[f"{name}_load"] = load.imbalance
            values[f"{name}_bytes_per_step"] = load.bytes_per_step
            for device, work in enumerate(load.work):
                values[f"{name}_{load.unit}/device_{device}"] = work / max(1, load.steps)
        # Not tf.summary.scalar: it needs TensorBoard where the file is written.
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=epoch)
        self._writer.flush()
