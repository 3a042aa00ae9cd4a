"""`SparseOutput`: saving, loading, training on; and what does not fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.layers import SparseOutput

CLASSES, DIM = 23, 9


def _model(fan_in=4, dim=DIM, name="head", **kwargs):
    x = keras.Input((5,))
    head = SparseOutput(CLASSES, fan_in, name=name, **{"seed": 1, **kwargs})
    return keras.Model(x, head(keras.layers.Dense(dim, activation="relu")(x)))


def _data(rng):
    y = rng.integers(-1, CLASSES, (24, 3))
    return tf.data.Dataset.from_tensor_slices((rng.normal(size=(24, 5)).astype("float32"), y)).batch(8)


OPTIONS = {
    "plain": {},
    "fused": {"optimizer": keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5))},
    "weighted": {"optimizer": "sgd", "label_weights": np.linspace(1, 2, CLASSES), "use_bias": False},
    "bfloat16": {"optimizer": "adagrad", "dtype": "bfloat16"},
}


def _values(model):
    return [np.asarray(w.numpy(), "float32") for w in model.weights]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_save_load_and_train_on(tmp_path, rng, options, file):
    data, path = _data(rng), tmp_path / file
    model = _model(**OPTIONS[options])
    model.compile(keras.optimizers.Adam(0.01), loss=model.layers[-1].loss)
    model.fit(data, epochs=2, verbose=0)
    model.layers[-1].rewire(7, fraction=0.5)
    if file.endswith(".keras"):
        model.save(path)
        loaded = keras.models.load_model(path)
    else:
        model.save_weights(path)
        loaded = _model(**{**OPTIONS[options], "label_weights": None if options != "weighted" else True})
        loaded.compile(keras.optimizers.Adam(0.01), loss=loaded.layers[-1].loss)
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    for a, b in zip(_values(model), _values(loaded)):
        np.testing.assert_array_equal(a, b)
    losses = [m.fit(data, epochs=2, verbose=0).history["loss"] for m in (model, loaded)]
    assert losses[0] == losses[1]
    for a, b in zip(_values(model), _values(loaded)):
        np.testing.assert_array_equal(a, b)


def test_a_subclassed_model_keeps_the_moments(tmp_path, rng):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.wide = keras.layers.Dense(DIM, activation="relu")
            self.head = SparseOutput(CLASSES, 4, name="head", optimizer="adam", seed=1)

        def call(self, x):
            return self.head(self.wide(x))

    data, nets = _data(rng), (Net(), Net())
    for net in nets:
        net.compile("sgd", loss=net.head.loss)
        net.fit(data, verbose=0)
    nets[0].fit(data, verbose=0)
    nets[0].save_weights(tmp_path / "w.weights.h5")
    nets[1].load_weights(tmp_path / "w.weights.h5")
    losses = [net.fit(data, epochs=2, verbose=0).history["loss"] for net in nets]
    assert losses[0] == losses[1]


def test_clones_have_the_same_connections():
    model = _model(seed=5, optimizer="adam", label_weights=np.full(CLASSES, 2.0))
    clone = keras.models.clone_model(model)
    clone.compile("sgd", loss=clone.layers[-1].loss)
    with pytest.raises(ValueError, match="`label_weights` of the head 'head' are not known"):
        clone.fit(np.zeros([4, 5]), np.zeros([4, 1], int), verbose=0)
    np.testing.assert_array_equal(model.layers[-1].connections.numpy(), clone.layers[-1].connections.numpy())
    clone.set_weights(model.get_weights())
    for a, b in zip(_values(model), _values(clone)):
        np.testing.assert_array_equal(a, b)
    assert clone.layers[-1].optimizer is not model.layers[-1].optimizer
    clone.fit(np.zeros([4, 5]), np.zeros([4, 1], int), verbose=0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"fan_in": 3}, r"'head': .*expected fan_in=3. Received: a file with fan_in=4"),
        ({"dim": DIM + 1}, r"expected inputs=10. Received: a file with inputs=9"),
        ({"use_bias": False}, r"expected use_bias=False. Received: a file with use_bias=True"),
        ({"label_weights": np.ones(CLASSES)}, r"`label_weights`"),
    ],
)
def test_a_checkpoint_of_another_layer_is_refused_whole(tmp_path, other, message):
    model, different = _model(), _model(**other)
    model.layers[-1].save_own_variables(store := {})
    before = _values(different)
    with pytest.raises(ValueError, match=message):
        different.layers[-1].load_own_variables(store)
    for a, b in zip(before, _values(different)):
        np.testing.assert_array_equal(a, b)
    model.save_weights(tmp_path / "w.weights.h5")
    # Of other inputs the layer below is another one too: Keras names that one first.
    with pytest.raises(
        ValueError, match=rf"{message}|variable.shape=\(5, 10\), Received: value.shape=\(5, 9\)"
    ):
        different.load_weights(tmp_path / "w.weights.h5")


@pytest.mark.parametrize("wrong", [DIM, 2**16 - 1])
def test_connections_to_inputs_that_do_not_exist_are_refused(wrong):
    model, other = _model(), _model(seed=2)
    model.layers[-1].save_own_variables(store := {})
    store["connections_rows_000000"][7, 2] = wrong
    del store["digests"]  # written wrong, not damaged since
    before = _values(other)
    message = rf"`connections` must be in \[0, {DIM}\).* Received: a file with connections\[7, 2\] = {wrong}"
    with pytest.raises(ValueError, match=message):
        other.layers[-1].load_own_variables(store)
    with pytest.raises(ValueError, match=message):
        other.layers[-1].fan_in_weights.load(store)
    for a, b in zip(before, _values(other)):
        np.testing.assert_array_equal(a, b)
