"""What every layer can do, under every strategy. A new promise joins by one function of `CHECKS`."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from _memory import alive
from _training import assert_same
from conformance._layers import BATCH, LAYERS

import keras_largeout as kl
from keras_largeout._keras import all_layers, own_optimizers
from keras_largeout.serving import apply

EPOCHS = 2


def run(layer, check, strategy, folder):
    """Runs one cell of the table; returns what it has to tell, as JSON can hold it, or raises."""
    case = LAYERS[layer]
    if check in case.refused:
        with pytest.raises(ValueError, match=case.refused[check]):
            CHECKS[check](layer, strategy, folder)
        return None
    return CHECKS[check](layer, strategy, folder)


def compiled(layer, strategy, **kwargs):
    case = LAYERS[layer]
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = case.model()
        model.compile(kl.optimizers.LazyAdam(0.01), loss=case.loss(model), **kwargs)
    return model


def fit(layer, model, epochs=EPOCHS):
    """The losses of the epochs, which are exact under every strategy."""
    return history(layer, model, epochs)["loss"]


def history(layer, model, epochs=EPOCHS):
    """The same, and those of the metrics."""
    x, y = LAYERS[layer].data()
    return model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history


def arrays(model, *layers):
    """The weights of layers as their files have them: in logical order, wherever they are."""
    found = {}
    for name in layers or ("large", "small"):
        store = {}
        model.get_layer(name).save_own_variables(store)
        store.pop("digests", None)  # of the bytes that are saved, not a weight
        store.pop("seed_state", None)  # how far random numbers have come: as with Dropout, not a weight
        found |= {f"{name}/{key}": np.asarray(value) for key, value in store.items()}
    return found


def assert_equal(got, want):
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_array_equal(got[key], want[key], err_msg=key)


def moved(before, after):
    """Whether each array has changed."""
    return {key: not np.array_equal(before[key], after[key]) for key in before}


# The checks of a layer follow one another. Each collection of garbage would look through older models, too.
@functools.lru_cache(maxsize=8)
def trained(layer, strategy, eager=False):
    """A model after a short training, and its numbers then: losses and weights.

    Several checks share it, as tracing is what takes time. Each looks at what the model is when it begins.
    """
    model = compiled(layer, strategy, run_eagerly=eager, metrics=LAYERS[layer].metrics())
    logs = history(layer, model)
    weights = {key: np.float64(value).tolist() for key, value in arrays(model).items()}
    return model, {"losses": logs.pop("loss"), **logs, **weights}


def numbers(layer, strategy, folder):
    """Those of a short training: the test compares them with those of one device."""
    _, told = trained(layer, strategy)
    assert {key for key in told if key in ("perplexity", "top_3_accuracy", "mrr_at_3")} == {
        metric.name for metric in LAYERS[layer].metrics()
    }
    return told


def config(layer, strategy, folder):
    """A layer made from its config is like it, and so is a model."""
    with strategy.scope():
        model = LAYERS[layer].model()
        large = model.get_layer("large")
        written = _as_json(large)
        again = keras.layers.deserialize(json.loads(written))
        assert type(again) is type(large) and _as_json(again) == written
        model_again = keras.models.model_from_json(model.to_json())
    assert [(w.path, w.shape, w.dtype) for w in model_again.weights] == [
        (w.path, w.shape, w.dtype) for w in model.weights
    ]


def _as_json(layer):
    written = keras.layers.serialize(layer)
    written.pop("build_config", None)  # of a layer that is built
    return json.dumps(written, sort_keys=True)


def save_and_load(layer, strategy, folder):
    """A loaded model has the numbers of the saved one, and trains on as it does."""
    model, _ = trained(layer, strategy)
    model.save(folder / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(folder / "model.keras")
    assert_equal(arrays(loaded), arrays(model))
    again, more = history(layer, loaded), history(layer, model)
    assert again.keys() == more.keys()
    for name, values in more.items():
        assert again[name] == pytest.approx(values, rel=1e-5)
    assert_same(arrays(loaded), arrays(model), 1e-5, 1e-6)


def checkpoint(layer, strategy, folder):
    """A model restored from a `tf.train.Checkpoint` trains on as the saved one does, slots of tables too."""
    model, _ = trained(layer, strategy)
    path = tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))
    restored = compiled(layer, strategy, metrics=LAYERS[layer].metrics())  # its optimizer is not built
    status = tf.train.Checkpoint(model=restored).restore(path)
    assert_equal(arrays(restored), arrays(model))
    with strategy.scope():
        restored.optimizer.build(restored.trainable_variables)
    status.assert_existing_objects_matched()
    again, more = fit(layer, restored), fit(layer, model)
    assert again == pytest.approx(more, rel=1e-5)
    assert_same(arrays(restored), arrays(model), 1e-5, 1e-6)


def mixed_precision(policy, layer, strategy, folder):
    """Computes in 16 bits, keeps float32 weights, and learns what float32 learns, but for rounding."""
    want = trained(layer, strategy)[1]["losses"]
    keras.config.set_dtype_policy(policy)
    try:
        model = compiled(layer, strategy)
        losses = fit(layer, model)
    finally:
        keras.config.set_dtype_policy("float32")
    large = model.get_layer("large")
    assert large.compute_dtype == policy.removeprefix("mixed_") == model.output.dtype
    assert {w.dtype for w in large.trainable_weights} <= {"float32"}
    assert losses == pytest.approx(want, rel=2e-2)


def export(layer, strategy, folder):
    """The SavedModel has the numbers of the trained model, and stock ops only."""
    model, _ = trained(layer, strategy)
    serving = LAYERS[layer].serving(model)
    kl.export_saved_model(serving, folder / "export")
    assert b"Largeout" not in (folder / "export/saved_model.pb").read_bytes()
    x = LAYERS[layer].data()[0][:5]
    served = tf.saved_model.load(folder / "export")
    want, got = serving(x), served.serve(tf.constant(x))
    want = want if isinstance(want, dict) else {"output_0": want}
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


def delta(layer, strategy, folder):
    """A delta gives the variables of a whole export, to the bit, and a loaded model its answers."""
    model, _ = trained(layer, strategy)
    serving = LAYERS[layer].serving(model)
    kl.export_saved_model(serving, folder / "1")
    fit(layer, model, 1)
    kl.export_saved_model(serving, folder / "whole")
    kl.serving.export_delta(folder / "whole", folder / "1", folder / "2.delta")
    kl.serving.apply_delta(folder / "1", folder / "2.delta", folder / "2")
    want = dict(apply.read_tensors(folder / "whole"))
    for key, tensor in apply.read_tensors(folder / "2"):
        np.testing.assert_array_equal(tensor, want[key], err_msg=key)
    x = tf.constant(LAYERS[layer].data()[0][:5])
    served, whole = (tf.saved_model.load(folder / name) for name in ("1", "whole"))
    kl.serving.apply_delta(served, folder / "2.delta")
    for name, values in whole.serve(x).items():
        np.testing.assert_array_equal(served.serve(x)[name], values, err_msg=name)


def clone(layer, strategy, folder):
    """A clone takes the weights of its original, and leaves them alone."""
    model, _ = trained(layer, strategy)
    with strategy.scope():
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        copy.compile(kl.optimizers.LazyAdam(0.01), loss=LAYERS[layer].loss(copy))
    before = arrays(model)
    assert_equal(arrays(copy), before)
    fit(layer, copy, 1)
    assert any(moved(before, arrays(copy)).values())
    assert_equal(arrays(model), before)


def frozen(layer, strategy, folder):
    """Does not move, passes gradients on, and moves again when it is thawed."""
    model = compiled(layer, strategy)
    large = model.get_layer("large")
    for trainable in (False, True):
        large.trainable = trainable
        with strategy.scope():
            model.compile(kl.optimizers.LazyAdam(0.01), loss=LAYERS[layer].loss(model))
        before = arrays(model)
        fit(layer, model, 1)
        change = moved(before, arrays(model))
        assert any(change[key] for key in change if key.startswith("large/")) == trainable
        assert all(change[key] for key in change if key.startswith("small/"))


def released(layer, strategy, folder, models=1):
    """Nothing of a model that was trained and dropped is left in the process."""

    def train_and_drop():
        x, y = LAYERS[layer].data()
        compiled(layer, strategy).train_on_batch(x[:BATCH], y[:BATCH])

    trained(layer, strategy)  # what a first one leaves, others find
    before = alive()
    for _ in range(models):
        train_and_drop()
    assert alive() == before


def steps_of_keras(layer, strategy, folder):
    """A `kl.Model` that takes several steps per call has the bits of a `keras.Model` that takes one."""
    seen, logs, ours = fitted_and_evaluated(layer, kl.Model, 3)
    seen_of_keras, logs_of_keras, keras_own = fitted_and_evaluated(layer, keras.Model, 1)
    assert seen == [seen_of_keras[step] for step in (2, 4, 5 + 2, 5 + 4)]
    assert logs == logs_of_keras
    assert len(ours) == len(keras_own)
    for (name, values), (_, others) in zip(ours, keras_own):
        np.testing.assert_array_equal(values, others, err_msg=name)


def fitted_and_evaluated(layer, cls, per_call):
    """Return the logs at the end of each call, of the epoch and of `evaluate`, and all variables."""
    case, seen = LAYERS[layer], []
    keras.utils.set_random_seed(7)
    model = case.model(cls)
    # On a GPU Keras chooses XLA by the class of the model, too.
    model.compile(
        kl.optimizers.LazyAdam(0.01),
        loss=case.loss(model),
        metrics=case.metrics(),
        steps_per_execution=per_call,
        jit_compile=False,
    )
    ends = "on_train_batch_end", "on_test_batch_end"
    record = keras.callbacks.LambdaCallback(**dict.fromkeys(ends, lambda batch, logs: seen.append(logs)))
    # Five steps, the last one of a smaller batch.
    options = {"batch_size": 5, "verbose": 0, "callbacks": [record]}
    x, y = case.data()
    logs = model.fit(x, y, shuffle=False, **options).history
    evaluated = model.evaluate(x, y, return_dict=True, **options)
    return seen, (logs, evaluated), variables(model)


def variables(model):
    """Return the variables of a model and of all its optimizers, tables and their slots too, as arrays."""
    optimizers = [model.optimizer, *(own for layer in all_layers(model) for own in own_optimizers(layer))]
    found = [*model.variables, *(v for optimizer in optimizers for v in optimizer.variables)]
    return [(variable.path, variable.numpy()) for variable in found]


CHECKS = {
    "numbers": numbers,
    "config": config,
    "save and load": save_and_load,
    "tf.train.Checkpoint": checkpoint,
    "mixed_bfloat16": functools.partial(mixed_precision, "mixed_bfloat16"),
    "mixed_float16": functools.partial(mixed_precision, "mixed_float16"),
    "export": export,
    "delta": delta,
    "clone": clone,
    "frozen": frozen,
    "released": released,
    "steps of Keras": steps_of_keras,
}
