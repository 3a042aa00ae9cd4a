"""What other tools do with the state of layers: checkpoints, state trees, weights, assignments."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.tables import row_range

ROWS, DIM = 30, 4
IDS = np.random.default_rng(0).integers(0, ROWS, (24, 3))
TARGETS = np.random.default_rng(1).random((24, 1)).astype("float32")


# With a device beside the host: on one CPU there is nothing to cache.
CACHED = {"storage": "host", "cache_rows": 8}


def model_of(layer, optimizer=None, cls=keras.Model):
    ids = keras.Input((3,), dtype="int64")
    model = cls(ids, keras.layers.Dense(1, name="out")(keras.layers.Flatten()(layer(ids))))
    model.compile(kl.optimizers.LazyAdam(0.05, name="adam") if optimizer is None else optimizer, "mse")
    return model


def embedding(**kwargs):
    return kl.layers.ShardedEmbedding(ROWS, DIM, name="rows", **kwargs)


def fit(model, epochs=2):
    return model.fit(IDS, TARGETS, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def trained(**kwargs):
    model = model_of(embedding(**kwargs))
    fit(model)
    return model


# tf.train.Checkpoint


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.rows, self.flat, self.out = embedding(), keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids):
        return self.out(self.flat(self.rows(ids)))


@pytest.mark.parametrize("how", ["call", "fit"])
def test_a_checkpoint_is_restored_before_the_layer_is_built(how, tmp_path):
    """`fit` builds the model symbolically: its variables come later."""
    source = Subclassed()
    source(IDS)
    path = tf.train.Checkpoint(model=source).save(str(tmp_path / "c"))
    model = Subclassed()
    model.compile(kl.optimizers.SGD(0.0), "mse")
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    model(IDS) if how == "call" else model.fit(IDS, TARGETS, verbose=0)
    np.testing.assert_array_equal(model.rows.table.numpy(), source.rows.table.numpy())


def test_a_checkpoint_has_rows_in_their_order_whatever_devices_have_them(tmp_path):
    one = trained()
    with strategy_of(2).scope():
        two = model_of(embedding(placement="permutation"))
        two.optimizer.build(two.trainable_variables)
    for source, target in ((one, two), (two, one)):
        path = tf.train.Checkpoint(model=source).save(str(tmp_path / "c"))
        for layer in target.layers:
            layer.set_weights([np.zeros_like(w) for w in layer.get_weights()])
        tf.train.Checkpoint(model=target).restore(path).assert_existing_objects_matched()
        for model in (source, target):
            np.testing.assert_array_equal(
                model.get_layer("rows").table.numpy(), source.get_layer("rows").table.numpy()
            )
        slots = [list(model.optimizer._row_slots.slots.values()) for model in (source, target)]
        assert len(slots[0]) == 2
        for left, right in zip(*slots):
            assert np.abs(left.numpy()).max() > 0
            np.testing.assert_array_equal(left.numpy(), right.numpy())


def test_a_checkpoint_of_other_rows_is_refused(tmp_path):
    path = tf.train.Checkpoint(rows=embedding_of(ROWS)).save(str(tmp_path / "c"))
    larger = embedding_of(ROWS + 1)
    before = larger.table.numpy()
    with pytest.raises(ValueError, match=r"expected shape \(31, 4\). Received: shape \(30, 4\)"):
        tf.train.Checkpoint(rows=larger).restore(path)
    np.testing.assert_array_equal(larger.table.numpy(), before)


def embedding_of(rows):
    layer = kl.layers.ShardedEmbedding(rows, DIM)
    layer.build()
    return layer


def test_a_checkpoint_keeps_what_layers_have_in_lists(tmp_path):
    """The optimizers and the vocabularies of a `DistributedEmbedding`, a bias, the wiring of a head."""

    def layers():
        items = kl.layers.DynamicVocabulary(16)
        rows = items.vocabulary_size()
        table = kl.layers.TableConfig("t", rows, DIM, vocabulary=items, optimizer="adagrad")
        return [
            kl.layers.DistributedEmbedding({"a": kl.layers.FeatureConfig("a", table)}),
            kl.layers.SparseDense(DIM, input_dim=ROWS),
            kl.layers.SparseOutput(ROWS, fan_in=2),
            kl.layers.HierarchicalSoftmax(ROWS, counts=np.arange(ROWS, 0, -1), bias_initializer="ones"),
        ]

    def state(layers):
        found = []
        for layer in layers:
            store = {}
            layer.save_own_variables(store)
            own = getattr(layer, "optimizers", []) + getattr(layer, "vocabularies", [])
            for other in own:
                other.save_own_variables(store)
            store.pop("digests")
            found += [np.asarray(store[key]) for key in sorted(store)]
        return found

    def called(layers):
        with tf.GradientTape() as tape:
            rows = layers[0]({"a": tf.constant([[7, 8, 9]])}, training=True)["a"]
        tape.gradient(rows, layers[0].trainable_variables)  # its own step
        layers[1](tf.constant([[1, 2]]))
        for head in layers[2:]:
            head(tf.ones((2, DIM)))
        return layers

    source, target = called(layers()), called(layers())
    target[0]({"a": tf.constant([[10, 11]])}, training=True)
    path = tf.train.Checkpoint(**{str(i): layer for i, layer in enumerate(source)}).save(str(tmp_path / "c"))
    tf.train.Checkpoint(**{str(i): layer for i, layer in enumerate(target)}).restore(
        path
    ).assert_existing_objects_matched()
    want, got = state(source), state(target)
    assert len(want) == len(got) > 12
    for left, right in zip(want, got):
        np.testing.assert_array_equal(left, right)


def test_a_saved_model_has_the_tables(tmp_path):
    model = trained()
    with pytest.warns(UserWarning, match=r"`keras_largeout\.export_saved_model"):
        tf.saved_model.save(model, str(tmp_path))
    (outputs,) = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](tf.constant(IDS)).values()
    np.testing.assert_allclose(outputs, model.predict(IDS, verbose=0), rtol=1e-6)


def test_a_table_in_files_is_not_put_into_a_checkpoint(tmp_path):
    model = trained(storage=f"file:{tmp_path}/rows")
    with pytest.raises(ValueError, match=r"`model\.save`"):
        tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    with pytest.raises(ValueError, match="restore_best_weights=False"):
        model.fit(IDS, TARGETS, verbose=0, callbacks=[stop])


# State trees and weights


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_tree_has_the_slots_of_tables(wrapped):
    def make():
        inner = kl.optimizers.LazyAdam(0.05, name="adam")
        wrapper = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, name="scale")
        model = model_of(embedding(), wrapper if wrapped else inner)
        fit(model)
        return model

    source, target = make(), make()
    fit(source)
    target.set_state_tree(source.get_state_tree(value_format="numpy_array"))
    assert fit(target) == fit(source)


def test_a_state_tree_has_the_optimizers_of_layers_and_no_empty_array():
    """An optimizer of the model that has not made a step names its slots as one that has."""

    def make():
        tables = [
            kl.layers.TableConfig(f"t{i}", ROWS, DIM, optimizer=kl.optimizers.Adagrad(0.1 * i))
            for i in (1, 2)
        ]
        features = [kl.layers.FeatureConfig(table.name, table) for table in tables]
        items = kl.layers.DynamicVocabulary(64, name="items")
        ids = keras.Input((3,), dtype="int64")
        rows = kl.layers.ShardedEmbedding(items.vocabulary_size(), DIM, vocabulary=items, name="rows")(ids)
        many = kl.layers.DistributedEmbedding(features, name="many")([ids, ids])
        x = keras.layers.Concatenate()([keras.layers.Flatten()(rows), *many])
        head = kl.layers.HierarchicalSoftmax(9, optimizer=kl.optimizers.LazyAdam(0.1), name="head")
        model = kl.Model(ids, head(x))
        model.compile(kl.optimizers.LazyAdam(0.1, name="adam"), head.loss)
        return model

    classes = IDS[:, 0] % 9
    source, target = make(), make()
    source.fit(IDS, classes, verbose=0)
    tree = source.get_state_tree(value_format="numpy_array")
    assert all(array.size for array in keras.tree.flatten(tree))
    assert [len(tree["optimizer_variables"][layer]) for layer in ("many", "head")] == [6, 6]
    target.optimizer.build(target.trainable_variables)
    target.set_state_tree(tree)
    again = target.get_state_tree(value_format="numpy_array")
    keras.tree.map_structure(np.testing.assert_array_equal, again, tree)
    losses = [model.fit(IDS, classes, verbose=0, epochs=2).history["loss"] for model in (source, target)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_slots_of_tables_are_saved_once():
    model = trained()
    assert sum("embeddings" in variable.path for variable in model.optimizer.variables) == 2
    store = {}
    model.optimizer.save_own_variables(store)
    assert sum(np.shape(array) == (ROWS, DIM) for array in store.values()) == 2


@pytest.mark.parametrize("cls", [keras.Model, kl.Model])
def test_weights_go_between_layers_with_and_without_an_optimizer(cls):
    rows = np.random.default_rng(2).random((ROWS, DIM)).astype("float32")
    theirs = keras.layers.Embedding(ROWS, DIM)
    theirs.build()
    layers = theirs, embedding(), embedding(optimizer="adagrad")
    for layer in layers[1:]:
        model_of(layer, cls=cls)
    for source in layers:
        source.set_weights([rows])
        for target in layers:
            target.set_weights(source.get_weights())
            (found,) = target.get_weights()
            np.testing.assert_array_equal(found, rows)
        rows = rows + 1
    if cls is kl.Model:
        own, without = model_of(embedding(optimizer="adagrad"), cls=cls), model_of(embedding(), cls=cls)
        without.set_weights(own.get_weights())
        own.set_weights(without.get_weights())
    with pytest.raises(ValueError, match=r"the shape \(30, 4\) at index 0. Received: shape \(29, 4\)"):
        layers[1].set_weights([rows[1:]])


def test_a_vocabulary_is_a_part_of_the_weights():
    items = kl.layers.DynamicVocabulary(16, evict="lru")
    model = model_of(kl.layers.ShardedEmbedding(items.vocabulary_size(), DIM, vocabulary=items))
    fit(model)
    best, want, known = model.get_weights(), model.predict(IDS, verbose=0), items.get_vocabulary()
    model.fit(IDS + 1000, TARGETS, verbose=0)  # these ids take the rows
    assert items.get_vocabulary() != known
    model.set_weights(best)
    assert items.get_vocabulary() == known
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), want)


@pytest.mark.parametrize("layer_of_model", [False, True])
def test_a_shared_vocabulary_is_one_in_a_loaded_model(layer_of_model, tmp_path):
    items = kl.layers.DynamicVocabulary(16)
    ids = keras.Input((3,), dtype="int64")
    wide, deep = (
        kl.layers.ShardedEmbedding(items.vocabulary_size(), dim, vocabulary=items, name=f"dim_{dim}")
        for dim in (1, 4)
    )
    outputs = [wide(ids), deep(ids)] + ([items(ids)] if layer_of_model else [])
    model = keras.Model(ids, outputs)
    model(IDS, training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("dim_1").vocabulary is loaded.get_layer("dim_4").vocabulary
    for got, want in zip(loaded(IDS), model(IDS)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("several", [False, True])
def test_an_outermost_layer_hands_training_to_its_vocabulary(several):
    items = kl.layers.DynamicVocabulary(16)
    layer = kl.layers.ShardedEmbedding(items.vocabulary_size(), DIM, vocabulary=items)
    ids = tf.constant([[7, 8, 9]])
    if several:
        table = kl.layers.TableConfig("t", items.vocabulary_size(), DIM, vocabulary=items)
        features = {name: kl.layers.FeatureConfig(name, table) for name in "ab"}
        layer, ids = kl.layers.DistributedEmbedding(features), {"a": ids, "b": ids + 1}
    layer(ids)
    assert not items.get_vocabulary()
    layer(ids, training=True)
    assert set(items.get_vocabulary().values()) == ({7, 8, 9, 10} if several else {7, 8, 9})


# Assignments


@pytest.mark.parametrize("where", [{}, {"storage": "host"}, CACHED])
def test_a_table_is_assigned_in_each_call_of_a_function(where):
    with strategy_of(1, beside_host=True).scope():
        layer = embedding(**where)
        layer.build()
    shard = layer.table.shards[0]
    before = layer.table.numpy()

    @tf.function
    def add(value):
        shard.assign(shard.array.parts[0].gather(tf.range(ROWS, dtype=tf.int64)) + value)

    for _ in range(3):
        add(2.0)
    np.testing.assert_allclose(layer.table.numpy(), before + 6, rtol=1e-6)


def test_a_target_network_and_a_constraint_follow_as_those_of_keras():
    found = []
    for layer in (keras.layers.Embedding, kl.layers.ShardedEmbedding):
        keras.utils.set_random_seed(0)
        bound = keras.constraints.MaxNorm(0.1, axis=1)
        online, target = layer(ROWS, DIM, "ones", embeddings_constraint=bound), layer(ROWS, DIM, "zeros")
        target.build()
        model = model_of(online, keras.optimizers.SGD(0.1))

        @tf.function
        def follow(target=target, online=online):
            target.embeddings.assign(0.5 * target.embeddings + 0.5 * online.embeddings)
            target.embeddings.assign_add(tf.ones((ROWS, DIM)))

        for _ in range(2):
            fit(model, 1)
            follow()
        found.append((online.get_weights()[0], target.get_weights()[0]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


@pytest.mark.parametrize("where", ["file", "cache"])
@pytest.mark.parametrize("cls", [keras.Model, kl.Model])
def test_an_optimizer_of_keras_is_refused_where_rows_are_not_all_of_a_variable(where, cls, tmp_path):
    storage = {"storage": f"file:{tmp_path}"} if where == "file" else CACHED
    with strategy_of(1, beside_host=where == "cache").scope(), pytest.raises(ValueError, match="LazyAdam"):
        fit(model_of(embedding(**storage), keras.optimizers.Adam(), cls))


def test_a_table_is_an_array(monkeypatch):
    head = kl.layers.SparseOutput(ROWS, fan_in=2)
    head(tf.ones((2, DIM)))
    for table in (head.kernel, head.bias, head.connections):
        np.testing.assert_array_equal(np.asarray(table), table.numpy())
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(table), table.numpy())
    assert np.asarray(head.kernel, "float64").dtype == np.float64
    monkeypatch.setattr(row_range, "LARGE_BYTES", 10)
    with pytest.warns(UserWarning, match="reads some of them"):
        np.asarray(head.kernel)
