"""A plan from a sample of the data, and models built by it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl

WORDS, DIM = 5000, 16
COUNTS = 1e6 / np.arange(1, WORDS + 1) ** 1.1


def data(batches=12):
    rng = np.random.default_rng(1)
    words = rng.choice(WORDS, (batches * 64, 6), p=COUNTS / COUNTS.sum()).astype("int32")
    return tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, 1:])).batch(64)


def make(placement="auto"):
    tokens = keras.Input((5,), dtype="int32")
    # The ids that the table gets are made inside of the model.
    x = kl.layers.ShardedEmbedding(WORDS, DIM, placement=placement, name="embedding")(WORDS - 1 - tokens)
    head = kl.layers.HierarchicalSoftmax(
        WORDS, counts=COUNTS, tree=kl.trees.two_level(WORDS), placement=placement, name="words"
    )
    model = keras.Model(tokens, head(x))
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
    return model


def test_counts_slots_and_batches_are_found():
    plan = kl.distribute.plan_from(data(), make(), devices=4, steps=10, small=0)
    by_name = {table.spec.name: table.spec for table in plan.tables}
    assert set(by_name) == {"embedding", "words", "words_bias"}
    ids = np.concatenate([x for x, _ in data().take(10)]).reshape(-1)
    np.testing.assert_array_equal(by_name["embedding"].counts, np.bincount(WORDS - 1 - ids, minlength=WORDS))
    targets = np.concatenate([y for _, y in data().take(10)]).reshape(-1)
    np.testing.assert_array_equal(by_name["words"].counts, np.bincount(targets, minlength=WORDS))
    assert by_name["embedding"].slots == 2 and by_name["embedding"].ids_per_example == 5
    assert plan.batch_size == 64 and len(plan.devices) == 4
    assert plan.imbalance < 1.2


def test_a_model_built_by_a_plan_has_the_same_numbers(tmp_path):
    plan = kl.distribute.plan_from(data(), make(), devices=4, steps=10, small=0)
    plan.save(tmp_path / "plan.json")
    plan = kl.distribute.Plan.load(tmp_path / "plan.json")
    losses = []
    for devices in (1, 4):
        keras.utils.set_random_seed(1)
        with strategy_of(devices).scope():
            model = make("auto" if devices == 1 else plan)
        losses.append(model.fit(data(), epochs=2, shuffle=False, verbose=0).history["loss"])
        if devices > 1:
            assert model.get_layer("embedding").table.placement == plan.placements["embedding"]
            assert len(model.get_layer("words").kernel_table.shards) > 2
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_errors():
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="`model` must have layers with large tables"):
        kl.distribute.plan_from(data(), dense)
    with pytest.raises(ValueError, match="`dataset` must have at least one batch"):
        kl.distribute.plan_from(data(0), make(), devices=2)
    plan = kl.distribute.plan_from(data(), make(), devices=2, steps=1)
    with strategy_of(4).scope(), pytest.raises(ValueError, match="on 4 devices"):
        make(plan)
