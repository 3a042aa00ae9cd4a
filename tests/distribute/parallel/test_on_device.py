"""`OnDevice`: the numbers of one device, and every op, weight and slot where it was put."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.distribute import OnDevice
from keras_largeout.layers import HierarchicalSoftmax, ShardedEmbedding

FIRST, SECOND = "CPU:1", "CPU:2"
#: Numbers of units that nothing else has: a tensor that has one of them is the layer's.
WIDTHS = {17: FIRST, 19: SECOND}
BORDER = 23  # those between the two
X = np.random.default_rng(0).normal(size=(24, 6, 5)).astype("float32")
Y = X.sum(axis=(1, 2))[:, None]


def placed(layer, device, where):
    return OnDevice(layer, device) if where else layer


def dense_model(where):
    """Two parts, with penalties, a state, and losses of layers inside."""
    part = keras.Sequential(
        [
            keras.layers.Dense(17, "tanh", kernel_regularizer="l2", activity_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(BORDER),
        ],
        name="first",
    )
    inputs = keras.Input((6, 5))
    x = placed(part, FIRST, where)(inputs)
    rest = keras.Sequential([keras.layers.GRU(19), keras.layers.Dense(1)], name="second")
    return kl.Model(inputs, placed(rest, SECOND, where)(x))


def trained(model, optimizer, data=(X, Y), loss="mse", epochs=2):
    model.compile(optimizer, loss)
    history = model.fit(*data, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"], [w.numpy() for w in model.weights]


def assert_same(got, want):
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for a, b in zip(got[1], want[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def on(device, name):
    return name.endswith(device)


@pytest.mark.parametrize(
    "optimizer",
    [functools.partial(keras.optimizers.Adam, 0.01), functools.partial(klo.LazyAdam, 0.01)],
    ids=["keras", "ours"],
)
def test_numbers_and_devices(optimizer):
    models = []
    for where in (True, False):
        keras.utils.set_random_seed(1)
        models.append((model := dense_model(where), trained(model, optimizer())))
    (model, got), (_, want) = models
    assert_same(got, want)
    for variable in [*model.weights, *model.optimizer.variables]:
        device = FIRST if "first" in variable.path else SECOND if "second" in variable.path else None
        if device and len(variable.shape):
            assert on(device, variable.value.device), (variable.path, variable.value.device)
    slots = [v.path for v in model.optimizer.variables if "first" in v.path]
    assert len(slots) == 12, slots  # two of each of six weights
    assert_every_op_there(model)


def assert_every_op_there(model):
    step = tf.function(lambda x, y: model.train_step((x, y)))
    graph = step.get_concrete_function(tf.constant(X[:8]), tf.constant(Y[:8])).graph
    seen = set()
    # What takes the handle of a variable runs where that is; a constant, and what moves a value, anywhere.
    ignored = {"Identity", "Const", "Placeholder", "NoOp", "Shape", "ReadVariableOp"}
    for op in graph.get_operations():
        widths = {
            WIDTHS[n] for o in op.outputs for n in (o.shape.as_list() if o.shape.rank else []) if n in WIDTHS
        }
        if op.type in ignored or len(widths) != 1 or any(i.dtype == tf.resource for i in op.inputs):
            continue
        (device,) = widths
        assert on(device, op.device) or (len(op.inputs) == 0), (op.name, op.type, op.device)
        seen.add(op.type)
    assert {"MatMul", "BiasAdd"} & seen and len(seen) > 8, seen


def test_tables_and_heads():
    ids = np.random.default_rng(0).integers(0, 50, (24, 6))

    def model_of(where):
        keras.utils.set_random_seed(2)
        inputs = keras.Input((6,), dtype="int32")
        x = placed(ShardedEmbedding(50, 17, mask_zero=True), FIRST, where)(inputs)
        head = HierarchicalSoftmax(50)
        x = placed(keras.layers.LSTM(19, return_sequences=True), SECOND, where)(x)
        return kl.Model(inputs, placed(head, SECOND, where)(x)), head

    results = []
    for where in (True, False):
        model, head = model_of(where)
        metrics = [kl.metrics.Perplexity()]
        model.compile(klo.LazyAdam(0.01), head.loss, metrics=metrics)
        history = model.fit(ids, ids, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        results.append((history["loss"] + history["perplexity"], [w.numpy() for w in model.weights]))
        if where:
            (table,) = model.layers[1].table.shards
            assert all(on(FIRST, part.value.device) for part in (table, *table.slots()))
            assert on(SECOND, head.weights[0].value.device)
    assert_same(*results)


def test_files_clones_and_exports_are_those_of_the_layer(tmp_path):
    keras.utils.set_random_seed(3)
    model = dense_model(True)
    trained(model, klo.LazyAdam(0.01), epochs=1)
    answers = model.predict(X, verbose=0)
    model.save(tmp_path / "m.keras")
    plain = keras.models.load_model(tmp_path / "m.keras")
    assert all(not on(FIRST, w.value.device) for w in plain.weights)
    np.testing.assert_allclose(plain.predict(X, verbose=0), answers, rtol=1e-5, atol=1e-6)
    model.save_weights(tmp_path / "m.weights.h5")
    again = dense_model(True)
    again.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_allclose(again.predict(X, verbose=0), answers, rtol=1e-5, atol=1e-6)
    clone = keras.models.clone_model(model)
    assert all(not on(FIRST, w.value.device) for w in clone.weights)
    assert clone.get_layer("first").get_config() == model.get_layer("first").get_config()
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    got = tf.nest.flatten(served.serve(tf.constant(X)))[0]
    np.testing.assert_allclose(got, answers, rtol=1e-5, atol=1e-6)


def test_mixed_precision():
    """Gradients are asked of the weights, not of their casts."""
    layer = OnDevice(keras.layers.Dense(17, dtype="mixed_bfloat16"), FIRST)
    model = kl.Sequential([keras.Input((5,), dtype="float32"), layer])
    before = layer.kernel.numpy()
    trained(model, klo.SGD(0.1), (X[:, 0], Y), epochs=1)
    assert np.abs(layer.kernel.numpy() - before).max() > 1e-3


def test_a_layer_that_is_called_twice():
    """The gradient of its weights is that of both calls, each counted once."""
    results = []
    for where in (True, False):
        keras.utils.set_random_seed(4)
        layer = placed(keras.layers.Dense(5, "tanh"), FIRST, where)
        inputs = keras.Input((5,))
        model = kl.Model(inputs, layer(layer(inputs)))
        results.append(trained(model, klo.SGD(0.1), (X[:, 0], X[:, 1])))
    assert_same(*results)


def test_a_layer_that_was_built_moves():
    layer = keras.layers.Dense(4)
    want = layer(X)
    assert OnDevice(layer, FIRST) is layer
    np.testing.assert_allclose(layer(X), want, rtol=1e-6)
    assert on(FIRST, layer.kernel.value.device)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(X) ** 2)
    gradient = tape.gradient(loss, layer.kernel.value)
    assert on(FIRST, gradient.device)
    np.testing.assert_allclose(gradient, 2 * np.einsum("bti,btj->ij", X, want), rtol=1e-4, atol=1e-4)


def test_a_table_that_was_built_moves_with_its_slots():
    words = ShardedEmbedding(50, 3)
    model = kl.Sequential([keras.Input((6,), dtype="int32"), words, keras.layers.Flatten()])
    model.compile(klo.LazyAdam(0.1), "mse")
    ids = np.random.default_rng(0).integers(0, 50, (8, 6))
    model.fit(ids, np.zeros((8, 18)), verbose=0)
    (rows,) = words.table.shards
    want = [part.numpy() for part in (rows, *rows.slots())]
    OnDevice(words, FIRST)
    for part, values in zip((rows, *rows.slots()), want, strict=True):
        assert on(FIRST, part.value.device)
        np.testing.assert_array_equal(part.numpy(), values)
    assert on(FIRST, words(ids).device)


def test_inputs_and_outputs_of_any_structure():
    class Two(keras.layers.Layer):
        def call(self, inputs, scale=1.0, training=False):
            a, (b, ids) = inputs["a"], inputs["b"]
            return {"sum": (a + b) * scale, "ids": ids, "training": tf.constant(training)}

    layer = OnDevice(Two(), FIRST)
    a, b = tf.constant([1.0]), tf.constant([2.0])
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        found = layer({"a": a, "b": (b, tf.constant([7]))}, scale=3.0, training=True)
    assert found["sum"].numpy() == [9.0] and found["ids"].numpy() == [7] and found["training"].numpy()
    assert [g.numpy() for g in tape.gradient(found["sum"], [a, b])] == [3.0, 3.0]


def test_remat_computes_again():
    calls = []

    class Square(keras.layers.Layer):
        def call(self, x):
            calls.append(tf.executing_eagerly())
            return x * x

    layer = OnDevice(Square(), FIRST, remat=True)
    layer.build(())
    x = tf.constant([3.0])

    @tf.function
    def gradient(x):
        return tf.gradients(layer(x), x)[0]

    assert gradient(x).numpy() == [6.0]
    assert len(calls) == 2


def test_released():
    """A closure of a gradient would hold the model for good."""
    references = []
    for _ in range(3):
        model = kl.Sequential([keras.Input((5,)), OnDevice(keras.layers.Dense(3), FIRST)])
        trained(model, klo.SGD(0.1), (X[:, 0], X[:, 0, :3]), epochs=1)
        references.append(weakref.ref(model.layers[0]))
        del model
    keras.backend.clear_session()
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 1


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`layer` must be a keras\.layers\.Layer"):
        OnDevice(3, FIRST)
    with pytest.raises(ValueError, match=r"`device` must be one of \['CPU:0', .* Received: device='GPU:9'"):
        OnDevice(keras.layers.Dense(3), "GPU:9")
    layer = OnDevice(keras.layers.Dense(3), "/device:CPU:1")
    with pytest.raises(ValueError, match=r"that on which 'dense.*' was put before, CPU:1"):
        OnDevice(layer, SECOND)
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:1", "CPU:2"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        words = ShardedEmbedding(50, 3, placement="modulo")
        words.build()
    with pytest.raises(ValueError, match="must not be cut over several devices to be put on one"):
        OnDevice(words, FIRST)
    assert OnDevice(layer, FIRST) is layer
    with pytest.raises(NotImplementedError, match="cannot be called on several replicas"):
        strategy.run(lambda: layer(X))
