"""Heads with a `vocabulary`: targets, answers and exclusions are ids, and rows begin again for other ids."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.layers import DynamicVocabulary

CAPACITY, DIM = 32, 4
DEVICES = pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.full)])
HEADS = {
    "full": kl.layers.FullSoftmax,
    "tied": kl.layers.FullSoftmax,
    "tree": kl.layers.HierarchicalSoftmax,
    "sampled": lambda rows, **options: kl.layers.SampledSoftmax(rows, 0, "in_batch", **options),
    "sparse": lambda rows, **options: kl.layers.SparseOutput(rows, fan_in=3, seed=5, **options),
}


def names_of(ids):
    return tf.strings.as_string(tf.convert_to_tensor(ids))


def model_of(kind, devices=1, mapped=True, strings=False, items=None, capacity=CAPACITY, **options):
    """Return a compiled model of items that are inputs and targets, and its vocabulary.

    Args:
        mapped: bool, whether the head has the vocabulary; else its targets are classes.
    """
    with strategy_of(devices).scope():
        keras.utils.set_random_seed(3)
        kept = {"keep_strings": 20} if strings else {}
        items = items or DynamicVocabulary(capacity, name="items", num_oov_indices=2, **kept)
        rows = items.vocabulary_size()
        history = keras.Input((2,), dtype="string" if strings else "int64", name="history")
        first = keras.initializers.RandomUniform(seed=4)
        table = kl.layers.ShardedEmbedding(
            rows, DIM, first, vocabulary=items, combiner="mean", placement="range", name="table"
        )
        options |= {"kernel": table} if kind == "tied" else {"kernel_initializer": first}
        options |= {"vocabulary": items} if mapped else {}
        if kind == "tree":
            options["tree"] = kl.trees.balanced(rows, arity=4)
        head = HEADS[kind](rows, name="head", **options)
        model = kl.Model(history, head(keras.layers.Dense(DIM)(table(history))))
        model.compile(kl.optimizers.Adagrad(0.1), loss=head.loss, metrics=[kl.metrics.TopKAccuracy(3)])
    return model, head, items


def visits(count=48, groups=4, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=(count, 1))
    ids = 10**12 + rng.integers(5, size=(count, 3)) * 100 + group
    return ids[:, :2], ids[:, 2]


def tables_of(head):
    """Return the tables of a head with a row for each class, and the rows of classes in them."""
    if isinstance(head, kl.layers.HierarchicalSoftmax):
        return [head.kernel_table, head.bias_table], head.tree.class_row
    return [table for table in (head.kernel, head.bias) if table is not None], np.arange(head.num_classes)


@pytest.mark.parametrize("kind", HEADS)
@DEVICES
def test_targets_that_are_ids_train_as_classes_do(kind, devices):
    x, y = visits()
    losses = []
    for mapped in (False, True):
        model, _, items = model_of(kind, devices, mapped)
        classes = items(tf.constant(np.c_[x, y]), training=True).numpy()[:, 2]
        targets = y if mapped else classes
        fit = model.fit(x, targets, batch_size=16, epochs=2, shuffle=False, verbose=0).history
        losses.append([fit["loss"], fit["top_3_accuracy"], model.evaluate(x, targets, verbose=0)])
    np.testing.assert_allclose(losses[0][0], losses[1][0], rtol=1e-6)
    np.testing.assert_allclose(losses[0][2][0], losses[1][2][0], rtol=1e-6)


def test_the_loss_is_that_of_the_classes_of_known_ids():
    model, head, items = model_of("full")
    x, y = visits()
    model.fit(x, y, batch_size=16, verbose=0)
    known = items.get_vocabulary()
    assert set(known.values()) == set(np.r_[x.ravel(), y].tolist())
    asked = np.where(np.arange(48) % 3 == 0, 5 * 10**12, y)  # a third of them is unknown
    loss, _ = model.evaluate(x, asked, batch_size=48, verbose=0)
    assert items.get_vocabulary() == known
    hidden = model.predict(x, verbose=0).astype(np.float64)
    logits = hidden @ head.kernel.numpy().T.astype(np.float64) + head.bias.numpy()
    row = {id: row for row, id in known.items()}
    ce = [np.log(np.exp(z).sum()) - z[row[id]] for z, id in zip(logits, asked.tolist()) if id in row]
    assert len(ce) == 32
    np.testing.assert_allclose(loss, np.mean(ce), rtol=1e-5)


@pytest.mark.parametrize("eager", [False, True])
def test_inputs_and_targets_are_counted_in_one_step(eager):
    model, _, items = model_of("full")
    model.compile(kl.optimizers.Adagrad(0.1), loss=model.loss, run_eagerly=eager)
    model.train_on_batch(np.array([[1, 2], [1, 3]]), np.array([1, 4]))
    scores, keys = items._state["scores"].numpy(), items.keys.numpy()
    assert items._state["clock"].numpy().tolist() == [1, 0]
    counts = {int(key): int(score) >> 32 for key, score in zip(keys, scores) if score}
    assert counts.keys() == {1, 2, 3, 4}
    assert counts[4] == 1


def test_a_full_vocabulary_takes_no_row_from_the_inputs_of_the_step():
    model, _, items = model_of("full", capacity=16)
    x = np.arange(16).reshape(8, 2)
    model.train_on_batch(x, np.arange(100, 108))  # all rows are those of the inputs: no target finds one
    assert sorted(items.get_vocabulary().values()) == list(range(16))
    model.train_on_batch(x[:2], np.array([200, 201]))
    assert {0, 1, 2, 3, 200, 201} < set(items.get_vocabulary().values())


@pytest.mark.parametrize("kind", HEADS)
@DEVICES
def test_rows_of_a_head_begin_again_for_other_ids(kind, devices):
    model, head, items = model_of(kind, devices)
    tables, row_of = tables_of(head)
    begin = [[array.numpy() for array in table.array.arrays()] for table in tables]
    x, y = visits()
    model.fit(x, y, batch_size=16, verbose=0)
    assert len(tables[0].array.arrays()) == 2  # the values, and an optimizer's slot
    classes = np.array(sorted(items.get_vocabulary()))
    trained = [[array.numpy() for array in table.array.arrays()] for table in tables]
    gone = items(tf.constant(y[:1])).numpy()
    items.remove(ids=y[:1])
    for table, before, after in zip(tables, begin, trained):
        for place, array in enumerate(table.array.arrays()):
            now, others = array.numpy(), row_of[np.setdiff1d(classes, gone)]
            np.testing.assert_array_equal(now[others], after[place][others])
            first = before[0] if place == 0 else np.full_like(after[place], 0.1)
            np.testing.assert_allclose(now[row_of[gone]], first[row_of[gone]], atol=1e-7)
            assert np.abs(now[row_of[gone]] - after[place][row_of[gone]]).max() > 0


def test_the_bias_of_a_tied_head_without_vocabulary_begins_again():
    model, head, items = model_of("tied", mapped=False)
    x, y = visits()
    classes = items(tf.constant(np.c_[x, y]), training=True).numpy()[:, 2]
    model.fit(x, classes, batch_size=16, verbose=0)
    assert (head.bias.numpy()[classes] != 0).all()
    items.remove(ids=y[:1])
    bias = head.bias.numpy()
    assert bias[classes[0]] == 0
    assert (bias[classes[classes != classes[0]]] != 0).all()


@pytest.mark.parametrize("kind", HEADS)
@DEVICES
def test_the_best_are_ids(kind, devices, tmp_path):
    model, head, items = model_of(kind, devices)
    x, y = visits()
    model.fit(x, y, batch_size=16, verbose=0)
    known = items.get_vocabulary()
    assert len(known) == 20
    best = head.predictor(model, k=len(known) + 2)
    found = best.predict(x[:4], verbose=0)
    assert found["ids"].dtype == np.int64
    for ids, scores in zip(found["ids"].tolist(), found["scores"]):
        assert sorted(ids[:-2]) == sorted(known.values()) and ids[-2:] == [-1, -1]
        assert np.isfinite(scores[:-2]).all() and np.isneginf(scores[-2:]).all()
        assert (np.diff(scores[:-2]) <= 0).all()
    kl.export_saved_model(best, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_array_equal(served.serve(tf.constant(x[:4]))["ids"], found["ids"])
    model.save(tmp_path / "model.keras")
    with strategy_of(devices).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("head").vocabulary is loaded.get_layer("table").vocabulary
    again = loaded.get_layer("head").predictor(loaded, k=len(known) + 2).predict(x[:4], verbose=0)
    np.testing.assert_array_equal(again["ids"], found["ids"])
    loaded.fit(x, y + 1, batch_size=16, verbose=0)
    assert set(y + 1) <= set(loaded.get_layer("head").vocabulary.get_vocabulary().values())


@pytest.mark.parametrize("kind", ["tree", "tied"])
def test_ids_are_excluded(kind):
    model, head, _ = model_of(kind)
    x, y = visits()
    model.fit(x, y, batch_size=16, verbose=0)
    plain = head.predictor(model, k=10).predict(x[:4], verbose=0)
    seen = keras.Input((None,), dtype="int64", name="seen")
    without = head.predictor(model, k=5, exclude=seen)
    left_out = np.c_[plain["ids"][:, [0, 2, 3]], [[-1]] * 4, [[7]] * 4]
    found = without.predict([x[:4], left_out], verbose=0)
    np.testing.assert_array_equal(found["ids"], plain["ids"][:, [1, 4, 5, 6, 7]])
    np.testing.assert_allclose(found["scores"], plain["scores"][:, [1, 4, 5, 6, 7]], rtol=1e-6)


def test_strings(tmp_path):
    model, head, items = model_of("tree", strings=True)
    x, y = map(names_of, visits())
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(16), verbose=0)
    known = set(items.get_vocabulary().values())
    assert known == {name.decode() for name in np.r_[x.numpy().ravel(), y.numpy()]}
    best = head.predictor(model, k=3)
    found = best.predict(x[:4], verbose=0)
    assert {name.decode() for name in found["ids"].ravel()} <= known
    kl.export_saved_model(best, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_array_equal(served.serve(x[:4])["ids"], found["ids"])
    metric = kl.metrics.TopKAccuracy(3)
    metric.update_state(y, best(x))
    np.testing.assert_allclose(metric.result(), model.evaluate(x, y, verbose=0)[1], rtol=1e-6)


def test_lists_of_ids():
    model, head, items = model_of("full")
    x, _ = visits(4)
    lists = [[5, 9], [9], [5], [7, 5]]
    dense = np.array([[*each, -1][:2] for each in lists])
    model.train_on_batch(x, dense)
    hidden, ragged = model(x), tf.ragged.constant(lists, dtype=tf.int64)
    sparse = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [2, 0], [3, 0], [3, 1]], [5, 9, 9, 5, 7, 5], [4, 2])
    classes = np.where(dense < 0, -1, items(tf.constant(dense)).numpy())
    log_p = np.asarray(tf.stack([head.log_prob(hidden, np.maximum(each, 0)) for each in classes.T], 1))
    expected = -np.mean([log_p[i, : len(each)].mean() for i, each in enumerate(lists)])
    for targets in (dense, ragged, sparse):
        np.testing.assert_allclose(head.loss(targets, hidden), expected, rtol=1e-5)
    weights = np.where(dense < 0, 0.0, 0.25).astype("float32")
    soft = head.loss(dense, hidden, sample_weight=weights)
    np.testing.assert_allclose(soft, -np.sum(log_p * weights) / 4, rtol=1e-5)
    ignoring = head.make_loss(ignore_class=9)(dense, hidden)
    np.testing.assert_allclose(ignoring, -np.mean([log_p[0, 0], log_p[2, 0], log_p[3].mean()]), rtol=1e-5)


@pytest.mark.parametrize("strings", [False, True])
def test_a_lookup_of_keras(strings, tmp_path):
    names = [f"item {i}" for i in range(20)] if strings else [100 * i + 7 for i in range(20)]
    lookup = (keras.layers.StringLookup if strings else keras.layers.IntegerLookup)(name="titles")
    lookup.adapt(tf.constant(names))
    x, y = np.eye(20, 6, dtype="float32"), tf.constant(names)
    inputs = keras.Input((6,))
    head = kl.layers.FullSoftmax(lookup.vocabulary_size(), vocabulary=lookup)
    model = kl.Model(inputs, head(keras.layers.Dense(4)(inputs)))
    model.compile(kl.optimizers.Adagrad(0.1), loss=head.loss, metrics=[kl.metrics.TopKAccuracy(20)])
    model.fit(x, y, verbose=0)
    unknown = tf.constant(["?"] * 20 if strings else [3] * 20)
    assert model.evaluate(x, y, verbose=0)[1] == 1.0
    assert model.evaluate(x, unknown, verbose=0) == [0.0, 0.0]
    plain = head.log_prob(model(x), lookup(y))
    np.testing.assert_allclose(model.evaluate(x, y, batch_size=20, verbose=0)[0], -np.mean(plain), rtol=1e-5)
    best = head.predictor(model, k=21)
    found = best.predict(x[:2], verbose=0)
    assert sorted(found["ids"][0, :20].tolist()) == sorted(n.encode() if strings else n for n in names)
    assert found["ids"][0, 20] in (b"", -1) and np.isneginf(found["scores"][0, 20])
    kl.export_saved_model(best, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_array_equal(served.serve(tf.constant(x[:2]))["ids"], found["ids"])
    best.save(tmp_path / "best.keras")
    loaded = keras.models.load_model(tmp_path / "best.keras")
    np.testing.assert_array_equal(loaded.predict(x[:2], verbose=0)["ids"], found["ids"])


def test_a_clone_shares_the_vocabulary_of_its_embedding():
    model, _, _ = model_of("tied")
    x, y = visits()
    model.fit(x, y, verbose=0)
    clone = keras.models.clone_model(model)
    assert clone.get_layer("head").vocabulary is clone.get_layer("table").vocabulary
    assert clone.get_layer("head").vocabulary is not model.get_layer("head").vocabulary
    clone.set_weights(model.get_weights())
    clone.compile(kl.optimizers.Adagrad(0.1), loss=clone.get_layer("head").loss)
    found, expected = (each.evaluate(x, y, verbose=0, return_dict=True)["loss"] for each in (clone, model))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("capacity", [64, 32])
def test_resize(capacity):
    model, head, items = model_of("full", capacity=48)
    x, y = visits()
    model.fit(x, y, batch_size=16, verbose=0)
    other = kl.resize(model, {"items": capacity})
    new, vocabulary = other.get_layer("head"), other.get_layer("head").vocabulary
    assert new.num_classes == capacity + 2 == vocabulary.vocabulary_size()
    row = {id: row for row, id in vocabulary.get_vocabulary().items()}
    assert row.keys() == set(items.get_vocabulary().values())
    for old, id in items.get_vocabulary().items():
        np.testing.assert_array_equal(new.kernel.numpy()[row[id]], head.kernel.numpy()[old])
        assert new.bias.numpy()[row[id]] == head.bias.numpy()[old]


def test_warm_start_by_ids():
    names = tf.constant([["b", "a"], ["c", "z"]]), tf.constant([["a", "c", "d"]])
    heads, rows = [], []
    for capacity, known in zip((16, 48), names):
        items = DynamicVocabulary(capacity, keep_strings=3)
        heads.append(kl.layers.FullSoftmax(items.vocabulary_size(), vocabulary=items, name="head"))
        heads[-1].build((None, DIM))
        items(known, training=True)
        heads[-1].bias.assign(np.arange(items.vocabulary_size()))
        rows.append({name: row for row, name in items.get_vocabulary().items()})
    source, target = heads
    before = target.kernel.numpy()[rows[1]["d"]]
    kl.warm_start(target, source)
    for name in ("a", "c"):
        there, here = rows[0][name], rows[1][name]
        np.testing.assert_array_equal(target.kernel.numpy()[here], source.kernel.numpy()[there])
        assert target.bias.numpy()[here] == there
    np.testing.assert_array_equal(target.kernel.numpy()[rows[1]["d"]], before)


def test_what_is_refused():
    items = DynamicVocabulary(16)
    with pytest.raises(ValueError, match="`num_classes` must be that of the vocabulary, 17"):
        kl.layers.FullSoftmax(16, vocabulary=items)
    with pytest.raises(ValueError, match="`vocabulary` of a head must be a DynamicVocabulary, or a"):
        kl.layers.FullSoftmax(16, vocabulary=keras.layers.Hashing(16))
    for name, make in {
        "counts": kl.layers.HierarchicalSoftmax,
        "class_weight": kl.layers.FullSoftmax,
        "label_weights": kl.layers.SparseOutput,
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` of a head must be None with a DynamicVocabulary"):
            make(17, vocabulary=items, **{name: np.ones(17)})
    with pytest.raises(TypeError, match=r"`Retrieval` has no argument of this name. Received: vocabulary"):
        kl.layers.Retrieval(17, vocabulary=items)
    table = kl.layers.ShardedEmbedding(17, 4, vocabulary=DynamicVocabulary(16))
    with pytest.raises(ValueError, match="must be that of the embedding whose rows it shares"):
        kl.layers.FullSoftmax(17, kernel=table, vocabulary=items)(tf.zeros([2, 4]))
    words = keras.layers.StringLookup(vocabulary=["a", "b"], invert=True)
    with pytest.raises(ValueError, match="`vocabulary` of a head must be a lookup from ids to integers"):
        kl.layers.FullSoftmax(3, vocabulary=words)
    words = keras.layers.StringLookup(vocabulary=["a", "b"])
    with pytest.raises(ValueError, match=r"`num_classes` must be that of the vocabulary, 3 .*not change"):
        head = kl.layers.FullSoftmax(4, vocabulary=words)
        head.loss(tf.constant(["a"]), head(tf.zeros([1, 4])))
    head = kl.layers.FullSoftmax(3, vocabulary=words)
    with pytest.raises(TypeError, match=r"must be strings, as its `vocabulary` .* takes them"):
        head.loss(tf.constant([1]), head(tf.zeros([1, 4])))
    with pytest.raises(ValueError, match="`ignore_class` must be None where targets are strings"):
        head.make_loss(ignore_class=1)(tf.constant(["a"]), head(tf.zeros([1, 4])))


def test_layers_behind_the_head_are_refused():
    items = DynamicVocabulary(16)
    head, inputs = kl.layers.FullSoftmax(17, vocabulary=items), keras.Input((3, 4))
    model = kl.Model(inputs, head(inputs)[:, -1])
    model.compile(kl.optimizers.Adagrad(0.1), loss=head.loss)
    with pytest.raises(ValueError, match="must go into the loss as the head returned it"):
        model.fit(np.zeros((2, 3, 4)), np.array([5, 6]), verbose=0)


def test_an_array_of_strings_is_refused():
    model, _, _ = model_of("full", strings=True)
    x, y = map(names_of, visits())
    for call in (model.fit, model.evaluate):
        with pytest.raises(
            ValueError, match=r"`y` must be a tensor where it has strings, such as tf.constant"
        ):
            call(x, y.numpy().astype(str), verbose=0)
