"""The ids behind rows of a `DynamicVocabulary`, and ids that are removed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.layers import DynamicVocabulary

CAPACITY = 32


def catalogue(devices=1, **options):
    """Return a model whose items are inputs and classes, its predictor with ids, and the vocabulary."""
    with strategy_of(devices).scope():
        items = DynamicVocabulary(CAPACITY, name="items", **options)
        rows = items.vocabulary_size()
        history = keras.Input((2,), dtype="int64", name="history")
        initializer = keras.initializers.RandomUniform(seed=4)
        table = kl.layers.ShardedEmbedding(
            rows, 4, initializer, vocabulary=items, combiner="mean", name="table"
        )
        head = kl.layers.FullSoftmax(rows, kernel=table, use_bias=False, name="head")
        model = kl.Model(history, head(keras.layers.Dense(4)(table(history))))
        model.compile(kl.optimizers.Adagrad(0.1), loss=head.loss)
        best = head.predictor(model, k=3)
        serving = kl.Model(history, {"items": items.ids_of(best.output["ids"]), **best.output})
    return model, serving, items


def test_ids_of_rows():
    items = DynamicVocabulary(CAPACITY, num_oov_indices=2, mask_value=-3)
    ids = [[70, -5], [12, 10**12]]
    rows = items(tf.constant(ids, tf.int64), training=True)
    assert items.ids_of(rows).numpy().tolist() == ids
    free = sorted(set(range(items.vocabulary_size())) - set(rows.numpy().ravel()))
    assert items.ids_of(np.array([*free, -1, items.vocabulary_size()])).numpy().tolist() == [-1] * (
        len(free) + 2
    )
    names = DynamicVocabulary(CAPACITY)
    rows = names(tf.constant(["a", "b"]), training=True)
    assert names.ids_of(rows).numpy().tolist() == list(map(names.get_vocabulary().get, rows.numpy().tolist()))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_predictor_answers_with_ids(devices, tmp_path):
    model, serving, items = catalogue(devices)
    ids = np.arange(24, dtype=np.int64).reshape(8, 3) + 10**10
    classes = items(tf.constant(ids), training=True).numpy()
    model.fit(ids[:, :2], classes[:, 2], batch_size=8, verbose=0)
    found = serving.predict(ids[:, :2], verbose=0)
    known = items.get_vocabulary()
    assert found["items"].dtype == np.int64
    expected = [[known.get(row, -1) for row in rows] for rows in found["ids"].tolist()]
    assert found["items"].tolist() == expected and (found["items"] >= 10**10).any()
    kl.export_saved_model(serving, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_array_equal(served.serve(tf.constant(ids[:, :2]))["items"], found["items"])
    serving.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids[:, :2], verbose=0)["items"], found["items"])


@pytest.mark.parametrize("devices", [1, 2])
def test_removed_ids_free_their_rows_which_begin_again(devices):
    model, _, items = catalogue(devices)
    table = model.get_layer("table").table
    first = table.numpy()
    ids = np.arange(12, dtype=np.int64).reshape(4, 3)
    rows = items(tf.constant(ids), training=True).numpy()
    model.fit(ids[:, :2], rows[:, 2], batch_size=4, verbose=0)
    trained = [array.numpy() for array in table.array.arrays()]
    gone = items.remove(ids=[5, 7, 7, 999])
    assert sorted(gone.tolist()) == [5, 7]
    assert sorted(set(ids.ravel()) - set(items.get_vocabulary().values())) == [5, 7]
    cleared = rows.ravel()[[5, 7]]
    others = np.setdiff1d(np.arange(len(first)), cleared)
    for now, before, begin in zip(table.array.arrays(), trained, (first, np.full_like(first, 0.1))):
        now = now.numpy()
        np.testing.assert_array_equal(now[others], before[others])
        assert np.abs(now[cleared] - before[cleared]).min() > 0
        np.testing.assert_allclose(now[cleared], begin[cleared], atol=1e-7)
    assert items(tf.constant([5, 6])).numpy().tolist() == [0, rows.ravel()[6]]
    assert (items(tf.constant([100]), training=True).numpy() > 0).all()  # a free row for another id


@pytest.mark.parametrize("evict", ["lfu", "lru"])
def test_ids_that_have_not_come_for_long(evict):
    items = DynamicVocabulary(CAPACITY, evict=evict)
    for ids in ([1, 2, 3], [2, 3, 3], [3, 4], [4, 5]):
        items(tf.constant(ids), training=True)
    assert items.remove(unused_for=4).tolist() == []
    assert items.remove(unused_for=3).tolist() == [1]
    assert sorted(items.remove(unused_for=1).tolist()) == [2, 3]
    assert sorted(items.get_vocabulary().values()) == [4, 5]
    assert items.remove(unused_for=0).size == 2 and not items.get_vocabulary()


def test_strings_are_removed_by_name():
    items = DynamicVocabulary(CAPACITY)
    rows = items(tf.constant(["a", "b"]), training=True).numpy()
    of_b = items.ids_of(rows).numpy()[1]
    assert items.remove(ids=["b", "z"]).tolist() == [of_b]
    assert items(tf.constant(["a", "b"])).numpy().tolist() == [rows[0], 0]


def test_one_of_ids_and_unused_for():
    items = DynamicVocabulary(CAPACITY)
    for options in ({}, {"ids": [1], "unused_for": 3}):
        with pytest.raises(ValueError, match="One of `ids` and `unused_for` must be given to remove ids of"):
            items.remove(**options)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`inputs` must be integers"):
        items.remove(ids=[0.5])


def of_strings(devices=1, capacity=CAPACITY):
    with strategy_of(devices).scope():
        items = DynamicVocabulary(capacity, name="items", keep_strings=9)
        names = keras.Input((2,), dtype="string")
        table = kl.layers.ShardedEmbedding(
            items.vocabulary_size(), 4, vocabulary=items, combiner="sum", name="table"
        )
        model = kl.Model(names, keras.layers.Dense(1)(table(names)))
        model.compile(kl.optimizers.Adagrad(0.1), "mse")
    return model, items


NAMES = tf.constant([["é", "a b"], ["a b", ""], ["x" * 9, "d"], ["d", "é"]])


@pytest.mark.parametrize("devices", [1, 2])
def test_strings_are_kept(devices, tmp_path):
    model, items = of_strings(devices)
    model.fit(NAMES, np.ones(4), batch_size=2, verbose=0)
    rows = items(NAMES)
    assert items.strings_of(rows).numpy().tolist() == NAMES.numpy().tolist()
    names = {"é", "a b", "", "x" * 9, "d"}
    assert set(items.get_vocabulary().values()) == names
    assert items.strings_of(np.array([[0, CAPACITY + 1, -1]])).numpy().tolist() == [[b""] * 3]
    assert items.strings_of(rows).numpy().tolist()[0] == ["é".encode(), b"a b"]
    model.save(tmp_path / "model.keras")
    with strategy_of(devices).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("table").vocabulary.get_vocabulary() == items.get_vocabulary()
    larger = kl.resize(model, {"items": 3 * CAPACITY}).get_layer("table")
    assert set(larger.vocabulary.get_vocabulary().values()) == names
    known = {name: row for row, name in larger.vocabulary.get_vocabulary().items()}
    for row, name in items.get_vocabulary().items():
        np.testing.assert_array_equal(
            larger.table.numpy()[known[name]], model.get_layer("table").table.numpy()[row]
        )
    gone = items(tf.constant(["a b"])).numpy()
    items.remove(ids=["a b"])
    assert items.strings_of(gone).numpy().tolist() == [b""]
    assert set(items.get_vocabulary().values()) == names - {"a b"}


def test_kept_strings_follow_their_rows():
    _, items = of_strings(capacity=16)
    for start in range(0, 64, 4):
        words = np.array([f"w{start + i}" for i in range(4)])
        items(tf.constant(words), training=True)
        found = items(tf.constant(words))
        assert items.strings_of(found).numpy().tolist() == [word.encode() for word in words]
    ids, names = items.ids_of(np.arange(17)).numpy(), items.strings_of(np.arange(17)).numpy()
    hashes = tf.strings.to_hash_bucket_fast(names, 2**63 - 1).numpy()
    assert (np.where(ids == -1, -1, hashes) == ids).all() and (ids != -1).sum() == 16


def test_an_export_and_its_delta_have_the_strings(tmp_path):
    model, items = of_strings()
    model.fit(NAMES, np.ones(4), verbose=0)
    serving = kl.Model(model.input, {"names": items.strings_of(items(model.input))})
    kl.export_saved_model(serving, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1"))
    assert served.serve(NAMES)["names"].numpy().tolist() == NAMES.numpy().tolist()
    items(tf.constant(["new"]), training=True)
    sent = kl.serving.export_delta(serving, tmp_path / "1", tmp_path / "1.delta")
    assert sent["changed_rows"] < 20
    kl.serving.apply_delta(served, tmp_path / "1.delta")
    assert served.serve(tf.constant([["new", "?"]]))["names"].numpy().tolist() == [[b"new", b""]]


def test_what_cannot_be_kept():
    items = DynamicVocabulary(CAPACITY, keep_strings=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="strings of at most keep_strings=3 bytes"):
        items(tf.constant(["abcd"]), training=True)
    with pytest.raises(TypeError, match="`inputs` must be strings where `keep_strings` is set"):
        items(tf.constant([1]), training=True)
    with pytest.raises(ValueError, match="`keep_strings` of a DynamicVocabulary must be the bytes of"):
        DynamicVocabulary(CAPACITY).strings_of(np.array([1]))
    with pytest.raises(ValueError, match="`keep_strings` must be an integer of at least 0"):
        DynamicVocabulary(CAPACITY, keep_strings=-1)
