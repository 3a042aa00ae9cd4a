"""`DecayTables`: weight decay of all rows of tables, now and then."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout._keras import all_layers, optimizers_inside
from keras_largeout.layers._named_tables import named_tables
from keras_largeout.layers.heads.head import Head


class DecayTables(keras.callbacks.Callback):
    """Multiplies all rows of tables by `(1 - rate) ** every`, every `every` steps of the optimizer.

    `weight_decay` of an optimizer acts on the rows of the batch alone, so a row that no batch has for long
    keeps its value. This callback reaches such rows. A visit reads and writes whole tables, in chunks of
    16 MiB, so `every` should be large: thousands of steps for large tables.

    Rows may be on one device or several, and in host memory with or without a cache. Of a table in files it
    visits the rows that were ever written: the others keep their first values, and take up no disk.

    After s steps a row has been multiplied by `(1 - rate) ** every` s // every times, however `fit` was
    divided and whatever `steps_per_execution` is: the steps are those that the optimizer has counted. So a
    training that was restored goes on rightly, where this callback is before `BackupAndRestore` in the list.

    A table of bfloat16 rounds. Choose `every` so that `(1 - rate) ** every` is below 0.99: a factor that is
    nearer to 1 may leave values as they are.

    Args:
        rate: float in (0, 1), how much of its value a row loses per step. Weight decay that is decoupled from
            the gradient has the rate `learning_rate * weight_decay`.
        every: int > 0, the steps from one visit to the next. Defaults to `1000`.
        tables: None, or a list of str: a table of a `DistributedEmbedding` by its name, and that of another
            layer by the name of the layer. None: the tables of all trainable layers but heads. Defaults to
            `None`.

    Raises:
        ValueError: an argument has another value than these. When training begins: the model has no such
            table, or its tables are on parameter servers, or its optimizer has `use_ema`.

    Example:

    ```python
    decay = kl.callbacks.DecayTables(rate=1e-3 * 0.01, every=5000)
    model.compile(kl.optimizers.LazyAdam(1e-3), "binary_crossentropy")
    model.fit(x, y, callbacks=[decay])
    ```

    References:
        - [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101), equation 1: decoupled decay.
    """

    def __init__(self, rate: float, every: int = 1000, tables: Sequence[str] | None = None) -> None:
        super().__init__()
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1:
            raise ValueError(f"`rate` must be a float in (0, 1). Received: rate={rate!r}")
        if isinstance(tables, str):
            raise ValueError(f"`tables` must be None or a list of names. Received: tables={tables!r}")
        self.rate, self.every = float(rate), positive_int("every", every)
        self.tables = None if tables is None else tuple(tables)
        self._step: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if any(getattr(optimizer, "use_ema", False) for optimizer in optimizers_inside(self.model.optimizer)):
            raise ValueError(
                "`use_ema` of the model's optimizer must be False with DecayTables: averages take rows that "
                "no step updates as constant. Received: use_ema=True"
            )
        if isinstance(self.model.distribute_strategy, tf.distribute.ParameterServerStrategy):
            raise ValueError(
                "DecayTables must not decay tables on parameter servers: all rows would pass the chief. "
                f"Received: a model under {type(self.model.distribute_strategy).__name__}"
            )
        self._chosen()
        self._step = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._step is None:  # only now: callbacks that resume a training have set the step
            self._step = self._optimizer_step()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        before, self._step = self._step or 0, self._optimizer_step()
        visits = self._step // self.every - before // self.every
        if visits > 0:
            self._scale((1 - self.rate) ** (self.every * visits))

    def _optimizer_step(self):
        return int(self.model.optimizer.iterations.numpy())

    def _chosen(self):
        """Return functions that make `(RowRange, vocabulary)` of the tables to decay, by name."""
        layers = all_layers(self.model)
        if self.tables is None:
            layers = [layer for layer in layers if layer.trainable and not isinstance(layer, Head)]
        found = {name: table for layer in layers for name, table in named_tables(layer).items()}
        names = tuple(found) if self.tables is None else self.tables
        if not names or not set(names) <= found.keys():
            raise ValueError(
                f"`tables` must be some of the tables of the model, {sorted(found)}. "
                f"Received: tables={self.tables}"
            )
        return {name: found[name] for name in names}

    def _scale(self, factor):
        visited = set()
        for table in self._chosen().values():
            rows, _ = table()
            if (id(rows.array), rows.start) not in visited:  # layers may share a table
                rows.scale(factor)
                visited.add((id(rows.array), rows.start))
