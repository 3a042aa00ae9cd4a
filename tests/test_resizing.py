"""`kl.resize`: tables with more and fewer rows, with what they had learned."""

import keras
import numpy as np
import pytest
from _tables import strategy_of
from _training import arrays_of, needs_multi_optimizer

import keras_largeout as kl
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, ShardedEmbedding, TableConfig

IDS = np.random.default_rng(0).integers(0, 20, (8, 4))
DATA = [IDS[:, :2], IDS[:, 2:] // 2], IDS.sum(1)


def model_of(optimizer=None, placement="auto", **options):
    keras.utils.set_random_seed(1)
    tables = (
        TableConfig("users", 20, 3, "uniform", optimizer=options.pop("own", None)),
        TableConfig("items", 10, 3, "uniform"),
    )
    inputs = [keras.Input((2,), dtype="int32"), keras.Input((2,), dtype="int32")]
    layer = DistributedEmbedding([FeatureConfig(t.name, t) for t in tables], **options)
    words = ShardedEmbedding(20, 2, combiner="sum", placement=placement, name="words")
    together = keras.layers.Concatenate()([*layer(inputs), words(inputs[0])])
    model = kl.Model(inputs, keras.layers.Dense(1)(together))
    model.compile(optimizer or kl.optimizers.LazyAdam(0.05), "mse")
    model.fit(*DATA, batch_size=4, epochs=2, verbose=0)
    return model


def layers_of(model):
    distributed = next(layer for layer in model.layers if isinstance(layer, DistributedEmbedding))
    return distributed, model.get_layer("words")


def rows_of(model):
    """By name: rows of tables and of their slots, of stacks table by table."""
    distributed, words = layers_of(model)
    found = {name.replace("embeddings", "words"): rows for name, rows in arrays_of(words.table).items()}
    for table in distributed.tables:
        for array in table.array.arrays():
            rows = array.numpy()
            kind = array.name.removeprefix(table.array.name)
            found |= {s.name + kind: rows[s.start : s.stop] for s in table.sections}
    return found


SIZES = {"users": 25, "items": 6, "words": 300}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("stacking", ["auto", None])
def test_rows_and_slots_are_kept(devices, stacking):
    with strategy_of(devices).scope():
        model = model_of(placement="permutation", table_stacking=stacking)
    before = rows_of(model)
    larger = kl.resize(model, SIZES)
    after = rows_of(larger)
    assert before.keys() == after.keys() and len(after) == 9  # of each table two slots
    for name, rows in after.items():
        kept = min(len(rows), len(before[name]))
        np.testing.assert_array_equal(rows[:kept], before[name][:kept], err_msg=name)
        new = rows[kept:]
        if name.endswith(("momentum", "velocity")):
            assert not new.any()
        else:
            assert np.abs(new).max(initial=0) <= 0.05  # "uniform"
            assert not len(new) or new.any(axis=1).all()
    for name, rows in rows_of(model).items():
        np.testing.assert_array_equal(rows, before[name])
    assert larger.optimizer.iterations.numpy() == model.optimizer.iterations.numpy() == 4
    assert larger.distribute_strategy is model.distribute_strategy


def test_training_goes_on_as_it_would_have():
    """Ids that both have learn the same; new ids learn too."""
    model = model_of()
    larger = kl.resize(model, {"users": 40, "words": 40})
    history = [
        m.fit(*DATA, batch_size=4, epochs=2, verbose=0, shuffle=False).history for m in (model, larger)
    ]
    np.testing.assert_allclose(history[0]["loss"], history[1]["loss"], rtol=1e-6)
    before = rows_of(larger)["words"][35].copy()
    more = [np.full((8, 2), 35), DATA[0][1]], DATA[1]
    with pytest.raises(Exception, match="35"):
        model.fit(more[0], more[1], verbose=0)
    larger.fit(*more, verbose=0)
    assert not np.allclose(rows_of(larger)["words"][35], before)


def test_a_file_and_optimizers_of_tables(tmp_path):
    model = model_of(own=kl.optimizers.Adagrad(0.1))
    model.save(tmp_path / "m.keras")
    stamp = (tmp_path / "m.keras").read_bytes()
    larger = kl.resize(tmp_path / "m.keras", {"users": 21})
    assert (tmp_path / "m.keras").read_bytes() == stamp
    before, after = rows_of(model), rows_of(larger)
    assert after["users"].shape == (21, 3)
    for name in ("users", "users_accumulator"):
        np.testing.assert_array_equal(after[name][:20], before[name])
    assert np.all(after["users_accumulator"][20] == np.float32(0.1))
    # The file of the larger model is one like any other.
    larger.save(tmp_path / "n.keras")
    copy = rows_of(keras.models.load_model(tmp_path / "n.keras"))
    for name, rows in after.items():
        np.testing.assert_array_equal(copy[name], rows)


@needs_multi_optimizer
def test_beside_optimizers_of_keras():
    own = {".*embeddings.*": kl.optimizers.LazyAdam()}
    choice = keras.optimizers.OptimizerMap(keras.optimizers.Adam(), own)
    model = model_of(keras.optimizers.MultiOptimizer(choice))
    larger = kl.resize(model, {"users": 21})
    assert rows_of(larger)["users_velocity"].shape == (21, 3)


def head_model(head):
    words = ShardedEmbedding(20, 4, name="words")
    if isinstance(head, str):
        head = kl.layers.FullSoftmax(20, kernel=words, name=head)
    model = kl.Sequential([keras.Input((3,), dtype="int32"), words, head])
    model.compile(kl.optimizers.LazyAdam(), head.loss)
    model.fit(IDS[:, :3], IDS[:, 1:], verbose=0)
    return model


@pytest.mark.parametrize("classes", [30, 12])
@pytest.mark.parametrize("named", [{"words"}, {"head"}, {"words", "head"}])
def test_a_head_with_the_rows_of_an_embedding(named, classes):
    model = head_model("head")
    other = kl.resize(model, dict.fromkeys(named, classes))
    kept = min(20, classes)
    for name in ("words", "head"):
        before, after = (m.get_layer(name) for m in (model, other))
        for old, new in zip(before.weights, after.weights):
            assert new.shape[0] == classes
            np.testing.assert_array_equal(np.asarray(new)[:kept], np.asarray(old)[:kept])
    ids = np.minimum(IDS, classes - 1)
    assert np.isfinite(other.fit(ids[:, :3], ids[:, 1:], verbose=0).history["loss"][0])
    with pytest.raises(ValueError, match=r"same number for \['head', 'words'\], which share their rows"):
        kl.resize(model, {"words": 5, "head": 6})


@pytest.mark.parametrize("own", [None, "adagrad"])
@pytest.mark.parametrize("classes", [30, 12])
@pytest.mark.parametrize("kind", ["FullSoftmax", "SampledSoftmax", "SparseOutput"])
def test_a_head_gets_more_classes_or_fewer(kind, classes, own):
    options = {"SampledSoftmax": {"num_sampled": 5}, "SparseOutput": {"fan_in": 2}}.get(kind, {})
    model = head_model(getattr(kl.layers, kind)(20, optimizer=own, name="head", **options))
    other = kl.resize(model, {"head": classes})
    old, new = model.get_layer("head"), other.get_layer("head")
    kept = min(20, classes)
    tables = [t for t in ("kernel", "bias", "connections") if hasattr(old, t)]
    for name in tables:
        before, after = (np.asarray(getattr(head, name)) for head in (old, new))
        assert len(after) == classes
        np.testing.assert_array_equal(after[:kept], before[:kept])
    if kind == "SparseOutput":
        connections = np.asarray(new.connections)
        assert connections.min() >= 0 and connections.max() < 4 and (np.diff(connections, axis=1) > 0).all()
    optimizers = [m.optimizer if own is None else m.get_layer("head").optimizer for m in (model, other)]
    slots = [[np.asarray(v) for v in o.variables if len(v.shape)] for o in optimizers]
    assert len(slots[0]) == len(slots[1]) > 0
    for before, after in zip(*slots):
        both = min(len(before), len(after))
        np.testing.assert_array_equal(after[:both], before[:both])
    ids = np.minimum(IDS, classes - 1)
    assert np.isfinite(other.fit(ids[:, :3], ids[:, 1:], verbose=0).history["loss"][0])


def test_a_head_with_a_number_for_each_class_is_refused():
    model = head_model(
        kl.layers.SampledSoftmax(20, num_sampled=5, distribution="counts", counts=np.ones(20), name="head")
    )
    with pytest.raises(ValueError, match="must not name 'head': it has `counts`"):
        kl.resize(model, {"head": 30})


def test_gradients_being_accumulated_are_kept_for_the_rows_that_stay():
    models = []
    for rows in (20, 30):
        model = keras.Sequential([keras.Input((2,), dtype="int32"), ShardedEmbedding(rows, 2, name="words")])
        model.compile(kl.optimizers.SGD(1.0, gradient_accumulation_steps=2), "mse")
        models.append(model)
    small, large = models
    small.get_layer("words").table.assign(large.get_layer("words").table.numpy()[:20])
    targets = np.ones((1, 2, 2))
    large.fit(np.array([[3, 25]]), targets, verbose=0)
    resized = kl.resize(large, {"words": 20})
    small.fit(np.array([[3, 3]]), targets, verbose=0)  # twice half the gradient of row 3
    before = small.get_layer("words").table.numpy()
    for model in (small, resized):
        model.fit(np.array([[4, 4]]), targets, verbose=0)
    after, found = (m.get_layer("words").table.numpy() for m in (small, resized))
    np.testing.assert_allclose(found[3] - before[3], (after[3] - before[3]) / 2, rtol=1e-5)
    np.testing.assert_allclose(found[4:], after[4:], rtol=1e-6)


def vocabulary_model(devices, evict):
    with strategy_of(devices).scope():
        ids = keras.Input((4,), dtype="int64")
        items = kl.layers.DynamicVocabulary(64, evict=evict, admit_after=2, mask_value=0, name="items")
        size = items.vocabulary_size()
        wide = ShardedEmbedding(
            size, 1, "uniform", combiner="sum", vocabulary=items, name="wide", placement="modulo"
        )
        deep = TableConfig("deep", size, 3, "uniform", vocabulary=items, placement="modulo")
        deep = DistributedEmbedding([FeatureConfig("deep", deep)], name="many")
        total = keras.layers.Concatenate()([wide(ids), *deep([ids])])
        model = kl.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(total))
        model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    return model


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("evict", ["lfu", "lru"])
@pytest.mark.parametrize("capacity", [1000, 30])
def test_a_vocabulary_of_another_capacity(capacity, evict, devices):
    model = vocabulary_model(devices, evict)
    rng = np.random.default_rng(0)
    for _ in range(6):
        model.fit(rng.zipf(1.2, (40, 4)) % 97 * 10**9, np.ones((40, 1)), batch_size=40, verbose=0)
    resized = kl.resize(model, {"items": capacity})

    def known(model):
        """What the model knows of each id: its score, rows and slots."""
        wide, many = model.get_layer("wide"), model.get_layer("many")
        scores = np.asarray(wide.vocabulary.weights[1])
        first = wide.vocabulary.first_row
        arrays = [a.numpy() for table in (wide.table, *many.tables) for a in table.array.arrays()]
        assert many.vocabularies == [wide.vocabulary] and len(arrays) == 6
        rows = wide.vocabulary.get_vocabulary()
        return {id: (scores[row - first], *(a[row] for a in arrays)) for row, id in rows.items()}, arrays

    (before, old), (after, new) = known(model), known(resized)
    vocabulary = resized.get_layer("wide").vocabulary
    assert vocabulary.capacity == {1000: 1008, 30: 32}[capacity]
    assert len(after) == len(before) if capacity > 64 else 25 < len(after) <= 32
    for id, state in after.items():
        for got, want in zip(state, before[id], strict=True):
            np.testing.assert_array_equal(got, want)
    if capacity < 64:  # ids of low scores went
        gone = [before[id][0] for id in before.keys() - after.keys()]
        assert np.mean(gone) < np.mean([state[0] for state in after.values()])
    free = sorted(set(range(2, vocabulary.vocabulary_size())) - vocabulary.get_vocabulary().keys())
    for index, (array, source) in enumerate(zip(new, old)):
        np.testing.assert_array_equal(array[:2], source[:2])  # of padding, and of unknown ids
        if index % 3:
            assert not array[free].any()  # moments
        else:
            assert np.abs(array[free]).max(initial=0) <= 0.05
    ids = np.array([list(after)[:4]])
    np.testing.assert_allclose(resized.predict(ids, verbose=0), model.predict(ids, verbose=0), rtol=1e-6)
    assert np.isfinite(resized.fit(ids, np.ones((1, 1)), verbose=0).history["loss"][0])


