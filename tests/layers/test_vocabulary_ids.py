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
