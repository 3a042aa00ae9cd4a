"""`FeatureReport`: what the ids of each feature used in an epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl


def model_of():
    small = kl.layers.TableConfig("small", 5, 2, mask_zero=True)
    large = kl.layers.TableConfig("large", 40, 2, out_of_range="modulo")
    features = {
        "bag": kl.layers.FeatureConfig("bag", small),
        "a": kl.layers.FeatureConfig("a", large),
        "b": kl.layers.FeatureConfig("b", large),
    }
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in features}
    rows = kl.layers.DistributedEmbedding(features, placement="modulo", name="tables")(inputs)
    single = kl.layers.ShardedEmbedding(
        10, 2, combiner="sum", out_of_range="zero", placement="modulo", name="single"
    )
    joined = keras.layers.Concatenate()([*rows.values(), single(inputs["a"])])
    model = kl.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(kl.optimizers.Adagrad(0.1), "mse")
    return model


X = {
    "bag": np.array([[1, 0], [1, 4], [0, 0], [1, 1]] * 2),
    "a": np.array([[0, 1], [2, 3], [0, 45], [0, 0]] * 2),
    "b": np.array([[7, 7], [8, 8], [7, 7], [9, 9]] * 2),
}
Y = np.arange(8.0)


@pytest.mark.parametrize("devices", [1, 2])
def test_counts(devices):
    with strategy_of(devices).scope():
        model = model_of()
    report = kl.callbacks.FeatureReport(top=2)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    model.fit(data, epochs=2, callbacks=[report], verbose=0)
    bag, a, b, single = (report.features[name] for name in ("bag", "a", "b", "single"))
    assert (bag.rows, bag.ids, bag.unique, bag.outside) == (5, 10, 2, 0)
    assert bag.untouched == pytest.approx(0.5)
    assert bag.top == [(1, 0.8), (4, 0.2)]
    assert (a.ids, a.unique, a.outside) == (16, 5, 1 / 8)
    assert a.top[0] == (0, 0.5)
    assert (b.ids, b.unique, b.top) == (16, 3, [(7, 0.5), (8, 0.25)])
    assert (single.ids, single.unique, single.outside) == (16, 4, 1 / 8)  # 45 got no row
    assert single.untouched == pytest.approx(0.6)
    assert len(str(report).splitlines()) == 5
    assert "outside" in str(report)


def test_a_vocabulary_says_which_ids_are_unknown():
    items = kl.layers.DynamicVocabulary(16, admit_after=2)
    ids = keras.Input((2,), dtype="string")
    large = kl.layers.ShardedEmbedding(items.vocabulary_size(), 2, combiner="sum", vocabulary=items, name="w")
    model = kl.Model(ids, keras.layers.Dense(1)(large(ids)))
    model.compile(kl.optimizers.Adagrad(0.1), "mse")
    report = kl.callbacks.FeatureReport(verbose=1)
    x = tf.constant([["a", "b"], ["a", "c"]] * 2)
    model.fit(x, Y[:4], batch_size=2, shuffle=False, callbacks=[report], verbose=0)
    # The first batch: b and c came once. The second one: all are known.
    assert (report.features["w"].ids, report.features["w"].outside) == (8, 0.25)


@pytest.mark.full
def test_beside_load_balance_and_gone_afterwards():
    with strategy_of(2).scope():
        model = model_of()
    report, balance = kl.callbacks.FeatureReport(), kl.callbacks.LoadBalance(warn_above=None)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    for _ in range(2):
        history = model.fit(data, callbacks=[balance, report], verbose=0).history
        assert report.features["a"].ids == 16
        assert balance.loads["single"].steps == 2
        assert "single_load" in history
    before = report.features["a"].ids
    model.fit(data, verbose=0)
    assert report._uses[0].use().ids == 16  # of `a`: nothing more was counted
    assert before == 16


def test_what_is_refused():
    with pytest.raises(ValueError, match="`top` must not be negative"):
        kl.callbacks.FeatureReport(top=-1)