class Subclassed(keras.Model):
    def __init__(self, rows):
        super().__init__()
        self.words = ShardedEmbedding(rows, 2, combiner="sum")
        self.last = keras.layers.Dense(1)

    def call(self, ids):
        return self.last(self.words(ids))


@pytest.mark.parametrize("from_file", [False, True])
def test_a_subclassed_model_of_other_sizes_takes_what_another_has_learned(from_file, tmp_path):
    models = [Subclassed(rows) for rows in (20, 30)]
    for model in models:
        model.compile(kl.optimizers.LazyAdam(0.1), "mse")
        model(IDS)
        model.optimizer.build(model.trainable_variables)
    old, new = models
    old.fit(IDS, IDS.sum(1), verbose=0)
    with pytest.raises(ValueError, match="with the new sizes, and give it as `into`"):
        kl.resize(old, {"words": 30})
    with pytest.raises(ValueError, match="One of `rows` and `into` must be given"):
        kl.resize(old)
    path = tmp_path / "w.weights.h5"
    old.save_weights(path)
    assert kl.resize(path if from_file else old, into=new) is new
    np.testing.assert_array_equal(new.predict(IDS, verbose=0), old.predict(IDS, verbose=0))
    for model in models:
        model.fit(IDS, IDS.sum(1), shuffle=False, verbose=0)
    np.testing.assert_allclose(new.predict(IDS, verbose=0), old.predict(IDS, verbose=0), rtol=1e-5)


