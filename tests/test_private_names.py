"""Private names of Keras and TensorFlow: where a version lacks one, an error says so."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src import backend
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, executor
from tensorflow.python.ops import control_flow_util, resource_variable_ops

import keras_largeout as kl
from keras_largeout import _keras
from keras_largeout.distribute.replicas import _tensorflow
from keras_largeout.distribute.replicas.optimizer_check import check_compiled


class _Context:
    entry_layer = None

    def get_value(self, name):
        return True


def _called(monkeypatch, *lacks):
    """A layer whose call context lacks a name."""
    layer = keras.layers.Dense(1)
    for name in lacks:
        monkeypatch.delattr(_Context, name)
    monkeypatch.setattr(keras.layers.Layer, "_get_call_context", lambda self: _Context())
    return layer


class _Multi:
    """As much of a `keras.optimizers.MultiOptimizer` as is looked at; some versions of Keras have none."""

    built = True
    optimizers = ("first", "second")

    def __init__(self):
        self._optimizer_map = lambda variable: "second"
        self._var_to_optimizer_idx = {"key": 1}

    def _var_key(self, variable):
        return "key"


def _multi(monkeypatch, lacks):
    multi = _Multi()
    assert _keras.optimizer_inside(multi, None) == "second"
    monkeypatch.delattr(_Multi if lacks == "_var_key" else multi, lacks)
    return multi


def _compiled(monkeypatch, lacks):
    """A compiled model that lacks a name."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    assert _keras.compiled_metrics(model) == [["mae"], None]
    assert _keras.compiled_metrics(keras.Sequential()) == []
    owner = model if lacks in vars(model) else vars(model)["_compile_metrics"]
    monkeypatch.delattr(owner, lacks)
    return model


KERAS = {
    "_get_call_context": lambda m: (
        m.delattr(keras.layers.Layer, "_get_call_context"),
        _keras.outermost_layer(keras.layers.Dense(1)),
    ),
    "entry_layer": lambda m: _keras.outermost_layer(_called(m, "entry_layer")),
    "get_value": lambda m: _keras.is_training_call(_called(m, "get_value")),
    "_maybe_reset_call_context": lambda m: (
        m.delattr(keras.layers.Layer, "_maybe_reset_call_context"),
        _keras.outermost_layer(keras.layers.Dense(1)),
    ),
    "_resolve_auto_jit_compile": lambda m: (
        _lacking(m, _functional(), "_resolve_auto_jit_compile"),
        _keras.decline_xla(bool),
    ),
    "_optimizer_map": lambda m: _keras.optimizer_inside(_multi(m, "_optimizer_map"), None),
    "_var_to_optimizer_idx": lambda m: _keras.optimizer_inside(_multi(m, "_var_to_optimizer_idx"), None),
    "_var_key": lambda m: _keras.optimizer_inside(_multi(m, "_var_key"), None),
    "_compile_metrics": lambda m: _keras.compiled_metrics(_compiled(m, "_compile_metrics")),
    "_user_metrics": lambda m: _keras.compiled_metrics(_compiled(m, "_user_metrics")),
    "_user_weighted_metrics": lambda m: _keras.compiled_metrics(_compiled(m, "_user_weighted_metrics")),
    "set_keras_mask": lambda m: (
        m.delattr(backend, "set_keras_mask"),
        _keras.with_mask(tf.zeros([1]), tf.ones([1], tf.bool)),
    ),
    "in_symbolic_scope": lambda m: (m.delattr(backend, "in_symbolic_scope"), _keras.is_symbolic()),
    "get_keras_mask": lambda m: (m.delattr(backend, "get_keras_mask"), _keras.mask_of(tf.zeros([1]))),
    "_maybe_symbolic_build": lambda m: _fit_without(m, "_maybe_symbolic_build"),
    "_all_reduce_sum_gradients": lambda m: _build_without(m, "_all_reduce_sum_gradients"),
    "_get_metrics_result_or_logs": lambda m: _fit_without(m, "_get_metrics_result_or_logs"),
    "_nodes_by_depth": lambda m: _keras.graph_calls(_lacking(m, _functional(), "_nodes_by_depth")),
    "is_input": lambda m: _graph_calls(m, "is_input"),
    "input_tensors": lambda m: _graph_calls(m, "input_tensors"),
    "arguments": lambda m: _graph_calls(m, "arguments"),
    "fill_in": lambda m: _graph_calls(m, "fill_in"),
    "_run_through_graph": lambda m: _computed_without(m, "_run_through_graph"),
    "_outputs_struct": lambda m: _computed_without(m, "_outputs_struct"),
    "_losses_override": lambda m: _keras.losses_given(
        _lacking(m, _functional(), "_losses_override"), []
    ).__enter__(),
    "_value": lambda m: _keras.uncast(_lacking(m, keras.Variable(0.0), "_value")),
}


