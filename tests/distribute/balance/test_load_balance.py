"""What the devices do is counted exactly, shown, and turned into a better placement."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.tree_estimator import count_pairs
from keras_largeout.planning.tree_placement import place_tree

VOCAB, DIM, BATCH, LENGTH, STEPS, DEVICES = 400, 8, 32, 5, 6, 2
COUNTS = 1e6 / np.arange(1, VOCAB + 1) ** 1.1
TREE = kl.trees.two_level(VOCAB)


def words(seed=1, steps=STEPS):
    rng = np.random.default_rng(seed)
    return rng.choice(VOCAB, (steps * BATCH, LENGTH + 1), p=COUNTS / COUNTS.sum()).astype("int32")


def data(values, weights=None):
    parts = (values[:, :-1], values[:, 1:]) + (() if weights is None else (weights,))
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def make(embedding="range", devices=DEVICES, how="range", **compile_args):
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        place = embedding if devices > 1 else "auto"
        x = kl.layers.ShardedEmbedding(VOCAB, DIM, placement=place, name="embedding")(tokens)
        x = keras.layers.Dense(DIM)(x)
        place = place_tree(TREE, devices, COUNTS, how=how, dim=DIM) if devices > 1 else "auto"
        head = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, tree=TREE, placement=place, name="words")
        model = keras.Model(tokens, head(x))
        model.compile(kl.optimizers.SGD(0.1), loss=head.loss, **compile_args)
    return model


def asked(placement, ids, devices=DEVICES):
    """Unique rows `[steps, replicas, devices + 1]`: replicated ones, then those of each shard."""
    counts = np.zeros((len(ids) // BATCH, devices, devices + 1), np.int64)
    for step in range(len(counts)):
        batch = np.split(ids[step * BATCH : (step + 1) * BATCH], devices)
        for replica, mine in enumerate(batch):
            owner, _ = placement.locate(np.unique(mine))
            counts[step, replica] = np.bincount(owner + 1, minlength=devices + 1)
    return counts


def each_device(counts):
    """`[steps, devices]`: what all replicas ask of a device, and what its own does with replicated rows."""
    return counts[:, :, 1:].sum(axis=1) + counts[:, :, 0]


def pairs(placement, targets):
    """`[steps, devices]` by the arithmetic of the tree."""
    steps = []
    for batch in np.split(targets, len(targets) // BATCH):
        owned, replicated = count_pairs(TREE, placement, batch)
        steps.append(owned + replicated / DEVICES)  # replicas have equal parts of a batch, root and all
    return np.array(steps)


def fit(model, dataset, *callbacks, **kwargs):
    return model.fit(dataset, verbose=0, shuffle=False, callbacks=[*callbacks], **kwargs)


@pytest.fixture(scope="module")
def counted():
    model, balance = make(), kl.callbacks.LoadBalance(warn_above=None)
    history = fit(model, data(words()), balance, validation_data=data(words(2)))
    return model, balance, history.history


def test_counts_are_those_of_the_batches(counted):
    model, balance, history = counted
    ids, targets = words()[:, :-1], words()[:, 1:]
    rows, load = asked(model.layers[1].table.placement, ids), balance.loads["embedding"]
    assert load.steps == STEPS and load.unit == "rows"
    np.testing.assert_array_equal(load.asked[:, 0], rows.sum(axis=0))
    np.testing.assert_array_equal(load["rows"], each_device(rows).sum(axis=0))
    np.testing.assert_array_equal(load.gradients, load["rows"])
    assert load.imbalance == pytest.approx(
        each_device(rows).max(axis=1).sum() / each_device(rows).mean(axis=1).sum()
    )
    placement, load = model.layers[-1].kernel_table.placement, balance.loads["words"]
    owned, replicated = count_pairs(TREE, placement, targets)
    np.testing.assert_array_equal(load.owned, owned)
    assert load.replicated == replicated and load.unit == "pairs"
    expected = pairs(placement, targets)
    np.testing.assert_array_equal(load["pairs"], expected.sum(axis=0))
    assert load.imbalance == pytest.approx(expected.max(axis=1).sum() / expected.mean(axis=1).sum())
    assert history["words_load"] == [load.imbalance] and history["embedding_load"][0] > 1.5


def test_bytes_are_rows_and_vectors_and_little_else(counted):
    _, balance, _ = counted
    load = balance.loads["embedding"]
    rows = load.asked[:, 0, 1:].copy()
    np.fill_diagonal(rows, 0)
    # To a shard the indices and the gradients, from it the rows.
    np.testing.assert_array_equal(load.bytes, rows * (8 + 4 * DIM) + rows.T * 4 * DIM)
    load = balance.loads["words"]
    vectors = load.asked[:, 0, 1:].copy()
    np.fill_diagonal(vectors, 0)
    between = vectors * (4 * DIM + 12) + vectors.T * (4 * DIM + 4)
    root = TREE.node_sizes[0]
    between[1, 0] += STEPS * root * (4 * DIM + 4 + 8)  # of the top, kernel and bias with one index
    between[0, 1] += STEPS * root * (4 * DIM + 8 + 4 + 8)
    np.testing.assert_array_equal(load.bytes, between)
    assert load.bytes_per_step == between.sum() / STEPS


def test_plan_is_even(counted):
    model, balance, _ = counted
    plan = balance.plan()
    rows = each_device(asked(plan.placements["embedding"], words()[:, :-1])).sum(axis=0)
    assert rows.max() / rows.mean() < 1.02
    work = pairs(plan.placements["words"], words()[:, 1:]).sum(axis=0)
    assert work.max() / work.mean() == pytest.approx(plan.expected["words"], rel=1e-6)
    assert plan.expected["words"] < balance.loads["words"].imbalance - 0.2
    assert "words: expected max/mean" in str(plan)
    for name in ("embedding", "words"):
        old = {"embedding": model.layers[1].table, "words": model.layers[-1].kernel_table}[name].placement
        assert plan.placements[name].sizes == old.sizes and plan.placements[name].num_hot == old.num_hot


def test_counting_ends_with_fit_and_comes_back(tmp_path):
    model, balance = make(), kl.callbacks.LoadBalance(plot=tmp_path / "load.png", log_dir=tmp_path / "logs")
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    with pytest.warns(UserWarning, match=r"busiest device does .* for 'embedding'.*rebalance\(model, callb"):
        fit(model, data(words()), balance, log, epochs=2)
    with open(tmp_path / "log.csv") as file:
        loads = [float(row["words_load"]) for row in csv.DictReader(file)]
    assert loads == balance.history["words"] and loads[0] == loads[1]
    assert (tmp_path / "load.png").read_bytes()[1:4] == b"PNG"
    assert list((tmp_path / "logs").glob("events*"))
    first, plain = balance.loads["words"], model.train_function
    counters = [table.counter for table in balance._tables.values()]
    for counter in counters:
        counter.reset()
    fit(model, data(words()))  # without the callback nothing is counted
    assert model.train_function is plain and all(counter.load().steps == 0 for counter in counters)
    counting = model._counted_training._counting
    with pytest.warns(UserWarning, match="busiest device"):
        fit(model, data(words()), balance)
    assert model._counted_training._counting is counting  # not traced again
    np.testing.assert_array_equal(balance.loads["words"].asked, first.asked)
    # Rows that moved are counted where they are now; with other losses compiled, all is made again.
    plan = balance.plan()
    kl.distribute.rebalance(model, plan)
    fit(model, data(words()), balance)
    rows = asked(plan.placements["embedding"], words()[:, :-1])
    np.testing.assert_array_equal(balance.loads["embedding"].asked[:, 0], rows.sum(axis=0))
    owned, _ = count_pairs(TREE, plan.placements["words"], words()[:, 1:])
    np.testing.assert_array_equal(balance.loads["words"].owned, owned)


@pytest.mark.parametrize("embedding", ["hot", "columns"])
def test_other_placements_and_several_steps_a_call(embedding):
    place = Placement.by_permutation(VOCAB, DEVICES).with_hot_rows(np.arange(20))
    model = make(place if embedding == "hot" else "columns", how="modulo", steps_per_execution=3)
    balance = kl.callbacks.LoadBalance(warn_above=None)
    targets = words()
    weights = (targets[:, 1:] % 3 > 0).astype("float32")
    fit(model, data(targets, weights), balance)
    load = balance.loads["embedding"]
    if embedding == "hot":
        rows = asked(place, targets[:, :-1])
        np.testing.assert_array_equal(load.asked[:, 0], rows.sum(axis=0))
        new = balance.plan().placements["embedding"]
        np.testing.assert_array_equal(new.hot, place.hot)
        kl.distribute.rebalance(model, {"embedding": new})
    else:
        unique = sum(len(np.unique(part)) for part in np.split(targets[:, :-1], STEPS * DEVICES))
        np.testing.assert_array_equal(load["rows"], [unique, unique])
        assert load.imbalance == 1.0 and "embedding" not in balance.plan().placements
    load = balance.loads["words"]
    kept = targets[:, 1:][weights > 0]  # others are not computed
    owned, replicated = count_pairs(TREE, model.layers[-1].kernel_table.placement, kept)
    assert load.steps == STEPS and load.replicated == replicated
    np.testing.assert_array_equal(load.owned, owned)


def test_one_device_and_wrong_use():
    model, balance = make(devices=1), kl.callbacks.LoadBalance()
    history = fit(model, data(words(steps=1)), balance)
    assert balance.loads == {} and list(history.history) == ["loss"]
    with pytest.raises(RuntimeError, match="needs an epoch of training"):
        balance.plan()
    with pytest.raises(ValueError, match="`warn_above` must be at least 1"):
        kl.callbacks.LoadBalance(warn_above=0.5)
    model, balance = make(), kl.callbacks.LoadBalance(record=False, warn_above=None)
    fit(model, data(words(steps=1)), balance)
    with pytest.raises(RuntimeError, match="Received: record=False"):
        balance.plan()


def test_stacked_tables_are_counted_and_moved_and_even_heads_are_not():
    features = {
        name: kl.layers.FeatureConfig(
            name, kl.layers.TableConfig(name, VOCAB, DIM, placement="range"), (BATCH, LENGTH), (BATCH, DIM)
        )
        for name in ("first", "second")
    }
    with strategy_of(DEVICES).scope():
        inputs = {name: keras.Input((LENGTH,), dtype="int32") for name in features}
        x = kl.layers.DistributedEmbedding(features, name="features")(inputs)
        head = kl.layers.SparseOutput(64, fan_in=4, loss="softmax")
        model = keras.Model(inputs, head(keras.layers.Concatenate()(list(x.values()))))
        model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    ids = words()[:, :LENGTH]
    batches = {"first": ids, "second": ids[::-1].copy()}
    dataset = tf.data.Dataset.from_tensor_slices((batches, ids[:, 0] % 64)).batch(BATCH)
    balance = kl.callbacks.LoadBalance(warn_above=None)
    fit(model, dataset, balance)
    ((name, load),) = balance.loads.items()  # one exchange for both tables, and nothing for the head
    (table,) = model.get_layer("features").tables
    both = np.concatenate([batches["first"], batches["second"] + VOCAB], axis=1)
    rows = asked(table.placement, both)
    np.testing.assert_array_equal(load.asked[:, 0], rows.sum(axis=0))
    values = table.numpy()
    assert kl.distribute.rebalance(model, balance.plan()) == [name]
    np.testing.assert_array_equal(table.numpy(), values)
