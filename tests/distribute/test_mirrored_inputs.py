"""What goes in and out, over several devices: masks, weights, uneven batches, predictions, other ids."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _mirrored import BATCH, LENGTH, VOCAB, data, fit, model_of, state
from _tables import strategy_of
from _training import assert_same

import keras_largeout as kl
from keras_largeout.replicas.cross_replica import mean_of_replicas

DEVICES = 3


def adam():
    return kl.optimizers.LazyAdam(0.02)


# The loss of a head: the mean over the whole batch, whatever falls to which replica.


@pytest.mark.parametrize("rest", [1, 5])
def test_masks_weights_and_a_last_batch_that_does_not_divide(rest):
    arrays = [array[: 2 * BATCH + rest] for array in data(3, padding=0.3)]
    one, several = model_of(1, adam, mask_zero=True), model_of(DEVICES, adam, mask_zero=True)
    for model in (one, several):
        fit(model, arrays)
    # (What Keras logs after a step averages the replicas' running means, of however many examples.)
    np.testing.assert_allclose(several.history.history["loss"], one.history.history["loss"], rtol=1e-5)
    assert_same(state(several), state(one))
    found, expected = (m.evaluate(*arrays[:2], batch_size=BATCH, verbose=0) for m in (several, one))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_reductions(reduction):
    words, following, weights = (array[: BATCH + 5] for array in data(2, padding=0.3))
    found = []
    for devices in (1, DEVICES):
        model = model_of(devices, lambda: kl.optimizers.SGD(0.1), mask_zero=True)
        head = model.get_layer("next")
        with strategy_of(devices).scope():
            model.compile(kl.optimizers.SGD(0.1), loss=head.make_loss(reduction=reduction))
        fit(model, (words, following, weights))
        found.append(state(model))
    assert_same(found[1], found[0])


def test_mean_of_replicas():
    strategy = strategy_of(4)
    values = [np.array(v, "float32") for v in ([1, 2, 3], [], [4], [0.5, 7])]
    masks = [np.array(m, "float32") for m in ([1, 1, 1], [], [0], [1, 0])]

    @tf.function
    def step(values, masks):
        def replica(x, mask):
            with tf.GradientTape() as tape:
                tape.watch(x)
                terms = tf.reduce_sum(mask)
                mean = tf.math.divide_no_nan(tf.reduce_sum(x * mask), terms)
                part = mean_of_replicas(mean, terms, tf.size(x))
            return part, tape.gradient(part, x)

        return strategy.run(replica, (values, masks))

    def per_replica(arrays):
        number = lambda context: context.replica_id_in_sync_group  # noqa: E731
        return strategy.experimental_distribute_values_from_function(lambda context: arrays[number(context)])

    parts, gradients = map(strategy.experimental_local_results, step(per_replica(values), per_replica(masks)))
    sizes = [len(v) for v in values]
    np.testing.assert_allclose(np.dot(parts, sizes) / sum(sizes), 6.5 / 4, rtol=1e-6)  # as Keras logs
    for gradient, mask in zip(gradients, masks):
        np.testing.assert_allclose(gradient / 4, mask / 4, rtol=1e-6)  # as Keras averages


# Keras's own losses: a mean a replica, averaged over the replicas.


def bag(devices, place="permutation", optimizer=lambda: kl.optimizers.SGD(0.3), metrics=None, **options):
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        ids = keras.Input((LENGTH,), dtype="int32")
        place = place if devices > 1 else "auto"
        table = kl.layers.ShardedEmbedding(VOCAB, 5, combiner="mean", placement=place, **options)
        model = keras.Model(ids, keras.layers.Dense(1)(table(ids)))
        model.compile(optimizer(), "mse", metrics=metrics and metrics(table))
    return model


def numbers(examples):
    ids = data(6)[0][:examples]
    return ids, np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")


@pytest.mark.parametrize("rest, parts", [(5, (2, 2, 1)), (1, (1, 0, 0))])
def test_a_last_batch_that_does_not_divide_weighs_replicas_alike(rest, parts):
    ids, y = numbers(BATCH + rest)
    several, one = bag(DEVICES), bag(1)
    fit(several, (ids, y))
    # That is: an example of a replica with `n` of them counts `rest / (replicas n)` times on one device.
    weights = np.concatenate([np.ones(BATCH)] + [np.full(n, rest / DEVICES / max(n, 1)) for n in parts])
    fit(one, (ids, y, weights.astype("float32")))
    np.testing.assert_allclose(several.layers[1].table.numpy(), one.layers[1].table.numpy(), rtol=1e-5)


def test_a_regularizer_sees_the_rows_of_each_replica():
    ids, y = numbers(BATCH)
    found = []
    for regularizer in (None, keras.regularizers.L2(0.5)):
        model = bag(DEVICES, embeddings_regularizer=regularizer)
        table = model.layers[1].table.numpy()
        found += fit(model, (ids, y))
    rows = [table[np.unique(part)] for part in np.split(ids, DEVICES)]
    np.testing.assert_allclose(found[1] - found[0], np.mean([0.5 * (r**2).sum() for r in rows]), rtol=1e-4)


def test_train_on_batch_gives_every_replica_the_whole_batch():
    ids, y = numbers(BATCH)
    one, several = bag(1), bag(DEVICES)
    for model in (one, several):
        losses = [model.train_on_batch(ids, y) for _ in range(2)]
    np.testing.assert_allclose(one.train_on_batch(ids, y), several.train_on_batch(ids, y), rtol=1e-5)
    np.testing.assert_allclose(several.layers[1].table.numpy(), one.layers[1].table.numpy(), rtol=1e-5)
    assert losses[1] < losses[0]


# Predictions and metrics.


def test_predictor():
    tokens = data(1)[0][: BATCH - 1]
    found = []
    for devices in (1, DEVICES):
        model = model_of(devices, adam)
        with strategy_of(devices).scope():
            serving = model.get_layer("next").predictor(model, k=5)
        found.append(serving.predict(tokens, batch_size=5, verbose=0))
        np.testing.assert_allclose(serving(tokens)["scores"], found[-1]["scores"], rtol=1e-5)
    np.testing.assert_array_equal(found[1]["ids"], found[0]["ids"])
    np.testing.assert_allclose(found[1]["scores"], found[0]["scores"], rtol=1e-5)


class MeanRow(keras.metrics.Mean):
    """Looks up rows of its own in each replica."""

    def __init__(self, table):
        super().__init__(name="row")
        self.table = table

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(self.table(tf.constant([[1, 2], [3, VOCAB - 1]])))


def test_metrics_and_predictions():
    ids, y = numbers(BATCH + 6)
    found = []
    for devices in (1, DEVICES):
        model = bag(devices, metrics=lambda table: [MeanRow(table), "mae"])
        history = model.fit(
            ids, y, batch_size=BATCH, shuffle=False, verbose=0, validation_data=(ids[:6], y[:6])
        )
        found.append({key: np.array(values) for key, values in history.history.items()})
        found[-1]["predicted"] = model.predict(ids, batch_size=BATCH, verbose=0)
    assert "val_row" in found[0]
    assert_same(found[1], found[0], rtol=1e-4)


# Ids.


@pytest.mark.parametrize("place", ["permutation", "columns", "replicated"])
def test_an_id_out_of_range_is_named(place):
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("a GPU tells with the next call, and leaves the id out in this one")
    ids, y = numbers(BATCH)
    ids[-1, 0] = VOCAB + 3
    model = bag(DEVICES, place)
    before = model.layers[1].table.numpy()
    message = rf"`ids` must lie in \[0, {VOCAB}\).*Received: ids\[3, 0\] = {VOCAB + 3}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        fit(model, (ids, y))
    np.testing.assert_array_equal(model.layers[1].table.numpy(), before)  # on no device


@pytest.mark.parametrize("kind", [tf.RaggedTensor, tf.SparseTensor])
def test_ragged_and_sparse_ids_in_a_training_loop(kind):
    ids, y = numbers(BATCH)
    lengths = np.random.default_rng(0).integers(1, LENGTH + 1, BATCH)

    def batch_of(part):
        ragged = tf.RaggedTensor.from_tensor(ids[part], lengths=lengths[part])
        return (ragged if kind is tf.RaggedTensor else ragged.to_sparse(), tf.constant(y[part]))

    found = []
    for devices in (1, DEVICES):
        keras.utils.set_random_seed(7)
        strategy = strategy_of(devices)
        with strategy.scope():
            table = kl.layers.ShardedEmbedding(
                VOCAB, 5, combiner="mean", placement="modulo" if devices > 1 else "auto"
            )
            table.build()
            optimizer = kl.optimizers.LazyAdam(0.05)
            optimizer.build(table.trainable_variables)

        @tf.function
        def step(batch):
            def replica(batch):
                with tf.GradientTape() as tape:
                    error = tf.reduce_sum((tf.reduce_sum(table(batch[0]), 1) - batch[1][:, 0]) ** 2)  # noqa: B023
                gradients = tape.gradient(error, table.trainable_variables)  # noqa: B023
                optimizer.apply(gradients, table.trainable_variables)  # noqa: B023
                return error

            return strategy.reduce("SUM", strategy.run(replica, (batch,)), axis=None)  # noqa: B023

        parts = np.split(np.arange(BATCH), devices)
        batches = [batch_of(part) for part in parts]
        if devices == 1:
            batch = batches[0]
        else:
            batch = strategy.experimental_distribute_values_from_function(
                lambda context: batches[context.replica_id_in_sync_group]  # noqa: B023
            )
        errors = [step(batch).numpy() for _ in range(2)]
        found.append({"errors": np.array(errors), "table": table.table.numpy()})
    assert_same(found[1], found[0], 1e-4, 1e-5)