def _functional():
    x = keras.Input((1,))
    return keras.Model(x, keras.layers.Dense(1)(x))


def _lacking(monkeypatch, owner, name):
    """`owner` without an attribute of itself, or of its class."""
    if name in vars(owner):
        monkeypatch.delattr(owner, name)
    for base in type(owner).__mro__:
        if name in vars(base):
            monkeypatch.delattr(base, name)
    return owner


def _graph_calls(monkeypatch, name):
    model = _functional()
    assert [call.operation for call in _keras.graph_calls(model)] == model.layers[1:]
    node = next(n for nodes in vars(model)["_nodes_by_depth"].values() for n in nodes if not n.is_input)
    _lacking(monkeypatch, node.arguments if name == "fill_in" else node, name)
    return _keras.graph_calls(model)


def _computed_without(monkeypatch, name):
    model = _lacking(monkeypatch, _functional(), name)
    _keras.compute_graph_by(model, lambda values, with_context: values)
    model(np.ones((1, 1)))


def _build_without(monkeypatch, name):
    for base in keras.optimizers.SGD.__mro__:
        if name in vars(base):
            monkeypatch.delattr(base, name)
    kl.optimizers.SGD().build([])


def _fit_without(monkeypatch, name):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = kl.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for base in keras.Model.__mro__:
        if name in vars(base):
            monkeypatch.delattr(base, name)
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)


def _known_executor(monkeypatch, owner, name):
    monkeypatch.setattr(executor.Executor, "__del__", executor.Executor.__del__)  # puts it back afterwards
    if owner is not executor.Executor:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.delattr(executor.Executor, "__del__")
    _tensorflow.never_wait_for_other_workers()


TENSORFLOW = {
    "ResourceVariable": lambda m: (
        m.delattr(resource_variable_ops, "ResourceVariable"),
        _tensorflow.resource_variable_class(),
    ),
    "GraphOrParentsInXlaContext": lambda m: (
        m.delattr(control_flow_util, "GraphOrParentsInXlaContext"),
        _tensorflow.in_xla(),
    ),
    "context": lambda m: (m.delattr(context, "context"), _tensorflow.is_alive("ps", 0)),
    "check_alive": lambda m: (m.delattr(context.Context, "check_alive"), _tensorflow.is_alive("ps", 0)),
    "TFE_DeleteExecutor": lambda m: _known_executor(m, pywrap_tfe, "TFE_DeleteExecutor"),
    "Executor": lambda m: _known_executor(m, executor, "Executor"),
    "__del__": lambda m: _known_executor(m, executor.Executor, "__del__"),
}


@pytest.mark.parametrize("name", KERAS)
def test_a_name_that_keras_lacks(name, monkeypatch):
    with pytest.raises(ImportError) as raised:
        KERAS[name](monkeypatch)
    monkeypatch.undo()
    text = str(raised.value)
    assert f"private name {name!r} of " in text and f"Keras {keras.__version__} does not have" in text
    assert f"known to work with Keras {_keras.KNOWN}: install one of these" in text


@pytest.mark.parametrize("name", TENSORFLOW)
def test_a_name_that_tensorflow_lacks(name, monkeypatch):
    with pytest.raises(ImportError) as raised:
        TENSORFLOW[name](monkeypatch)
    monkeypatch.undo()
    text = str(raised.value)
    assert f"private name {name!r} of " in text and f"TensorFlow {tf.__version__} does not have" in text
    assert f"known to work with TensorFlow {_tensorflow.KNOWN}: install one of these" in text


def test_a_module_that_is_gone():
    with pytest.raises(ImportError, match=r"'name' of keras\.src\.gone, which Keras"):
        _keras._need("keras.src.gone", "name")


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


def test_compile_checks_tables_that_exist():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
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


def test_a_model_is_loaded_to_predict_with_an_optimizer_that_cannot_train_it(tmp_path):
    alone = kl.Sequential([kl.layers.ShardedEmbedding(40, 4)])
    alone.compile("adam", "mse")
    ids = np.arange(8).reshape(4, 2)
    want = alone.predict(ids, verbose=0)
    alone.optimizer.build(alone.trainable_variables)
    alone.save(tmp_path / "model.keras")
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
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
