"""`kl.Model` away from clusters: a `keras.Model` in every way that Keras knows, whose files are whole."""

import copy
import pickle

import joblib
import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl


def dense(x=None):
    return keras.layers.Dense(2, kernel_initializer="ones")(x)


@keras.saving.register_keras_serializable("test_model")
class Counting(kl.Model):
    """With its own training step; made from tensors, or as a class with a `call`."""

    steps = 0

    def train_step(self, data):
        type(self).steps += 1
        return super().train_step(data)


class Subclassed(kl.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


def fitted(model):
    model.compile("sgd", "mse")
    x = np.ones((8, 3), "float32")
    assert len(model.fit(x, x[:, :2], verbose=0, epochs=2).history["loss"]) == 2
    assert np.isfinite(model.evaluate(x, x[:, :2], verbose=0))
    assert model.predict(x, verbose=0).shape == (8, 2)
    return model


@keras.saving.register_keras_serializable("test_model")
class Sized(kl.Model):
    """Positional arguments that are no tensors."""

    def __init__(self, rows, units, **kwargs):
        super().__init__(**kwargs)
        self.rows, self.units = rows, units
        self.words = kl.layers.ShardedEmbedding(rows, 3, combiner="sum")
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(self.words(x))

    def get_config(self):
        return {**super().get_config(), "rows": self.rows, "units": self.units}


class MakesTensors(kl.Model):
    """A functional model whose tensors are made inside."""

    def __init__(self, width, units):
        x = keras.Input((width,))
        super().__init__(x, keras.layers.Dense(units)(x))


def test_positional_arguments_of_a_subclass():
    sized = Sized(20, 2)
    assert sized(np.ones((4, 5), "int32")).shape == (4, 2)
    assert Sized(20, units=2).units == 2
    made = fitted(MakesTensors(3, 2))
    assert isinstance(made, MakesTensors) and made.input.shape == (None, 3)
    x = keras.Input((1,))
    functional = type(keras.Model(x, dense(x)))
    assert isinstance(made, functional) and not isinstance(sized, functional)
    assert fitted(Subclassed()).built  # the classes have not changed


def _pickled(kind):
    x = keras.Input((5,), dtype="int32")
    words = kl.layers.ShardedEmbedding(20, 3, combiner="sum")
    head = kl.layers.HierarchicalSoftmax(20, counts=np.ones(20))
    if kind == "subclassed":
        model, loss = Sized(20, 2), "mse"
    elif kind == "sequential":
        model, loss = kl.Sequential([x, words, head]), head.loss
    else:
        model, loss = kl.Model(x, head(words(x))), head.loss
    model.compile(kl.optimizers.LazyAdam(0.1), loss)
    return model


@pytest.mark.full
@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, "joblib"])
@pytest.mark.parametrize("kind", ["functional", "sequential", "subclassed"])
def test_pickles(kind, copied, tmp_path):
    model = _pickled(kind)
    ids = np.arange(20, dtype="int32").reshape(4, 5)
    y = np.ones((4, 2)) if kind == "subclassed" else np.arange(4)
    model.train_on_batch(ids, y)
    if copied == "joblib":
        joblib.dump(model, tmp_path / "model")
        other = joblib.load(tmp_path / "model")
    else:
        other = copied(model)
    assert type(other).__name__ == type(model).__name__ and isinstance(other, (kl.Model, kl.Sequential))
    model.reset_metrics()  # on Keras 3.12 a loss is the mean over the batches so far
    for _ in range(2):
        assert other.train_on_batch(ids, y) == model.train_on_batch(ids, y)


def test_functional_subclassed_and_sequential_side_by_side():
    x = keras.Input((3,))
    functional = fitted(kl.Model(x, dense(x)))
    named = kl.Model(inputs=x, outputs={"out": dense(x)}, name="named")
    subclassed = fitted(Subclassed())
    sequential = fitted(kl.Sequential([keras.layers.Dense(2)]))
    for model in (functional, named, subclassed):
        assert isinstance(model, kl.Model) and isinstance(model, keras.Model)
    assert isinstance(sequential, keras.Sequential)
    assert isinstance(functional, type(keras.Model(x, dense(x))))  # Keras treats it as functional
    assert named.name == "named" and set(named.output) == {"out"}
    assert not isinstance(subclassed, type(keras.Model(x, dense(x))))
    assert fitted(Subclassed()).built  # functional ones have not changed the class


def test_a_subclass_made_from_tensors_keeps_its_methods_and_its_name(tmp_path):
    x = keras.Input((3,))
    Counting.steps = 0
    model = fitted(Counting(x, dense(x)))
    assert Counting.steps + type(model).steps > 0 and isinstance(model, Counting)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Counting) and loaded.optimizer.iterations == model.optimizer.iterations
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), model.predict(np.ones((1, 3))))


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_saving_loading_cloning(kind, tmp_path):
    x = keras.Input((3,))
    model = kl.Model(x, dense(x)) if kind == "functional" else kl.Sequential([x, keras.layers.Dense(2)])
    fitted(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "unzipped", zipped=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.keras", "model.weights.h5", "unzipped"]
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded).__name__ == type(model).__name__ and isinstance(loaded, (kl.Model, kl.Sequential))
    clone = keras.models.clone_model(model)
    assert kind == "sequential" or isinstance(clone, kl.Model)  # Keras clones into its own Sequential
    clone.load_weights(tmp_path / "model.weights.h5")
    for ours, theirs in zip(clone.weights, model.weights):
        np.testing.assert_array_equal(ours, theirs)


def test_a_file_is_never_half_written(tmp_path, monkeypatch):
    x = keras.Input((3,))
    model = fitted(kl.Model(x, dense(x)))
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(keras.layers.Dense, "save_own_variables", fail)
    with pytest.raises(OSError, match="disk full"):
        model.save_weights(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_under_a_mirrored_strategy():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        x = keras.Input((3,))
        model = kl.Model(x, dense(x))
    assert fitted(model).distribute_strategy is strategy


def test_a_dataset_function_is_for_clusters():
    x = keras.Input((3,))
    model = fitted(kl.Model(x, dense(x)))
    with pytest.raises(ValueError, match="`x` may be a dataset function on several machines"):
        model.fit(lambda context: tf.data.Dataset.range(3), steps_per_epoch=2)


def test_a_last_batch_that_does_not_divide_counts_as_in_keras():
    """By replica: 5 examples on 3 replicas are means of 2, 2 and 1, each of which counts a third."""
    x, found = np.random.default_rng(0).random((11, 4), "float32"), []
    for cls in (keras.Model, kl.Model):
        with strategy_of(3).scope():
            inputs = keras.Input((4,))
            model = cls(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        losses = model.fit(x, x.sum(1), batch_size=6, shuffle=False, epochs=2, verbose=0).history["loss"]
        found.append([*losses, *model.get_weights()[0].ravel()])
    np.testing.assert_array_equal(*found)
    weights, bias = np.zeros((4, 1)), 0.0
    for batch in [range(6), range(6, 11)] * 2:
        parts = np.array_split(batch, 3)
        errors = [x[part] @ weights + bias - x[part].sum(1, keepdims=True) for part in parts]
        weights = weights - 0.1 * np.mean([2 * x[p].T @ e / len(p) for p, e in zip(parts, errors)], axis=0)
        bias -= 0.1 * np.mean([2 * e.mean() for e in errors])
    np.testing.assert_allclose(found[1][2:], weights.ravel(), rtol=1e-5)
