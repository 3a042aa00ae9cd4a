"""`FeatureReport`: which rows of its tables each feature uses."""

from typing import Any

import keras

from keras_largeout._keras import all_layers
from keras_largeout.callbacks._counting import counted_training
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model


class FeatureReport(keras.callbacks.Callback):
    """Counts in training which rows the ids of every feature use, on one device or several.

    For each feature of a `DistributedEmbedding`, and each `ShardedEmbedding`: how many ids came and how many
    different ones, which are the most frequent, what share of them the table has no row of their own for,
    and what share of the rows was never touched. A table that is mostly untouched is too large; one with many
    ids outside is too small, or needs a `DynamicVocabulary`.

    It counts in host memory, 4 bytes per row and feature, in the training steps of `fit` with this callback
    alone. The callback makes the model's training function again, and gives back the old one at the end of
    training. Ids of padding (`mask_zero`) are not counted.

    Args:
        top: int, how many of the most frequent rows `features` names. Defaults to `10`.
        verbose: int; 1 prints the table at the end of every epoch. Defaults to `0`.

    Attributes:
        features: dict from names of features to what they used in the last epoch: `rows`, `ids`, `unique`,
            `outside`, `untouched`, and `top`, a list of `(row, share of the ids)`.

    Raises:
        ValueError: `top` is negative.
        NotImplementedError: training on parameter servers.

    Example:

    ```python
    report = kl.callbacks.FeatureReport()
    model.fit(data, callbacks=[report])
    print(report)
    report.features["user"].untouched   # 0.94
    ```
    """

    def __init__(self, top: int = 10, verbose: int = 0) -> None:
        super().__init__()
        if top < 0:
            raise ValueError(f"`top` must not be negative. Received: top={top}")
        self.top, self.verbose = top, verbose
        self.features, self._uses, self._hosts = {}, [], None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._hosts = hosts_of_model(self.model)
        layers = [layer for layer in all_layers(self.model) if hasattr(layer, "make_uses")]
        for layer in layers:
            if any(shard.array.table.remote for shard in layer.shards):
                raise NotImplementedError(
                    "FeatureReport counts in the memory of one process, and must not be used on parameter "
                    f"servers. Received: a model with {layer.name!r} on them"
                )
        self._uses = [use for layer in layers for use in layer.make_uses()]
        counted_training(self.model).add(self._uses)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for use in self._uses:
            use.reset()
        counted_training(self.model).ensure()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.features = {use.name: use.use(self.top, self._hosts) for use in self._uses}
        if self.verbose:
            print(f"\n{self}")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        counted_training(self.model).remove(self._uses)

    def __str__(self) -> str:
        """Return the table: a line per feature."""
        width = max([len("feature"), *map(len, self.features)])
        lines = [f"{'feature':{width}} {'rows':>11} {'ids':>13} {'unique':>11} outside untouched   top"]
        for name, use in self.features.items():
            share = sum(part for _, part in use.top)
            lines.append(
                f"{name:{width}} {use.rows:>11,} {use.ids:>13,} {use.unique:>11,} {use.outside:>7.1%} "
                f"{use.untouched:>9.1%} {share:>5.1%}"
            )
        return "\n".join(lines)
