"""`SparseOutput` in `fit`: by its own optimizer or the model's, frozen, in every form of targets."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _sparse_output import (
    CLASSES,
    DIM,
    FAN_IN,
    ROWS,
    batch_of,
    data_of,
    head_of,
    labels_of,
    model_of,
    padded,
    small,
)

import keras_largeout as kl
from keras_largeout.layers import SparseOutput


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


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["binary_crossentropy", "squared_hinge"])
def test_a_fused_optimizer_does_what_the_models_does(rng, name, loss):
    if name == "lazy_adam" and loss == "squared_hinge":
        pytest.skip("lazy: classes without gradient do not move")
    data, weights, losses = data_of(rng), [], []
    for fused in (True, False):
        head = SparseOutput(
            CLASSES, FAN_IN, loss=loss, seed=3, optimizer=OPTIMIZERS[name]() if fused else None
        )
        if name == "own_sgd":  # decay of a bias is the model's optimizer's alone
            head.use_bias = False
        model = model_of(head)
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
    head, labels = head_of(optimizer="adam"), padded(labels_of(rng))

    @tf.function
    def step(hidden):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = head.loss(labels, hidden)
        return tape.gradient(loss, hidden)

    ops = step.get_concrete_function(tf.TensorSpec([ROWS, DIM])).graph.get_operations()
    ours = [op for op in ops if op.type.startswith("Largeout>FanIn")]
    slots = {op.type: op.get_attr("N") for op in ours}
    assert slots == {"Largeout>FanInLoss": 0, "Largeout>FanInStep": 4} and len(ours) == 2
    assert not any(t.shape.rank and t.shape[0] == CLASSES for op in ops for t in op.outputs)
    assert sum(op.type == "AssignVariableOp" for op in ops) == 1  # the step is counted


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", kl.optimizers.LazyAdam(global_clipnorm=1.0)])
def test_a_fused_head_trains_over_frozen_layers(rng, optimizer):
    head = SparseOutput(CLASSES, FAN_IN, optimizer=keras.optimizers.Adam(0.02))
    model = model_of(head, frozen=True)
    model.compile(optimizer, loss=head.loss)
    losses = model.fit(data_of(rng), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 1


@pytest.mark.full
@pytest.mark.parametrize("form", ["padded", "ragged", "sparse"])
@pytest.mark.parametrize("steps", [1, 2])
def test_fit_takes_every_form(rng, form, steps):
    head = SparseOutput(CLASSES, FAN_IN, optimizer="adam")
    model = model_of(head)
    model.compile("adam", loss=head.loss, steps_per_execution=steps)
    forms = {
        "padded": lambda x, y: (x, y),
        "ragged": lambda x, y: (x, tf.RaggedTensor.from_tensor(y, padding=tf.constant(-1, tf.int64))),
        "sparse": lambda x, y: (
            x,
            tf.RaggedTensor.from_tensor(y, padding=tf.constant(-1, tf.int64)).to_sparse(),
        ),
    }
    data = data_of(rng)
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
        losses = model.fit(data_of(rng), epochs=2, verbose=0).history["loss"]
        assert losses[1] < losses[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_dtypes(rng, dtype):
    fused = None if dtype == "mixed_float16" else "adagrad"
    head = SparseOutput(CLASSES, FAN_IN, optimizer=fused, dtype=dtype)
    model = model_of(head)
    model.compile("adam", loss=head.loss)
    losses = model.fit(data_of(rng), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert head.kernel.array.dtype == ("bfloat16" if dtype == "bfloat16" else "float32")
    assert head.bias.array.dtype == "float32"
    scores, _ = head.top_k(rng.normal(size=(3, DIM)), 4)
    assert scores.dtype == tf.float32


@pytest.mark.parametrize("model_optimizer", ["wrapped", "factor"])
def test_a_fused_step_refuses_scaled_losses(rng, model_optimizer):
    """It would take the scaled gradient, also where the model's optimizer skips the step."""
    if model_optimizer == "wrapped":  # what `compile` makes of any optimizer under mixed_float16
        model, head = small(dtype="float32", policy="mixed_float16")
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    else:
        model, head = small()
        optimizer = keras.optimizers.Adam(loss_scale_factor=1024.0)
    model.compile(optimizer, loss=head.loss)
    with pytest.raises(ValueError, match="must not scale the loss where a layer, 'head'"):
        model.fit(*batch_of(rng), verbose=0)
    model.compile("adam", loss=head.loss)
    model.fit(*batch_of(rng), verbose=0)


def test_the_learning_rate_of_a_fused_step_is_the_heads(rng):
    model, head = small()
    model.compile(keras.optimizers.SGD(0.1), loss=head.loss)
    data = batch_of(rng)
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
    model, head = small(own)
    model.compile("sgd", loss=head.loss)
    x, y = batch_of(rng)
    x[3] = np.nan
    weight = np.ones(len(x), "float32")
    weight[3] = 0
    with tf.GradientTape() as tape:
        hidden = tf.Variable(x @ np.ones((8, DIM), "float32"))
        loss = head.loss(y, hidden, sample_weight=weight)
    gradient = tape.gradient(loss, hidden).numpy()
    assert np.isfinite(loss) and np.all(np.isfinite(gradient)) and np.all(gradient[3] == 0)
    assert np.any(gradient[4] != 0) and np.all(np.isfinite(head.kernel.numpy()))


@pytest.mark.full
@pytest.mark.parametrize("own", [None, "adam"])
def test_steps_one_by_one_and_eagerly_are_those_of_fit(rng, own):
    x, y = batch_of(rng, 24)
    kernels, losses = [], []
    for way in ("fit", "train_on_batch", "eager"):
        model, head = small(own)
        model.compile(keras.optimizers.Adam(0.01), loss=head.loss, run_eagerly=way == "eager")
        if way == "train_on_batch":
            for start in range(0, 24, 8):
                model.train_on_batch(x[start : start + 8], y[start : start + 8])
        else:
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        kernels.append(head.kernel.numpy())
        model.reset_metrics()  # Keras 3.12 goes on counting
        losses += [model.test_on_batch(x, y), model.evaluate(x, y, batch_size=24, verbose=0)]
    for kernel in kernels[1:]:
        np.testing.assert_allclose(kernel, kernels[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


@pytest.mark.parametrize("own", [None, "adam"])
def test_early_stopping_restores_the_best_weights(rng, own):
    model, head = small(own)
    model.compile(keras.optimizers.Adam(0.01), loss=head.loss)
    x, y = batch_of(rng, 24)
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


@pytest.mark.full
@pytest.mark.parametrize("second", [kl.optimizers.LazyAdam, kl.optimizers.Adagrad])
def test_a_new_optimizer_starts_with_new_slots(rng, second):
    (x, y), ends = batch_of(rng), []
    for before in (True, False):
        model, head = small(None)
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
