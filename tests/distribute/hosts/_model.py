"""What synchronous hosts do beside training: run as a script it is one of the hosts.

`python _model.py FOLDER` prints what the tests look at, and saves `FOLDER/model.keras`.
"""

import contextlib
import json
import os
import pathlib
import sys
import unittest.mock

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

USERS, ITEMS = 400, 90


def data():
    rng = np.random.default_rng(0)
    bags = [rng.integers(0, USERS, rng.integers(0, 6)) for _ in range(36)]
    return tf.ragged.constant(bags, dtype=tf.int64), rng.integers(0, 50, (36, 2)), rng.integers(0, ITEMS, 36)


def model_of():
    """Two tables of one width, a vocabulary, and a head."""
    keras.utils.set_random_seed(2)
    bags = keras.Input((None,), dtype="int64", ragged=True, name="bags")
    raw = keras.Input((2,), dtype="int64", name="raw")
    vocabulary = kl.layers.DynamicVocabulary(64, name="vocabulary")
    words = kl.layers.ShardedEmbedding(
        vocabulary.vocabulary_size(),
        8,
        placement="range",
        combiner="sum",
        vocabulary=vocabulary,
        name="words",
    )
    users = kl.layers.ShardedEmbedding(USERS, 8, placement="modulo", combiner="mean", name="users")
    head = kl.layers.HierarchicalSoftmax(ITEMS, counts=1e4 / np.arange(1.0, ITEMS + 1), name="next")
    model = kl.Model([bags, raw], head(keras.layers.Add()([users(bags), words(raw)])))
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
    return model


def batches(dataset=None):
    bags, raw, y = data()
    return tf.data.Dataset.from_tensor_slices(((bags, raw), y)).batch(12)


class StopOne(keras.callbacks.Callback):
    """The second host is to stop after the second batch, and the first one is not told."""

    def __init__(self, host):
        super().__init__()
        self._host = host

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and self._host == 1:
            self.model.stop_training = True


def main(folder):
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    folder, strategy = pathlib.Path(folder), kl.distribute.strategy()
    with strategy.scope():
        model = model_of()
    host = getattr(strategy.cluster_resolver, "task_id", 0) if strategy.num_replicas_in_sync > 1 else 0
    said = {"host": host}
    balance = kl.callbacks.LoadBalance()
    report = kl.callbacks.FeatureReport()
    callbacks = [
        balance,
        report,
        keras.callbacks.CSVLogger(folder / f"log_{host}.csv"),
        kl.callbacks.ModelCheckpoint(str(folder / "weights_{epoch}.weights.h5"), save_weights_only=True),
    ]
    history = model.fit(batches(), epochs=2, verbose=0, callbacks=callbacks)
    said["losses"] = history.history["loss"]
    if strategy.num_replicas_in_sync > 1:
        said["ids"] = report.features["users"].ids
        said["asked"] = balance.loads["users"].asked.tolist()

        def of_host(context):
            shard = batches().unbatch().shard(context.num_input_pipelines, context.input_pipeline_id)
            return shard.batch(context.get_per_replica_batch_size(12)).repeat()

        history = model.fit(of_host, epochs=1, steps_per_epoch=3, verbose=0)
        said["by_function"] = history.history["loss"]
        before = model.optimizer.iterations.numpy()
        model.fit(batches(), epochs=2, verbose=0, callbacks=[StopOne(host)])
        said["steps"] = int(model.optimizer.iterations.numpy() - before)
        with strategy.scope(), kl.distribute.shared_folder() as shared:
            said["shared"] = [shared, os.path.isdir(shared)]
        said["not_shared"] = not_shared(strategy, host)
    model.save(folder / "model.keras")
    said["users"] = float(np.abs(model.get_layer("users").table.numpy()).sum())
    if strategy.num_replicas_in_sync > 1:
        rows = kl.resize(model, {"users": USERS + 7}).get_layer("users").table.numpy()
        said["resized"] = [len(rows), float(np.abs(rows[:USERS]).sum())]
    print("said", json.dumps(said), flush=True)


def not_shared(strategy, host):
    """The error where the second host does not find the first one's folder."""
    with contextlib.ExitStack() as stack:
        if host == 1:
            stack.enter_context(unittest.mock.patch("os.path.isdir", lambda path: False))
        try:
            with strategy.scope(), kl.distribute.shared_folder():
                return None
        except OSError as error:
            return str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
