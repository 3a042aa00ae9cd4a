"""`SparseOutput` inside Keras: losses against dense NumPy, training with either optimizer, predictions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.layers import SparseOutput
from keras_largeout.ops import export_mode
from keras_largeout.ops.fan_in import stock as stock_fan_in
from keras_largeout.ops.fan_in.reference import fan_in_logits_reference, fan_in_loss_reference

CLASSES, DIM, ROWS, FAN_IN = 29, 17, 12, 5
BIASES = keras.initializers.RandomNormal(seed=1)
LOSSES = ["squared_hinge", "binary_crossentropy", "softmax"]


def _head(dim=DIM, **kwargs):
    head = SparseOutput(CLASSES, **{"fan_in": FAN_IN, "seed": 3, "bias_initializer": BIASES, **kwargs})
    head.build((None, dim))
    return head


def _labels(rng, rows=ROWS):
    """Label lists; one is empty, one has a label twice."""
    labels = [rng.choice(CLASSES, n, replace=False).tolist() for n in rng.integers(1, 6, rows)]
    labels[1], labels[2] = [], [4, 4, 9]
    return labels


def _padded(labels):
    return tf.ragged.constant(labels, dtype=tf.int64).to_tensor(-1)


def _pairs(labels):
    return np.array([(row, label) for row, ls in enumerate(labels) for label in sorted(set(ls))], np.int64)


FORMS = {
    "padded": _padded,
    "numpy": lambda labels: _padded(labels).numpy().astype("int32"),
    "floats": lambda labels: _padded(labels).numpy().astype("float32"),
    "ragged": lambda labels: tf.ragged.constant(labels, dtype=tf.int32),
    "sparse": lambda labels: tf.ragged.constant(labels, dtype=tf.int64).to_sparse(),
    "multi_hot": lambda labels: tf.SparseTensor(
        _pairs(labels), tf.ones(len(_pairs(labels)), tf.int32), [len(labels), CLASSES]
    ),
}


def _expected(head, hidden, labels, weights=None, loss=None):
    splits = np.concatenate([[0], np.cumsum([len(ls) for ls in labels])])
    flat = np.array([label for ls in labels for label in ls], np.int64)
    losses, *_ = fan_in_loss_reference(
        hidden,
        flat,
        splits,
        head.kernel.numpy().astype(np.float32),
        head.connections.numpy(),
        bias=None if head.bias is None else head.bias.numpy(),
        label_weights=None if weights is None else weights[flat],
        loss=loss or head.loss_kind,
    )
    return losses


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("form", FORMS)
def test_losses_for_every_form_of_targets(rng, loss, form):
    head, hidden, labels = _head(loss=loss), rng.normal(size=(ROWS, DIM)).astype("float32"), _labels(rng)
    got = head.make_loss(reduction=None)(FORMS[form](labels), hidden)
    np.testing.assert_allclose(got, _expected(head, hidden, labels), rtol=2e-5)


@pytest.mark.parametrize("graph", [False, True])
def test_sample_weights_masks_and_time_steps(rng, graph):
    head, hidden = _head(), rng.normal(size=(4, 3, DIM)).astype("float32")
    labels = _labels(rng)
    weight = rng.random((4, 3)).astype("float32")
    weight[0, 1] = 0
    y = tf.reshape(_padded(labels), [4, 3, -1]).numpy()
    y[0, 1] = CLASSES + 7  # of weight 0: not looked at
    loss = head.loss
    call = tf.function(loss.__call__) if graph else loss.__call__
    want = _expected(head, hidden.reshape(-1, DIM), labels) * weight.ravel()
    np.testing.assert_allclose(call(y, tf.constant(hidden), weight), want.mean(), rtol=1e-5)


def test_one_label_a_position(rng):
    head, hidden = _head(loss="softmax", use_bias=False), rng.normal(size=(4, 3, DIM)).astype("float32")
    y = rng.integers(0, CLASSES, (4, 3))
    want = _expected(head, hidden.reshape(-1, DIM), y.reshape(-1, 1).tolist()).reshape(4, 3)
    for form in (y, y[..., None], y.astype("int32")):
        np.testing.assert_allclose(head.make_loss(reduction=None)(form, hidden), want, rtol=1e-5)
    np.testing.assert_allclose(head.log_prob(hidden, y), -want, rtol=1e-5)


def test_weights_of_labels(rng):
    weights = rng.uniform(0.5, 3, CLASSES).astype("float32")
    head, hidden = _head(label_weights=weights), rng.normal(size=(ROWS, DIM)).astype("float32")
    labels = _labels(rng)
    want = _expected(head, hidden, labels, weights)
    loss = head.make_loss(reduction=None)
    np.testing.assert_allclose(loss(_padded(labels), hidden), want, rtol=1e-5)
    # A multi-hot matrix brings weights of its own.
    pairs = _pairs(labels)
    values = tf.constant(weights[pairs[:, 1]])
    plain = _head()
    matrix = tf.SparseTensor(pairs, values, [ROWS, 1000])
    np.testing.assert_allclose(plain.make_loss(reduction=None)(matrix, hidden), want, rtol=1e-5)


def _model(head, seed=0, dim=DIM, frozen=False):
    keras.utils.set_random_seed(seed)
    x = keras.Input((6,))
    hidden = keras.layers.Dense(dim, activation="relu", name="wide", trainable=not frozen)(x)
    return keras.Model(x, head(hidden))


def _data(rng, rows=64):
    x = rng.normal(size=(rows, 6)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, _padded(_labels(rng, rows)))).batch(16)


def _weights(model):
    """All weights but the empty one by which a fused head asks for gradients."""
    return {(w.name, tuple(w.shape)): w.numpy() for w in model.weights if w.name != "trigger"}


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "own_sgd": lambda: kl.optimizers.SGD(0.05, weight_decay=0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adam_schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)),
    "lazy_adam": lambda: kl.optimizers.LazyAdam(0.02),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["binary_crossentropy", "squared_hinge"])
def test_a_fused_optimizer_does_what_the_models_does(rng, name, loss):
    if name == "lazy_adam" and loss == "squared_hinge":
        pytest.skip("lazy: classes without gradient do not move")
    data, weights, losses = _data(rng), [], []
    for fused in (True, False):
        head = SparseOutput(
            CLASSES, FAN_IN, loss=loss, seed=3, optimizer=OPTIMIZERS[name]() if fused else None
        )
        if name == "own_sgd":  # decay of a bias is the model's optimizer's alone
            head.use_bias = False
        model = _model(head)
        model.compile(OPTIMIZERS[name](), loss=head.loss)
        losses.append(model.fit(data, epochs=3, verbose=0).history["loss"])
        weights.append(_weights(model))
        if fused:
            assert int(head.optimizer.iterations) == 12
            model.evaluate(data, verbose=0)
            assert int(head.optimizer.iterations) == 12
            assert {w.name for w in model.trainable_weights} == {"kernel", "bias", "trigger"}
            assert [w.shape for w in model.trainable_weights if w.path.startswith(head.name)] == [(0,)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][-1] < losses[0][0]
    for key, value in weights[1].items():
        np.testing.assert_allclose(weights[0][key], value, rtol=1e-4, atol=1e-6, err_msg=str(key))


def test_a_fused_step_is_one_op_after_the_loss(rng):
    """Whose forward pass gets nothing of the update, and the gradient of whose weights is never formed."""
    head, labels = _head(optimizer="adam"), _padded(_labels(rng))

    @tf.function
    def step(hidden):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = head.loss(labels, hidden)
        return tape.gradient(loss, hidden)

    ops = step.get_concrete_function(tf.TensorSpec([ROWS, DIM])).graph.get_operations()
    ours = [op for op in ops if op.type.startswith("Largeout>")]
    slots = {op.type: op.get_attr("N") for op in ours}
    assert slots == {"Largeout>FanInLoss": 0, "Largeout>FanInStep": 4} and len(ours) == 2
    assert not any(t.shape.rank and t.shape[0] == CLASSES for op in ops for t in op.outputs)
    assert sum(op.type == "AssignVariableOp" for op in ops) == 1  # the step is counted


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", kl.optimizers.LazyAdam(global_clipnorm=1.0)])
def test_a_fused_head_trains_over_frozen_layers(rng, optimizer):
    head = SparseOutput(CLASSES, FAN_IN, optimizer=keras.optimizers.Adam(0.02))
    model = _model(head, frozen=True)
    model.compile(optimizer, loss=head.loss)
    losses = model.fit(_data(rng), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_a_frozen_head_stays(rng, optimizer):
    head = SparseOutput(CLASSES, FAN_IN, optimizer=optimizer)
    model = _model(head)
    head.trainable = False
    before = head.get_weights()
    model.compile("sgd", loss=head.loss)
    model.fit(_data(rng), verbose=0)
    for a, b in zip(before, head.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_frozen_head_has_no_gradient_of_its_weights(rng, loss):
    found = {}
    labels, hidden = _padded(_labels(rng)), tf.constant(rng.normal(size=(ROWS, DIM)).astype("float32"))
    for trainable in (True, False):
        head = _head(loss=loss, trainable=trainable)
        sources = [hidden, head.kernel.shards[0].value, head.bias.shards[0].value]

        @tf.function
        def step(head=head, sources=sources):
            with tf.GradientTape() as tape:
                tape.watch(sources[0])
                losses = head.make_loss(reduction="sum")(labels, sources[0])
            return losses, tape.gradient(losses, sources)

        found[trainable] = step()
        attributes = {
            op.get_attr("weight_gradient")
            for op in step.get_concrete_function().graph.get_operations()
            if op.type == "Largeout>FanInLossGrad"
        }
        assert attributes == {trainable}
    (losses, gradients), (frozen_losses, frozen) = found[True], found[False]
    np.testing.assert_array_equal(losses, frozen_losses)
    np.testing.assert_array_equal(gradients[0], frozen[0])
    assert gradients[1].shape == (CLASSES, FAN_IN) and frozen[1:] == [None, None]


@pytest.mark.parametrize("form", ["padded", "ragged", "sparse"])
@pytest.mark.parametrize("steps", [1, 2])
def test_fit_takes_every_form(rng, form, steps):
    head = SparseOutput(CLASSES, FAN_IN, optimizer="adam")
    model = _model(head)
    model.compile("adam", loss=head.loss, steps_per_execution=steps)
    forms = {
        "padded": lambda x, y: (x, y),
        "ragged": lambda x, y: (x, tf.RaggedTensor.from_tensor(y, padding=tf.constant(-1, tf.int64))),
        "sparse": lambda x, y: (
            x,
            tf.RaggedTensor.from_tensor(y, padding=tf.constant(-1, tf.int64)).to_sparse(),
        ),
    }
    data = _data(rng)
    history = model.fit(data.map(forms[form]), validation_data=data, verbose=0).history
    assert np.isfinite(history["val_loss"][0])
    assert int(head.optimizer.iterations) == 4


def test_models_that_are_built_in_fit(rng):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.wide = keras.layers.Dense(DIM, activation="relu")
            self.head = SparseOutput(CLASSES, FAN_IN, optimizer="adagrad")

        def call(self, x):
            return self.head(self.wide(x))

    for model in (Net(), keras.Sequential([keras.layers.Dense(DIM), SparseOutput(CLASSES, FAN_IN)])):
        head = model.layers[-1]
        model.compile("adam", loss=head.loss)
        losses = model.fit(_data(rng), epochs=2, verbose=0).history["loss"]
        assert losses[1] < losses[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_dtypes(rng, dtype):
    fused = None if dtype == "mixed_float16" else "adagrad"
    head = SparseOutput(CLASSES, FAN_IN, optimizer=fused, dtype=dtype)
    model = _model(head)
    model.compile("adam", loss=head.loss)
    losses = model.fit(_data(rng), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert head.kernel.array.dtype == ("bfloat16" if dtype == "bfloat16" else "float32")
    assert head.bias.array.dtype == "float32"
    scores, _ = head.top_k(rng.normal(size=(3, DIM)), 4)
    assert scores.dtype == tf.float32


# Predictions.


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("export", [False, True])
def test_top_k(rng, loss, export):
    head, hidden = _head(loss=loss), rng.normal(size=(2, 3, DIM)).astype("float32")
    logits = fan_in_logits_reference(
        hidden.reshape(-1, DIM), head.kernel.numpy(), head.connections.numpy(), head.bias.numpy()
    ).reshape(2, 3, -1)
    want = {
        "squared_hinge": logits,
        "binary_crossentropy": -np.logaddexp(0, -logits),
        "softmax": logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True),
    }[loss]
    with export_mode.stock_ops() if export else tf.name_scope("custom"):
        scores, ids = head.top_k(hidden, 7)
    order = np.argsort(-want, axis=-1, kind="stable")[..., :7]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(scores, np.take_along_axis(want, order, -1), rtol=1e-4, atol=1e-6)
    if loss != "squared_hinge":
        np.testing.assert_allclose(head.log_prob(hidden, ids[..., 2]), scores[..., 2], rtol=1e-4, atol=1e-6)


def test_predictor_and_export(tmp_path, rng):
    head = _head(loss="softmax")
    model = _model(head)
    serving = head.predictor(model, k=3)
    x = rng.normal(size=(5, 6)).astype("float32")
    want = serving.predict(x, verbose=0)
    kl.export_saved_model(serving, tmp_path / "export")
    served = tf.saved_model.load(tmp_path / "export")
    got = served.serve(tf.constant(x))
    np.testing.assert_array_equal(got["ids"], want["ids"])
    np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5)


def test_stock_top_k_in_several_chunks(rng, monkeypatch):
    head, hidden = _head(), rng.normal(size=(3, DIM)).astype("float32")
    want = head.top_k(hidden, 6)
    monkeypatch.setattr(stock_fan_in, "_VALUES", 4 * FAN_IN * 3)
    with export_mode.stock_ops():
        scores, ids = head.top_k(hidden, 6)
    np.testing.assert_array_equal(ids, want[1])
    np.testing.assert_allclose(scores, want[0], rtol=1e-5)


# Connections and arguments.


def test_first_connections():
    head = _head(fan_in=FAN_IN)
    connections = head.connections.numpy()
    assert connections.shape == (CLASSES, FAN_IN) and connections.dtype == np.uint16
    assert all(len(set(row)) == FAN_IN for row in connections.tolist()) and connections.max() < DIM
    again = SparseOutput.from_config(head.get_config())
    again.build((None, DIM))
    np.testing.assert_array_equal(again.connections.numpy(), connections)
    other = _head(seed=4)
    assert np.any(other.connections.numpy() != connections)
    assert head.in_degrees().tolist() == np.bincount(connections.ravel(), minlength=DIM).tolist()
    wide = SparseOutput(3, 2)
    wide.build((None, 2**16 + 1))
    assert wide.connections.numpy().dtype == np.uint32
    full = SparseOutput(4, 6)
    full.build((None, 6))
    assert np.sort(full.connections.numpy(), axis=1).tolist() == [list(range(6))] * 4


def test_targets_out_of_range(rng):
    head, hidden = _head(), rng.normal(size=(2, DIM)).astype("float32")
    for bad in (CLASSES, -2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
            head.loss(np.array([[1, 2], [3, bad]]), hidden)
    for shape in ([3, 1], [2, 1, 1]):
        with pytest.raises(ValueError, match="`y_true` must be label ids"):
            head.loss(np.zeros(shape, "int32"), hidden)
    with pytest.raises(ValueError, match="`y_true` must be label ids"):
        head.loss(tf.ragged.constant([[[1]], [[2]]]), hidden)


def test_an_empty_batch():
    head = _head()
    for y in (tf.zeros([0, 3], tf.int32), tf.zeros([0], tf.int32)):
        assert float(head.loss(y, tf.zeros([0, DIM]))) == 0
    assert head.top_k(tf.zeros([0, DIM]), 2)[1].shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "`num_classes` must be a positive integer"),
        ({"fan_in": 0}, "`fan_in` must be a positive integer"),
        ({"loss": "hinge"}, "`loss` must be one of"),
        ({"optimizer": "rmsprop"}, "`optimizer` must be one of keras.Adagrad"),
        ({"optimizer": keras.optimizers.SGD(momentum=0.9)}, "`momentum` of an `optimizer`"),
        ({"optimizer": keras.optimizers.Adam(clipnorm=1.0)}, "`clipnorm` of an `optimizer`"),
        ({"optimizer": "adam", "dtype": "mixed_float16"}, "`optimizer` must be None under mixed_float16"),
        ({"label_weights": [1.0, 2.0]}, "`label_weights` must be num_classes=29"),
        ({"label_weights": -np.ones(CLASSES)}, "`label_weights` must be num_classes=29"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SparseOutput(**{"num_classes": CLASSES, **arguments})


def test_wrong_shapes_and_too_early():
    head = SparseOutput(CLASSES, fan_in=DIM + 1)
    with pytest.raises(ValueError, match=r"`fan_in` must be at most the width of the inputs, 17. Received"):
        head.build((None, DIM))
    with pytest.raises(ValueError, match="has no weights yet"):
        head.top_k(tf.zeros([1, DIM]), 1)
    with pytest.raises(ValueError, match="has no connections yet"):
        head.rewire(1)
    with pytest.raises(ValueError, match="`hidden` must have the length of the head's rows, 17"):
        _head().top_k(tf.zeros([1, DIM + 1]), 1)
    with pytest.raises(ValueError, match="`loss` must be softmax or binary_crossentropy"):
        _head().log_prob(tf.zeros([1, DIM]), [1])


def _small(own="adam", policy=None, **kwargs):
    keras.utils.set_random_seed(2)
    x = keras.Input((8,))
    hidden = keras.layers.Dense(DIM, activation="relu", dtype=policy)(x)
    head = SparseOutput(CLASSES, FAN_IN, optimizer=own, seed=3, name="head", **kwargs)
    return keras.Model(x, head(hidden)), head


def _batch(rng, rows=ROWS):
    return rng.normal(size=(rows, 8)).astype("float32"), _padded(_labels(rng, rows)).numpy()


@pytest.mark.parametrize("model_optimizer", ["wrapped", "factor"])
def test_a_fused_step_refuses_scaled_losses(rng, model_optimizer):
    """It would take the scaled gradient, also where the model's optimizer skips the step."""
    if model_optimizer == "wrapped":  # what `compile` makes of any optimizer under mixed_float16
        model, head = _small(dtype="float32", policy="mixed_float16")
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    else:
        model, head = _small()
        optimizer = keras.optimizers.Adam(loss_scale_factor=1024.0)
    model.compile(optimizer, loss=head.loss)
    with pytest.raises(ValueError, match="must not scale the loss where a layer, 'head'"):
        model.fit(*_batch(rng), verbose=0)
    model.compile("adam", loss=head.loss)
    model.fit(*_batch(rng), verbose=0)


