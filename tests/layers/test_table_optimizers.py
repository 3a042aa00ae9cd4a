"""Tables of a `DistributedEmbedding`, and a `ShardedEmbedding`, with optimizers of their own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import needs_multi_optimizer

import keras_largeout as kl
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, TableConfig


def embedding(**options):
    sgd = keras.optimizers.SGD(0.05, momentum=0.9)
    tables = [
        TableConfig("a", 9, 3, "ones", optimizer=sgd),
        TableConfig("b", 7, 3, "ones"),
        TableConfig("c", 8, 3, "ones", optimizer=sgd),
        TableConfig("d", 6, 2, "ones", optimizer=sgd),
        TableConfig("e", 6, 2, "ones", optimizer="adagrad"),
    ]
    return DistributedEmbedding([FeatureConfig(t.name, t) for t in tables], name="tables", **options)


def towers(layer):
    inputs = [keras.Input((2,), dtype="int32") for _ in range(5)]
    return keras.Model(
        inputs, keras.layers.Dense(1, "linear", True, "ones")(keras.layers.Concatenate()(layer(inputs)))
    )


# By devices: what trains the other table. On several Keras's own optimizers can't.
REST = {1: lambda: keras.optimizers.Adam(0.1), 2: lambda: kl.optimizers.LazyAdam(0.1)}
X = [np.array([[0, 1], [2, i]] * 4) for i in range(5)]
Y = np.arange(8.0)


def trained(devices=1, epochs=3, **options):
    with strategy_of(devices).scope():
        layer = embedding(**options)
        model = towers(layer)
        model.compile(REST[devices](), "mse")
    model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model, layer


def tables(layer):
    return {name: rows.numpy() for name, rows in layer.get_embedding_tables().items()}


def test_tables_of_one_optimizer_are_stacked():
    layer = embedding()
    stacks = {"stack_3": ("a", "c"), "b": ("b",), "d": ("d",), "e": ("e",)}
    assert layer.fused_tables == {f"tables/{name}": tables for name, tables in stacks.items()}
    own = layer.table_optimizers()
    assert set(own) == {"a", "c", "d", "e"}
    assert own["a"] is own["c"] is own["d"]  # one optimizer, of two stacks
    assert type(own["a"]) is kl.optimizers.SGD
    assert own["a"].momentum == 0.9
    assert type(own["e"]) is kl.optimizers.Adagrad
    copy = DistributedEmbedding.from_config(layer.get_config())
    assert copy.fused_tables == layer.fused_tables
    assert len(copy.optimizers) == 2


@pytest.mark.full
@needs_multi_optimizer
@pytest.mark.parametrize("devices", [1, 2])
def test_each_table_is_updated_by_its_own(devices):
    """Beside an optimizer of Keras's, and as the same optimizers would do it for a whole model."""
    _, layer = trained(devices, placement="modulo" if devices > 1 else "auto")
    sizes = {"a": (9, 3), "b": (7, 3), "c": (8, 3), "d": (6, 2), "e": (6, 2)}
    plain = [FeatureConfig(n, TableConfig(n, *size, "ones")) for n, size in sizes.items()]
    reference = DistributedEmbedding(plain, table_stacking=None, name="plain")
    model = towers(reference)
    momentum, adagrad = kl.optimizers.SGD(0.05, momentum=0.9), kl.optimizers.Adagrad()
    own = {f"plain/{n}.embeddings": momentum for n in "acd"} | {"plain/e.embeddings": adagrad}
    rest = REST[devices]()
    model.compile(keras.optimizers.MultiOptimizer(lambda v: own.get(v.path, rest)), "mse")
    model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    want = tables(reference)
    for name, rows in tables(layer).items():
        assert not np.allclose(rows, 1)
        np.testing.assert_allclose(rows, want[name], rtol=2e-5, atol=2e-6, err_msg=name)
    assert [o.iterations.numpy() for o in layer.optimizers] == [3, 3]


@pytest.mark.full
@pytest.mark.parametrize("stacking", ["auto", None])
def test_saved_and_loaded_with_the_model(stacking, tmp_path):
    model, layer = trained()
    model.save(tmp_path / "m.keras")
    if stacking == "auto":
        loaded = keras.models.load_model(tmp_path / "m.keras")
    else:  # the same file, tables that are placed otherwise
        other = embedding(table_stacking=stacking)
        loaded = towers(other)
        loaded.compile(REST[1](), "mse")
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(tmp_path / "m.keras")
    for m in (model, loaded):
        m.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    got = tables(loaded.get_layer("tables"))
    for name, rows in tables(layer).items():
        np.testing.assert_array_equal(rows, got[name], err_msg=name)


def test_a_loop_of_ones_own_takes_the_step():
    layer = embedding()
    ids = [tf.constant(x) for x in X]
    with tf.GradientTape() as tape:
        total = tf.add_n([tf.reduce_sum(rows) for rows in layer(ids)])
    before = tables(layer)
    (of_b, *_) = tape.gradient(total, layer.trainable_variables)
    assert isinstance(of_b, tf.IndexedSlices)
    after = tables(layer)
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert changed == {"a", "c", "d", "e"}


