"""`TensorBoard`: Keras's, for models with large tables."""

import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout._keras import all_layers
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model
from keras_largeout.layers import DistributedEmbedding, ShardedEmbedding
from keras_largeout.tables.lookup import LogicalRows
from keras_largeout.tables.shard import ShardVariable


class TensorBoard(keras.callbacks.TensorBoard):
    """`keras.callbacks.TensorBoard` whose projector and histograms know large tables.

    - The projector shows the first `rows` rows of every `ShardedEmbedding`, `keras.layers.Embedding` and
      table of a `DistributedEmbedding`. (Keras's callback finds its own layer alone.)
    - Histograms are drawn of weights, not of integers, such as the arrays of a tree. Of a
      large weight they show `rows` rows, evenly spread: nothing is read or copied as a whole. They are a run
      of their own in TensorBoard, "weights".

    Args:
        log_dir: path, as for Keras's callback. Defaults to `"logs"`.
        histogram_freq: int, epochs between two times; 0: never. Defaults to `0`.
        embeddings_freq: int, likewise. Defaults to `0`.
        embeddings_metadata: dict from the name of a layer (`layer/table` for a `DistributedEmbedding`) to
            what its rows are called: a list of str, in the order of the rows, or the path of a file below
            `log_dir` with a line per row. Defaults to `None`.
        rows: int > 0. Defaults to `10000`.
        **kwargs: the other arguments of Keras's callback; `write_images` must be False.

    Raises:
        ValueError: `rows` is not positive, `write_images` is True; when training begins, metadata of a layer
            that the model does not have.

    Example:

    ```python
    board = kl.callbacks.TensorBoard("logs", embeddings_freq=1, embeddings_metadata={"words": vocabulary})
    model.fit(data, callbacks=[board])  # then: tensorboard --logdir logs
    ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike = "logs",
        histogram_freq: int = 0,
        *,
        embeddings_freq: int = 0,
        embeddings_metadata: dict[str, Sequence[str] | str] | None = None,
        rows: int = 10_000,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("write_images"):
            raise ValueError("`write_images` must be False: a table is no image. Received: write_images=True")
        super().__init__(log_dir=log_dir, **kwargs)
        self._histograms_every, self._embeddings_every = histogram_freq, embeddings_freq
        self._histograms = None  # their writer
        self._metadata, self.rows = dict(embeddings_metadata or {}), positive_int("rows", rows)

    on_every_host = True

    def set_model(self, model: keras.Model) -> None:
        if not hosts_of_model(model).is_first:  # it reads tables with the first host, which writes
            self._elsewhere = tempfile.TemporaryDirectory()
            self.log_dir = self._elsewhere.name
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        unknown = set(self._metadata) - set(self._embeddings())
        if unknown:
            raise ValueError(
                f"`embeddings_metadata` must be of embeddings of the model, {sorted(self._embeddings())}. "
                f"Received: {sorted(unknown)}"
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._histograms_every and epoch % self._histograms_every == 0:
            self._write_histograms(epoch)
        if self._embeddings_every and epoch % self._embeddings_every == 0:
            self._write_embeddings()

    def _write_histograms(self, epoch):
        # Its own folder: TensorBoard reads the files of a folder one after the other, and would not look
        # again at Keras's, which grows on.
        if self._histograms is None:
            self._histograms = self.summary.create_file_writer(str(pathlib.Path(self.log_dir) / "weights"))
        with self._histograms.as_default():
            for weight in {id(weight): weight for weight in self.model.weights}.values():
                if tf.as_dtype(weight.dtype).is_floating:
                    name = weight.path.replace(":", "_")
                    self.summary.histogram(f"{name}/histogram", self._some_of(weight), step=epoch)
        self._histograms.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        if self._histograms is not None:
            self._histograms.close()
            self._histograms = None

    def _some_of(self, weight):
        if isinstance(weight, ShardVariable):
            count = min(weight.shape[0], self.rows)
            return weight.read_at(np.linspace(0, weight.shape[0] - 1, count, dtype=np.int64))
        if not weight.shape or weight.shape[0] <= self.rows:
            return tf.convert_to_tensor(weight.value)
        return tf.gather(weight.value, np.linspace(0, weight.shape[0] - 1, self.rows, dtype=np.int64))

    # The projector.

    def _embeddings(self):
        """Return `{name: function from row numbers to rows, how many rows}` of the model's embeddings."""
        found = {}
        for layer in all_layers(self.model):
            if isinstance(layer, ShardedEmbedding) and layer.built:
                found[layer.name] = LogicalRows(layer.table).gather, layer.input_dim
            elif isinstance(layer, DistributedEmbedding) and layer.built:
                for table in layer.tables:
                    for name, start, stop in table.sections:
                        found[f"{layer.name}/{name}"] = _rows_from(table, start), stop - start
            elif isinstance(layer, keras.layers.Embedding) and layer.built:
                found[layer.name] = _rows_of(layer.embeddings), layer.input_dim
        return found

    def _write_embeddings(self):
        folder = pathlib.Path(self.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        config = []
        for name, (rows_of, count) in self._embeddings().items():
            file = name.replace("/", "_")
            count = min(count, self.rows)
            values = np.float32(rows_of(tf.range(count, dtype=tf.int64)))
            np.savetxt(folder / f"{file}.tsv", values, fmt="%.6g", delimiter="\t")
            entry = {"tensor_name": name, "tensor_path": f"{file}.tsv"}
            metadata = self._metadata.get(name)
            if metadata is not None and not isinstance(metadata, (str, pathlib.Path)):
                lines = [" ".join(str(label).split()) or "?" for label in metadata[:count]]
                (folder / f"{file}.metadata.tsv").write_text("\n".join(lines) + "\n", "utf-8")
                metadata = f"{file}.metadata.tsv"
            if metadata is not None:
                entry["metadata_path"] = str(metadata)
            lines = [f"  {key}: {json.dumps(value)}" for key, value in entry.items()]
            config.append("\n".join(["embeddings {", *lines, "}"]))
        (folder / "projector_config.pbtxt").write_text("\n".join(config) + "\n", "utf-8")


def _rows_from(table, start):
    return lambda rows: LogicalRows(table).gather(rows + start)


def _rows_of(variable):
    return lambda rows: tf.gather(variable.value, rows)
