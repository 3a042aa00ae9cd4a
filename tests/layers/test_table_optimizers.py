"""Tables of a `DistributedEmbedding` with optimizers of their own, through Keras's `MultiOptimizer`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, TableConfig

pytestmark = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


def embedding(**options):
    sgd = kl.optimizers.SGD(0.05, momentum=0.9)
    tables = [
        TableConfig("a", 9, 3, "ones", optimizer=sgd),
        TableConfig("b", 7, 3, "ones"),
        TableConfig("c", 8, 3, "ones", optimizer=sgd),
        TableConfig("d", 6, 2, "ones", optimizer=sgd),
    ]
    return DistributedEmbedding([FeatureConfig(t.name, t) for t in tables], name="tables", **options)


def towers(layer):
    inputs = [keras.Input((2,), dtype="int32") for _ in range(4)]
    return keras.Model(
        inputs, keras.layers.Dense(1, "linear", True, "ones")(keras.layers.Concatenate()(layer(inputs)))
    )


def multi(layer):
    rest = kl.optimizers.LazyAdam(0.1)
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(rest, layer.table_optimizers()))


X = [np.array([[0, 1], [2, i]] * 4) for i in range(4)]
Y = np.arange(8.0)


def trained(devices=1, epochs=3, **options):
    with strategy_of(devices).scope():
        layer = embedding(**options)
        model = towers(layer)
        model.compile(multi(layer), "mse")
    model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model, layer


def tables(layer):
    return {name: rows.numpy() for name, rows in layer.get_embedding_tables().items()}


def test_tables_of_one_optimizer_are_stacked():
    layer = embedding()
    assert layer.fused_tables == {"tables/stack_3": ("a", "c"), "tables/b": ("b",), "tables/d": ("d",)}
    (pattern,) = layer.table_optimizers()  # one optimizer, of two stacks
    assert pattern.count("embeddings") == 2
    copy = DistributedEmbedding.from_config(layer.get_config())
    assert copy.fused_tables == layer.fused_tables
    assert len(copy.table_optimizers()) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_each_table_is_updated_by_its_own(devices):
    _, layer = trained(devices, placement="modulo" if devices > 1 else "auto")
    sizes = {"a": (9, 3), "b": (7, 3), "c": (8, 3), "d": (6, 2)}
    plain = [FeatureConfig(n, TableConfig(n, *size, "ones")) for n, size in sizes.items()]
    reference = DistributedEmbedding(plain, table_stacking=None, name="plain")
    model = towers(reference)
    momentum, rest = kl.optimizers.SGD(0.05, momentum=0.9), kl.optimizers.LazyAdam(0.1)
    own = {f"plain/{n}.embeddings" for n in "acd"}
    choose = keras.optimizers.MultiOptimizer(lambda v: momentum if v.path in own else rest)
    model.compile(choose, "mse")
    model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    want = tables(reference)
    for name, rows in tables(layer).items():
        assert not np.allclose(rows, 1)
        np.testing.assert_allclose(rows, want[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_saved_and_loaded_with_the_model(tmp_path):
    model, layer = trained()
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for m in (model, loaded):
        m.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    got = tables(loaded.get_layer("tables"))
    for name, rows in tables(layer).items():
        np.testing.assert_array_equal(rows, got[name], err_msg=name)


def test_a_model_compiled_without_them_is_refused():
    layer = embedding()
    model = towers(layer)
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    with pytest.raises(
        ValueError, match=r"layer.table_optimizers\(\)\)\). Received: lazy_adam.* for tables/stack_3"
    ):
        model.fit(X, Y, verbose=0)
    with tf.GradientTape() as tape:  # a loop of one's own
        total = tf.reduce_sum(layer([tf.constant(x) for x in X])[0])
    assert tape.gradient(total, layer.trainable_variables)[0] is not None