def test_the_learning_rate_of_a_fused_step_is_the_heads(rng):
    model, head = _small()
    model.compile(keras.optimizers.SGD(0.1), loss=head.loss)
    data = _batch(rng)
    before = head.kernel.numpy()
    head.optimizer.learning_rate = 0.0
    model.fit(*data, verbose=0)
    np.testing.assert_array_equal(head.kernel.numpy(), before)
    head.optimizer.learning_rate = 0.1
    model.optimizer.learning_rate = 0.0
    dense = model.layers[1].kernel.numpy()
    model.fit(*data, verbose=0)
    assert np.any(head.kernel.numpy() != before)
    np.testing.assert_array_equal(model.layers[1].kernel.numpy(), dense)


@pytest.mark.parametrize("own", [None, "adam"])
def test_nan_where_nothing_counts_reaches_nothing(rng, own):
    model, head = _small(own)
    model.compile("sgd", loss=head.loss)
    x, y = _batch(rng)
    x[3] = np.nan
    weight = np.ones(len(x), "float32")
    weight[3] = 0
    with tf.GradientTape() as tape:
        hidden = tf.Variable(x @ np.ones((8, DIM), "float32"))
        loss = head.loss(y, hidden, sample_weight=weight)
    gradient = tape.gradient(loss, hidden).numpy()
    assert np.isfinite(loss) and np.all(np.isfinite(gradient)) and np.all(gradient[3] == 0)
    assert np.any(gradient[4] != 0) and np.all(np.isfinite(head.kernel.numpy()))