def test_a_regularizer_of_a_table_acts_through_its_own_optimizer():
    """0.1 * sum(row^2) of one row of ones, by SGD of rate 1: the row loses 0.2 of itself."""
    table = TableConfig("t", 4, 2, "ones", regularizer=keras.regularizers.L2(0.1), optimizer="sgd")
    layer = DistributedEmbedding(FeatureConfig("t", table))
    single = kl.layers.ShardedEmbedding(
        4, 2, "ones", embeddings_regularizer=keras.regularizers.L2(0.1), optimizer=keras.optimizers.SGD(1.0)
    )
    layer.build()
    layer.table_optimizers()["t"].learning_rate = 1.0
    for large in (layer, single):
        with tf.GradientTape() as tape:
            large(tf.constant([[2], [2]]))
            loss = tf.add_n(large.losses)
        tape.gradient(loss, large.trainable_variables)
    for rows in (layer.get_embedding_tables()["t"].numpy(), single.table.numpy()):
        np.testing.assert_allclose(rows, [[1, 1], [1, 1], [0.8, 0.8], [1, 1]], rtol=1e-6)


@pytest.mark.full
def test_clipping_and_accumulation_of_an_own_optimizer():
    """What an optimizer of this package does with rows it does in a backward pass too."""

    def trained_rows(optimizer, own):
        keras.utils.set_random_seed(2)
        words = kl.layers.ShardedEmbedding(30, 4, combiner="mean", optimizer=optimizer() if own else None)
        model = keras.Sequential([words, keras.layers.Dense(1)])
        model.compile(optimizer(), "mse")
        ids = np.random.default_rng(0).integers(0, 30, (24, 3))
        model.fit(ids, ids.sum(axis=1), batch_size=6, shuffle=False, verbose=0)
        return words.table.numpy()

    for options in ({"clipnorm": 0.5}, {"clipvalue": 0.01}, {"gradient_accumulation_steps": 2}):

        def adagrad(options=options):
            return kl.optimizers.Adagrad(0.1, **options)

        np.testing.assert_allclose(
            trained_rows(adagrad, True), trained_rows(adagrad, False), rtol=1e-5, atol=1e-6, err_msg=options
        )


def test_a_layer_that_is_called_twice_in_a_step_takes_two():
    words = kl.layers.ShardedEmbedding(5, 2, "zeros", optimizer=keras.optimizers.SGD(1.0))
    a, b = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    model = keras.Model([a, b], keras.ops.sum(words(a) + words(b), axis=-1))
    model.compile("adam", lambda y_true, y_pred: keras.ops.sum(y_pred))
    model.train_on_batch([np.array([1, 2]), np.array([2, 3])], np.zeros(2))
    np.testing.assert_allclose(words.table.numpy()[:, 0], [0, -1, -2, -1, 0])
    assert words.optimizer.iterations.numpy() == 2


def test_what_is_refused():
    with pytest.raises(ValueError, match="`optimizer` of table 'a' must be one of keras_largeout"):
        TableConfig("a", 9, 3, optimizer="rmsprop")
    config = FeatureConfig("a", TableConfig("a", 9, 3, optimizer="adam"))
    with pytest.raises(ValueError, match="`optimizer` must be None under mixed_float16"):
        DistributedEmbedding(config, dtype="mixed_float16")
    with pytest.raises(ValueError, match="`optimizer` must be None under mixed_float16"):
        kl.layers.ShardedEmbedding(9, 3, optimizer="adam", dtype="mixed_float16")
    with pytest.raises(ValueError, match="`loss_scale_factor` of `optimizer` must be None"):
        kl.layers.ShardedEmbedding(9, 3, optimizer=kl.optimizers.SGD(loss_scale_factor=8.0))
    words = kl.layers.ShardedEmbedding(9, 3, optimizer="adam")
    head = kl.layers.FullSoftmax(9, kernel=words)
    with pytest.raises(ValueError, match="`kernel` of a head must be an embedding that the model's"):
        head.build((None, 3))
    layer = DistributedEmbedding(config)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, loss_scale_factor=8.0), "mse")
    with pytest.raises(ValueError, match="must not scale the loss where a layer"):
        model.fit(np.zeros((2, 1), "int32"), np.zeros(2), verbose=0)


def _with_a_frozen_table(trainable):
    tables = [
        kl.layers.TableConfig("fixed", 10, 4, optimizer="adagrad", trainable=trainable),
        kl.layers.TableConfig("own", 10, 4, optimizer="adagrad"),
        kl.layers.TableConfig("kept", 10, 4, trainable=trainable),
        kl.layers.TableConfig("shared", 10, 4),
    ]
    ids = keras.Input((3,), dtype="int32")
    layer = kl.layers.DistributedEmbedding([kl.layers.FeatureConfig(t.name, t) for t in tables], name="e")
    model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.concatenate(layer([ids] * 4))))
    model.compile(kl.optimizers.SGD(0.1), "mse")
    return model, layer


def test_a_table_that_nothing_trains(tmp_path):
    model, layer = _with_a_frozen_table(trainable=False)
    before = {name: rows.numpy() for name, rows in layer.get_embedding_tables().items()}
    data = np.arange(30).reshape(10, 3) % 10, np.ones((10, 1), "float32")
    model.fit(*data, verbose=0)
    same = {n: np.array_equal(rows, before[n]) for n, rows in layer.get_embedding_tables().items()}
    assert same == {"fixed": True, "own": False, "kept": True, "shared": False}
    assert set(layer.table_optimizers()) == {"own"}
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert [f.table.trainable for f in loaded.get_layer("e").feature_configs] == [False, True, False, True]
    # The same weights train on where the tables are trained.
    other, trained = _with_a_frozen_table(trainable=True)
    other.load_weights(tmp_path / "m.keras", skip_mismatch=True)
    np.testing.assert_array_equal(trained.get_embedding_tables()["kept"].numpy(), before["kept"])
    other.fit(*data, verbose=0)
    assert not np.array_equal(trained.get_embedding_tables()["fixed"].numpy(), before["fixed"])
