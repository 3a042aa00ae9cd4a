"""Private names of Keras and TensorFlow: where a version lacks one, an error says so."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import executor

import keras_largeout as kl
from keras_largeout import _keras
from keras_largeout.replicas import _tensorflow
from keras_largeout.replicas.optimizer_check import check_compiled


@pytest.mark.parametrize(
    "owner, title",
    [
        ("keras.src.gone", "keras.src.gone"),
        ("keras.src.backend", "keras.src.backend"),
        (keras.Model, "keras.src.models.model.Model"),
        (keras.layers.Dense(1), "keras.src.layers.core.dense.Dense"),
    ],
    ids=["no module", "module", "class", "object"],
)
@pytest.mark.parametrize("library", [_keras, _tensorflow], ids=["Keras", "TensorFlow"])
def test_a_name_that_is_missing(owner, title, library):
    name, version = ("Keras", keras) if library is _keras else ("TensorFlow", tf)
    rule = (
        f"needs the private name '_name' of {title}, which {name} {version.__version__} does not have. "
        f"It is known to work with {name} {library.KNOWN}: install one of these."
    )
    with pytest.raises(ImportError, match=re.escape(rule)):
        library._need(owner, "_name")


def test_a_method_that_keras_lacks_is_not_passed_by(monkeypatch):
    """Ours would override nothing, and nobody would call it."""
    for name in ("_maybe_symbolic_build", "_get_metrics_result_or_logs", "_all_reduce_sum_gradients"):
        owner = keras.optimizers.Optimizer if name.startswith("_all") else keras.Model
        with monkeypatch.context() as lacks:
            for base in owner.__mro__:
                if name in vars(base):
                    lacks.delattr(base, name)
            with pytest.raises(ImportError, match=f"private name '{name}' of "):
                kl.optimizers.SGD().build([]) if name.startswith("_all") else _fit_in_a_strategy()


def _fit_in_a_strategy():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = kl.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)


def test_compiled_metrics():
    model = keras.Sequential([keras.layers.Dense(1)])
    assert _keras.compiled_metrics(model) == []
    model.compile("sgd", "mse", metrics=["mae"])
    assert _keras.compiled_metrics(model) == [["mae"], None]


def test_executors_of_an_unknown_tensorflow_stay_as_they_are(monkeypatch, caplog):
    before = executor.Executor.__del__
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    _tensorflow.never_wait_for_other_workers()
    assert executor.Executor.__del__ is before
    assert "One worker that stands still will stop the others" in caplog.text and "2.99.0" in caplog.text


class Inner(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.one = keras.layers.Dense(1)
        self.several = [keras.layers.Dense(1), {"a": (keras.layers.Dense(1), None)}]

    def call(self, x):
        return self.several[1]["a"][0](self.several[0](self.one(x)))


class Outer(kl.Model):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.again = self.inner
        self.flat = keras.Sequential([keras.layers.Dense(1), Inner()])

    def call(self, x):
        return self.flat(self.inner(x))


def test_all_layers():
    x = keras.Input((1,))
    shared, inner = keras.layers.Dense(1), Inner()
    steps = keras.layers.Reshape((1, 1))(inner(shared(shared(x))))
    functional = keras.Model(x, keras.layers.Bidirectional(keras.layers.LSTM(1))(steps))
    outer = Outer()
    outer(np.ones((1, 1)))
    for model in (functional, outer, outer.flat, inner, shared):
        found = _keras.all_layers(model)
        assert found[0] is model and len({id(layer) for layer in found}) == len(found)
        assert {id(layer) for layer in model._flatten_layers()} <= {id(layer) for layer in found}
    assert len(_keras.all_layers(inner)) == 4
    round_about = Inner()
    round_about.several.append(round_about.several)  # a list that holds itself
    assert len(_keras.all_layers(round_about)) == 4


@pytest.mark.parametrize("steps", [None, 3])
def test_step_counter(steps):
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=steps)
    variable = keras.Variable([0.0])
    for _ in range(4):
        optimizer.apply([tf.ones([1])], [variable])
    assert int(_keras.step_counter(optimizer).value) == 4
    assert int(optimizer.iterations) == (4 if steps is None else 1)
    broken = type("Optimizer", (), {"variables": [variable]})()
    with pytest.raises(ImportError, match="counter of steps as the first of an optimizer's variables"):
        _keras.step_counter(broken)


def test_mask_of():
    masked = keras.layers.Masking()(tf.zeros([2, 3, 1]))
    np.testing.assert_array_equal(_keras.mask_of(masked), np.zeros((2, 3), bool))
    assert _keras.mask_of(tf.zeros([2])) is None


def test_with_mask():
    values, mask = tf.zeros([2]), tf.constant([True, False])
    assert _keras.mask_of(_keras.with_mask(values, None)) is None
    assert _keras.mask_of(_keras.with_mask(values, mask)) is mask


def test_is_symbolic():
    assert not _keras.is_symbolic()
    with keras.SymbolicScope():
        assert _keras.is_symbolic()


def _two_devices():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


STRATEGIES = {"two": _two_devices, "one": lambda: tf.distribute.OneDeviceStrategy("CPU:0")}


@pytest.mark.parametrize("devices", STRATEGIES)
def test_compile_checks_tables_that_exist(devices):
    with STRATEGIES[devices]().scope():
        ids = keras.Input((2,), dtype="int32")
        table = kl.layers.ShardedEmbedding(40, 4)
        model = kl.Model(ids, keras.layers.Dense(1)(table(ids)))
        with pytest.raises(ValueError, match=r"must be one of keras_largeout\.optimizers.*use .*LazyAdam"):
            model.compile("adam", "mse")
        model.compile(kl.optimizers.LazyAdam(), "mse")
        model.compile(keras.optimizers.LossScaleOptimizer(kl.optimizers.LazyAdam()), "mse")
        assert isinstance(model.optimizer, kl.optimizers.LossScaleOptimizer)
        table.trainable = False
        model.compile("adam", "mse")
    alone = kl.Sequential([kl.layers.ShardedEmbedding(40, 4)])
    alone.build((None, 2))
    alone.compile("adam", "mse")  # on one device any optimizer will do


def test_one_device_of_a_strategy_trains_by_an_optimizer_without_slots():
    with STRATEGIES["one"]().scope():
        model = kl.Sequential([keras.Input((2,)), kl.layers.ShardedEmbedding(40, 4, "zeros")])
        model.compile(keras.optimizers.SGD(1.0), "mse")
        model.fit(np.full((4, 2), 3), np.ones((4, 2, 4)), verbose=0)
        np.testing.assert_array_equal(model.layers[0].table.numpy()[3], np.full(4, 0.5, "float32"))
        for slots in ({"momentum": 0.9}, {"gradient_accumulation_steps": 2}, {"use_ema": True}):
            with pytest.raises(ValueError, match=r"where a strategy is active: use .*optimizers\.SGD"):
                model.compile(keras.optimizers.SGD(1.0, **slots), "mse")


@pytest.mark.parametrize("devices", STRATEGIES)
def test_a_model_is_loaded_to_predict_with_an_optimizer_that_cannot_train_it(tmp_path, devices):
    alone = kl.Sequential([kl.layers.ShardedEmbedding(40, 4)])
    alone.compile("adam", "mse")
    ids = np.arange(8).reshape(4, 2)
    want = alone.predict(ids, verbose=0)
    alone.optimizer.build(alone.trainable_variables)
    alone.save(tmp_path / "model.keras")
    with STRATEGIES[devices]().scope():
        several = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(several.predict(ids, verbose=0), want)
    with pytest.raises((ValueError, RuntimeError), match=r"must be one of keras_largeout\.optimizers"):
        several.fit(ids, np.zeros((4, 2, 4)), verbose=0)  # Keras 3.12 wraps what stops it from building


def test_compile_passes_by_what_others_call_shards():
    layer = keras.layers.Dense(1)
    layer.shards = 7
    other = keras.layers.Dense(1)
    other.shards = [keras.Variable(0.0)]
    check_compiled([layer, other], keras.optimizers.Adam(), replicas=2)


@keras.saving.register_keras_serializable("test_private_names")
class Own(kl.Sequential):
    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)


def test_a_loaded_model_is_compiled(tmp_path):
    x, y = np.ones((4, 3)), np.ones((4, 1))
    model = kl.Sequential([keras.layers.Dense(1)])
    model.compile(kl.optimizers.LazyAdam(0.1), "mse", metrics=["mae"])
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.compiled and int(loaded.optimizer.iterations) == 1
    again, more = (m.fit(x, y, epochs=2, verbose=0).history for m in (loaded, model))
    assert again["loss"] == pytest.approx(more["loss"]) and set(again) == set(more)


def test_a_loaded_model_with_a_compile_of_its_own_is_left_to_it(tmp_path):
    model = Own([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match=r"the model's `compile\(\)` method is custom"):  # as Keras does
        keras.models.load_model(tmp_path / "model.keras")