@pytest.mark.parametrize("own", [None, "adam"])
def test_steps_one_by_one_and_eagerly_are_those_of_fit(rng, own):
    x, y = _batch(rng, 24)
    kernels, losses = [], []
    for way in ("fit", "train_on_batch", "eager"):
        model, head = _small(own)
        model.compile(keras.optimizers.Adam(0.01), loss=head.loss, run_eagerly=way == "eager")
        if way == "train_on_batch":
            for start in range(0, 24, 8):
                model.train_on_batch(x[start : start + 8], y[start : start + 8])
        else:
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        kernels.append(head.kernel.numpy())
        losses += [model.test_on_batch(x, y), model.evaluate(x, y, batch_size=24, verbose=0)]
    for kernel in kernels[1:]:
        np.testing.assert_allclose(kernel, kernels[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


@pytest.mark.parametrize("own", [None, "adam"])
def test_early_stopping_restores_the_best_weights(rng, own):
    model, head = _small(own)
    model.compile(keras.optimizers.Adam(0.01), loss=head.loss)
    x, y = _batch(rng, 24)
    seen = []
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(head.kernel.numpy()))
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
    model.fit(x, y, batch_size=8, epochs=9, verbose=0, callbacks=[record, stop])
    assert len(seen) == 3  # the loss falls, and the largest is asked for: the first epoch is the best
    np.testing.assert_array_equal(head.kernel.numpy(), seen[0])


@pytest.mark.parametrize(("classes", "fan_in"), [(1, 1), (1, 4), (7, 1), (3, DIM)])
def test_the_smallest_layers(rng, classes, fan_in):
    head = SparseOutput(classes, fan_in, seed=1, optimizer="adam")
    x = keras.Input((DIM,))
    model = keras.Model(x, head(x))
    model.compile("adam", loss=head.loss)
    labels = rng.integers(-1, classes, (ROWS, 2))
    losses = model.fit(rng.normal(size=(ROWS, DIM)), labels, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    found = head.predictor(model, k=classes)(rng.normal(size=(2, DIM)).astype("float32"))
    assert sorted(found["ids"].numpy()[0].tolist()) == list(range(classes))


@pytest.mark.parametrize("second", [kl.optimizers.LazyAdam, kl.optimizers.Adagrad])
def test_a_new_optimizer_starts_with_new_slots(rng, second):
    (x, y), ends = _batch(rng), []
    for before in (True, False):
        model, head = _small(None)
        kernel, dense = head.kernel.numpy(), model.layers[1].get_weights()
        if before:
            model.compile(kl.optimizers.LazyAdam(0.1), loss=head.loss)
            model.fit(x, y, verbose=0, epochs=3)
            head.kernel.assign(kernel)
            head.bias.assign(np.zeros(CLASSES, "float32"))
            model.layers[1].set_weights(dense)
        model.compile(second(0.1), loss=head.loss)
        model.fit(x, y, verbose=0, epochs=2, shuffle=False)
        ends.append(head.kernel.numpy())
        assert len(head.kernel.array.arrays()) == (3 if second is kl.optimizers.LazyAdam else 2)
    np.testing.assert_array_equal(*ends)


def test_integers_of_unknown_width_are_not_guessed(rng):
    head, hidden = _head(), tf.constant(rng.normal(size=(ROWS, DIM)), tf.float32)
    matrix = FORMS["multi_hot"](_labels(rng))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int32)])
    def loss(y):
        return head.loss(y, hidden)

    with pytest.raises(tf.errors.InvalidArgumentError, match="`y_true` must have a static width"):
        loss(matrix)
    assert np.isfinite(loss(tf.cast(FORMS["sparse"](_labels(rng)), tf.int32)))
