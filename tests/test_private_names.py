"""Private names of Keras and TensorFlow: where a version lacks one, an error says so."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import executor

import keras_largeout as kl
from keras_largeout._keras import versions
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
@pytest.mark.parametrize("library", [versions, _tensorflow], ids=["Keras", "TensorFlow"])
def test_a_name_that_is_missing(owner, title, library):
    name, version = ("Keras", keras) if library is versions else ("TensorFlow", tf)
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


def test_executors_of_an_unknown_tensorflow_stay_as_they_are(monkeypatch, caplog):
    before = executor.Executor.__del__
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    _tensorflow.never_wait_for_other_workers()
    assert executor.Executor.__del__ is before
    assert "One worker that stands still will stop the others" in caplog.text and "2.99.0" in caplog.text


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
