"""keras_largeout: the ops alone, and the Keras layer with its optimizer. The two show what Keras adds."""

import shutil
import statistics

import keras
import numpy as np
import tensorflow as tf

from benchmarks import machine
from benchmarks._data import load
from benchmarks._step import Step
from benchmarks._worker import CHECKED_STEPS
from benchmarks.peers import keras_embedding, tf_common

_PER_CALL = 20  # steps
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
RULES = {  # name: (rule of the op, (name, fill, one value per row) of each slot)
    "sgd": ("sgd", ()),
    "adagrad": ("adagrad", (("accumulator", 0.1, False),)),
    "rowwise_adagrad": ("row_wise_adagrad", (("accumulator", 0.1, True),)),
    "adam": ("lazy_adam", (("m", 0.0, False), ("v", 0.0, False))),
}


def ops_step(config, data):
    """Return embedding_lookup, its gradient and row_update in a tf.function: no layer, no optimizer
    object.
    """
    from keras_largeout.ops import row_update as rows
    from keras_largeout.ops.embedding.wrapper import embedding_lookup
    from keras_largeout.tables.table import ShardedTable

    shape = (config["rows"], config["dim"])
    (shard,) = ShardedTable(shape, keras.initializers.Constant(config["init"])).shards
    rule, slots = RULES[config["optimizer"]]
    slots = [shard.new_slot(name, fill, per_row).value for name, fill, per_row in slots]
    table, rate = shard.value, config["lr"]
    grad, ids = tf.constant(load(data, "grad")), tf_common.batches(data, "ids")
    iterations = tf.Variable(0, dtype=tf.int64)

    def hyper():
        if rule == "sgd":
            return rows.sgd_hyper(rate)
        if rule == "lazy_adam":
            alpha = rows.adam_alpha(rate, BETA_1, BETA_2, iterations.assign_add(1))
            return rows.lazy_adam_hyper(alpha, BETA_1, BETA_2, EPSILON)
        return rows.adagrad_hyper(rate, EPSILON)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding_lookup(table, batch, combiner="sum") * grad)
        touched = tape.gradient(loss, table)
        rows.row_update(rule, table, slots, touched.indices, touched.values, hyper())
        return loss

    return tf_common.rotate(step, ids)


def keras_step(config, data):
    """Return ShardedEmbedding(combiner="sum") and an optimizer of ours, in the same step function as
    Keras's own.
    """
    return keras_embedding.train_step(*_layer_and_optimizer(config), data, lambda combined: combined)


class SumOfProducts(keras.losses.Loss):
    """The loss of the other steps, as `compile` takes it."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, grad, combined):
        return tf.reduce_sum(combined * grad, axis=-1)


def fit_step(config, data):
    """Return the loop of `kl.Model.fit` over the same layer and optimizer, with its data and its logs."""
    from keras_largeout import Model

    layer, optimizer = _layer_and_optimizer(config)
    ids = np.stack(load(data, "ids"))
    inputs = keras.Input(ids.shape[2:], dtype=ids.dtype.name)
    model = Model(inputs, layer(inputs))
    model.compile(optimizer, SumOfProducts(), steps_per_execution=_PER_CALL)
    model.make_train_function()
    grad = tf.constant(load(data, "grad"))
    rows = tf.data.Dataset.from_tensor_slices(ids).repeat().map(lambda batch: (batch, grad)).prefetch(2)
    iterator = iter(rows)

    def run(i):
        # The first steps are compared with those of other libraries, one by one.
        model.steps_per_execution = 1 if i < CHECKED_STEPS else _PER_CALL
        model.reset_metrics()
        return float(model.train_function(iterator)["loss"])

    return Step(run, per_call=_PER_CALL)


def cold_step(config, data):
    """Return the same of rows in a file, none of which is in memory: asked for, then trained."""
    layer, optimizer = _layer_and_optimizer(config)
    step = keras_embedding.train_step(layer, optimizer, data, lambda combined: combined)
    (part,) = layer.table.shards
    rows = [np.unique(batch) for batch in load(data, "ids")]
    for i in range(len(rows)):  # from here on no row is new
        step.run(i)
    record = 4 * part.records.words
    # A record that crosses the border of two pages is read from both.
    pages = [np.union1d(r * record // machine.PAGE, ((r + 1) * record - 1) // machine.PAGE) for r in rows]
    asked = statistics.mean(map(len, pages))

    def run(i):
        part.prefetch(rows[i % len(rows)])
        return step.run(i)

    return Step(
        run,
        {"pages": asked, "disk_seconds": asked * machine.page_read_seconds(config["folder"])},
        before=lambda i: machine.forget(part.records.path),
    )


def _layer_and_optimizer(config):
    from keras_largeout import layers, optimizers

    if "folder" in config:  # a round before this one has left its rows, and its process no more
        shutil.rmtree(config["folder"], ignore_errors=True)
    make = {
        "sgd": lambda lr: optimizers.SGD(lr),
        "adagrad": lambda lr: optimizers.Adagrad(lr, epsilon=EPSILON),
        "rowwise_adagrad": lambda lr: optimizers.RowWiseAdagrad(lr, epsilon=EPSILON),
        "adam": lambda lr: optimizers.LazyAdam(lr, epsilon=EPSILON),
    }
    layer = layers.ShardedEmbedding(
        config["rows"],
        config["dim"],
        combiner="sum",
        embeddings_initializer=keras.initializers.Constant(config["init"]),
        storage=config.get("storage", "device"),
    )
    return layer, make[config["optimizer"]](config["lr"])
