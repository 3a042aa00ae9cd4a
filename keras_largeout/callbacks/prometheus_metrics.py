"""`PrometheusMetrics`: steps, tables and backups as metrics, and a page that says whether steps go on."""

import math
import os
import time
from typing import Any

import keras
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.distribute.processes.metrics_page import MetricsPage, prometheus
from keras_largeout.tables.shard import ShardVariable

_NAME = "PrometheusMetrics"
_WEIGHTS = "latest.weights.h5"  # the file of a backup


class PrometheusMetrics(keras.callbacks.Callback):
    """Serves metrics of `fit`, `evaluate` and `predict` to Prometheus, over HTTP, while they run.

    - `keras_largeout_steps_total{loop="train"}`: steps (`"test"`, `"predict"`). Steps per second are its
      rate: `rate(keras_largeout_steps_total[1m])`. After a restart the batches that `BackupAndRestore` skips
      count, too.
    - `keras_largeout_step_in_flight_seconds`: for how long the current call of a step has run; 0 between two.
    - `keras_largeout_rows{weight=..., device=...}`, `keras_largeout_bytes{...}`: the rows of each part of a
      table of which this process knows, and its bytes with those of its optimizer slots. (On parameter
      servers the chief knows all parts. A host knows those of its devices.)
    - `keras_largeout_process_up{process="ps 0"}`: on the chief of a cluster, for each worker and parameter
      server, 1 if it answered when it was last asked.
    - `keras_largeout_backup_age_seconds`: the age of the last backup in `backup_dir`; NaN before the first.
    - `process_resident_memory_bytes` and others of the process, by `prometheus_client`.

    `/healthz` answers 200 while the last beginning or end of a step is younger than `healthy_seconds`, and
    503 after that. Outside of the three loops it answers 200: there is nothing to wait for. The first step of
    a model is compiled, and a save takes place between two steps: both must fit into `healthy_seconds`.

    The callback listens from its first loop until `close()` or the end of the process, on `address` alone. It
    has neither passwords nor encryption. On synchronous hosts each serves its own metrics.

    Needs `prometheus_client`: `pip install prometheus_client`, or the extra `metrics` of this package.

    Args:
        port: int, the port; 0 for a free one.
        address: str, the address of this machine to listen on. Other machines reach it only if it is not
            loopback. Defaults to `"127.0.0.1"`.
        healthy_seconds: float, for `/healthz`. Defaults to `300.0`.
        backup_dir: path, the `backup_dir` of a `BackupAndRestore`, or None. Defaults to `None`.

    Attributes:
        port: int, the port; where it was 0, the one that was found, once a loop has begun.

    Raises:
        ImportError: `prometheus_client` is not installed.
        ValueError: `port` is not an integer from 0 to 65535; `healthy_seconds` is not positive.
        OSError: when the first loop begins, the address cannot be listened on.

    Example:

    ```python
    metrics = kl.callbacks.PrometheusMetrics(port=9100, backup_dir="run/backup")
    backup = kl.callbacks.BackupAndRestore("run/backup")
    model.fit(data, epochs=10, callbacks=[backup, metrics])  # curl http://127.0.0.1:9100/metrics
    ```
    """

    def __init__(
        self,
        port: int,
        address: str = "127.0.0.1",
        healthy_seconds: float = 300.0,
        backup_dir: str | os.PathLike | None = None,
    ) -> None:
        super().__init__()
        prometheus(_NAME)
        if positive_int("port", port, 0) > 65535:
            raise ValueError(f"`port` must be at most 65535. Received: port={port}")
        if not isinstance(healthy_seconds, (int, float)) or not healthy_seconds > 0:
            raise ValueError(
                "`healthy_seconds` must be a positive number of seconds. "
                f"Received: healthy_seconds={healthy_seconds!r}"
            )
        self.port, self.address, self.healthy_seconds = port, address, healthy_seconds
        self.backup_dir = backup_dir
        self._page = None
        self._loops = set()  # those under way: `evaluate` may run within `fit`
        self._began, self._first, self._progress = None, 0, 0.0

    def close(self) -> None:
        """Listen no more. (The next loop listens again, and counts from 0.)"""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _open(self):
        client = prometheus(_NAME)
        page = MetricsPage(_NAME, self.port, self.address, self._age, self.healthy_seconds)
        counter = client.Counter(
            "keras_largeout_steps", "Steps that have ended", ["loop"], registry=page.registry
        )
        self._steps = {loop: counter.labels(loop) for loop in ("train", "test", "predict")}
        gauge = client.Gauge(
            "keras_largeout_step_in_flight_seconds", "Age of the current step", registry=page.registry
        )
        gauge.set_function(self._in_flight)
        labels = "weight", "device"
        self._rows = client.Gauge("keras_largeout_rows", "Rows of a table", labels, registry=page.registry)
        self._bytes = client.Gauge(
            "keras_largeout_bytes", "Bytes of a table with its slots", labels, registry=page.registry
        )
        watch = getattr(self.model.distribute_strategy, "watch", None)  # of a chief
        if watch is not None:
            gauge = client.Gauge(
                "keras_largeout_process_up",
                "1 for each worker and server that answers",
                ["process"],
                registry=page.registry,
            )
            for job, index in watch.up:
                up = gauge.labels(f"{job} {index}")
                up.set_function(lambda task=(job, index): watch.up[task])
        if self.backup_dir is not None:
            gauge = client.Gauge(
                "keras_largeout_backup_age_seconds", "Age of the last backup", registry=page.registry
            )
            gauge.set_function(self._backup_age)
        self._page, self.port = page, page.port

    def _age(self):
        return time.monotonic() - self._progress if self._loops else None

    def _in_flight(self):
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def _backup_age(self):
        try:
            return time.time() - os.stat(os.path.join(self.backup_dir, _WEIGHTS)).st_mtime
        except OSError:
            return math.nan

    def _measure_tables(self):
        for weight in self.model.weights:
            if isinstance(weight, ShardVariable) and weight.initialized:
                labels = weight.path, str(weight.device or "")
                arrays = [weight, *weight.slots()]
                self._rows.labels(*labels).set(weight.shape[0])
                self._bytes.labels(*labels).set(sum(map(_bytes, arrays)))

    def _begin_loop(self, loop):
        if self._page is None:
            self._open()
        self._measure_tables()
        self._progress = time.monotonic()
        self._loops.add(loop)

    def _begin_step(self, batch):
        self._first, self._began = batch, time.monotonic()
        self._progress = self._began

    def _end_step(self, loop, batch):
        self._steps[loop].inc(batch - self._first + 1)  # a call may take several steps
        self._began, self._progress = None, time.monotonic()

    # Keras's calls.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begin_loop("train")

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begin_loop("test")

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begin_loop("predict")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._measure_tables()  # by now the optimizer has its slots

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._loops.discard("train")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._loops.discard("test")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        self._loops.discard("predict")

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin_step(batch)

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin_step(batch)

    def on_predict_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin_step(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_step("train", batch)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_step("test", batch)

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._end_step("predict", batch)


def _bytes(variable):
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