def test_what_is_refused():
    model = model_of()
    with pytest.raises(
        ValueError, match=r"which are \['items', 'users', 'words'\]\. .* Received: \['word'\]"
    ):
        kl.resize(model, {"word": 3})
    with pytest.raises(ValueError, match=r"`rows\['users'\]` must be"):
        kl.resize(model, {"users": 0})
    model.compile("adam", "mse")
    model.fit(*DATA, verbose=0)
    with pytest.raises(ValueError, match="that trains 'users' must be one of k"):
        kl.resize(model, {"users": 30})
    ids = kl.layers.DynamicVocabulary(16, name="ids")
    words = ShardedEmbedding(ids.vocabulary_size(), 2, vocabulary=ids, name="words")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), words])
    with pytest.raises(
        ValueError,
        match=r"must not name 'words': it has a row for each id of a vocabulary. Name that, 'ids'",
    ):
        kl.resize(model, {"words": 30})
    # Elsewhere a file with other rows stays an error.
    other = ShardedEmbedding(21, 2, name="other")
    other.build()
    with pytest.raises(ValueError, match="does not fit"):
        store = {}
        other.save_own_variables(store)
        words = ShardedEmbedding(20, 2)
        words.build()
        words.load_own_variables(store)


@pytest.mark.parametrize("items", [30, 12])
def test_the_items_of_a_retrieval(items):
    """The index, the streamed frequencies and the remembered items stay; new items are not in the index."""
    user, item = (keras.Input((), dtype="int32", name=name) for name in ("user", "item"))
    tower = kl.Model(item, ShardedEmbedding(20, 3, name="items")(item))
    head = kl.layers.Retrieval(20, counts="streaming", cache=4, name="retrieval")
    model = kl.Model([user, item], head(ShardedEmbedding(9, 3)(user), tower(item)))
    model.compile(kl.optimizers.LazyAdam(0.05), loss=head.loss)
    users, taken = IDS[:, 0] % 9, np.array([3, 19, 4, 3, 7, 19, 0, 15])
    model.fit([users, taken], taken, batch_size=4, verbose=0, shuffle=False)
    head.index(tower)
    queries = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    scores = head.log_probs(queries).numpy()

    other = kl.resize(model, {"items": items, "retrieval": items})
    found, kept = other.get_layer("retrieval"), min(items, 20)
    assert found.num_items == items and found.log_probs(queries).shape == (5, items)
    best = found.top_k(queries, items)[1].numpy()
    assert (best[:, :kept] >= 0).all() and (best[:, kept:] == -1).all()
    logits = found.log_probs(queries).numpy()[:, :kept]
    np.testing.assert_allclose(np.diff(logits), np.diff(scores[:, :kept]), rtol=1e-4, atol=1e-5)
    before = weights_of(head)
    for name, values in weights_of(found).items():
        old = before[name]
        if name == "memory_ids":
            old = np.where(old < items, old, -1)
        elif name in ("last_seen", "intervals"):
            assert not values[kept:].any()
            values, old = values[:kept], old[:kept]
        np.testing.assert_array_equal(values, old, err_msg=name)
    taken = np.minimum(taken + 15, items - 1)  # new ones, too
    assert np.isfinite(other.fit([users, taken], taken, batch_size=4, verbose=0).history["loss"]).all()


def weights_of(head):
    return {name: keras.ops.convert_to_numpy(x) for name, x in head._batch_softmax.state().items()}


def test_counts_of_a_retrieval_are_of_its_items():
    user, item = (keras.Input((3,), name=name) for name in ("user", "item"))
    head = kl.layers.Retrieval(counts=np.arange(1, 9), name="retrieval")
    with pytest.raises(ValueError, match="`rows` must not name 'retrieval': it has `counts`"):
        kl.resize(kl.Model([user, item], head(user, item)), {"retrieval": 9})
