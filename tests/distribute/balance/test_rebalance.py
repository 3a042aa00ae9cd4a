"""Rows that move to other devices: the numbers stay, whatever moves with them."""

import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from _forked import run
from _tables import strategy_of
from _training import in_the_suite

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.tree_placement import place_tree, spread, subtree_roots
from keras_largeout.tables import chunks
from keras_largeout.tables.moving import move_rows
from keras_largeout.tables.table import ShardedTable

VOCAB, DIM, BATCH, LENGTH = 300, 8, 18, 4
COUNTS = 1e6 / np.arange(1, VOCAB + 1) ** 1.1
TREE = kl.trees.two_level(VOCAB)


def shuffled(placement, seed=0):
    """Another explicit placement with these sizes and replicated rows."""
    rng = np.random.default_rng(seed)
    owners = np.full(placement.rows, -1)
    cold = np.setdiff1d(np.arange(placement.rows), [] if placement.hot is None else placement.hot)
    places = np.repeat(np.arange(placement.devices), placement.sizes)
    owners[cold] = rng.permutation(places)[: len(cold)]
    return Placement.explicit(owners, placement.devices, placement.sizes)


OLD = {
    "range": lambda rows: Placement.by_range(rows, 4),
    "modulo": lambda rows: Placement.by_modulo(rows, 4),
    "permutation": lambda rows: Placement.by_permutation(rows, 4),
    "hot": lambda rows: Placement.by_permutation(rows, 4).with_hot_rows([0, 1, 5, rows - 1]),
    "explicit": lambda rows: shuffled(Placement.by_range(rows, 4), 7),
    "with room": lambda rows: Placement.explicit(np.arange(rows) % 3, 4, sizes=[rows // 2] * 4),
}


@pytest.mark.parametrize("kind", OLD)
@pytest.mark.parametrize("rows", [8, 203])
def test_every_row_arrives_with_its_slots(monkeypatch, kind, rows):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * (3 + 3 + 1) * 10)  # ten rows with their slots
    rng = np.random.default_rng(1)
    with strategy_of(4).scope():
        table = ShardedTable((rows, 3), "zeros", placement=OLD[kind](rows))
        arrays = [table.array, table.array.slot("momentum", 0, False), table.array.slot("sum", 0, True)]
        want = [rng.normal(size=array.shape).astype("float32") for array in arrays]
        for array, values in zip(arrays, want):
            array.assign(values)
        for turn in range(2):
            new = shuffled(table.placement, turn)
            table.check_move(new)
            move_rows(table, new)
            table.move_to(new)
            for array, values in zip(arrays, want):
                np.testing.assert_array_equal(array.numpy(), values)
            owners, local = new.locate(np.arange(rows))
            for row in np.flatnonzero(owners >= 0)[:20]:
                part = table.array.parts[owners[row]].numpy()
                np.testing.assert_array_equal(part[local[row]], want[0][row])


def test_one_long_cycle_and_none():
    """Every row moves by one place, over the borders of the shards; and a move to where all is already."""
    rows = 101
    with strategy_of(2).scope():
        table = ShardedTable((rows, 2), "uniform", dtype="bfloat16", placement=Placement.by_modulo(rows, 2))
        want = table.numpy()
        for new in (Placement.explicit(np.arange(rows) % 2, 2), Placement.explicit(np.arange(rows) % 2, 2)):
            move_rows(table, new)
            table.move_to(new)
            np.testing.assert_array_equal(table.numpy(), want)
        # The owners change places but for one row: sizes are 51 and 50.
        owners = 1 - np.arange(rows) % 2
        owners[0] = 0
        new = Placement.explicit(owners, 2)
        assert new.sizes == table.placement.sizes
        move_rows(table, new)
        table.move_to(new)
        np.testing.assert_array_equal(table.numpy(), want)


def data(steps):
    rng = np.random.default_rng(1)
    words = rng.choice(VOCAB, (steps * BATCH, LENGTH + 1), p=COUNTS / COUNTS.sum()).astype("int32")
    return tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, 1:])).batch(BATCH)


def make(optimizer, devices=2, embedding="range", **kwargs):
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        x = kl.layers.ShardedEmbedding(VOCAB, DIM, placement=embedding, name="embedding")(tokens)
        x = keras.layers.Dense(DIM)(x)
        placement = place_tree(TREE, devices, COUNTS, how="range", dim=DIM)
        head = kl.layers.HierarchicalSoftmax(
            VOCAB, counts=COUNTS, tree=TREE, placement=placement, name="words", **kwargs
        )
        model = keras.Model(tokens, head(x))
        model.compile(optimizer(), loss=head.loss)
    return model


def moved(model, seed=0):
    """A plan that moves rows of the embedding and subtrees of the head."""
    embedding, head = model.layers[1].table, model.layers[-1]
    cut = np.arange(TREE.num_nodes) == 0
    units = subtree_roots(TREE, cut)
    placement = head.kernel_table.placement
    owner = np.random.default_rng(seed).permutation(np.arange(len(units)) % placement.devices)
    owners = np.repeat(spread(TREE, cut, units, owner), TREE.node_sizes)
    there = Placement.explicit(owners, placement.devices, placement.sizes)
    return {"embedding": shuffled(embedding.placement, seed), "words": there}


def state(model):
    tables = {"embedding": model.layers[1].table, "kernel": model.layers[-1].kernel_table}
    if model.layers[-1].bias_table is not None:
        tables["bias"] = model.layers[-1].bias_table
    arrays = {name: table.numpy() for name, table in tables.items()}
    arrays.update({key: slot.numpy() for key, slot in model.optimizer._row_slots.slots.items()})
    arrays.update({f"dense{i}": w.numpy() for i, w in enumerate(model.layers[2].weights)})
    return arrays


def fit(model, dataset):
    losses = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[record])
    return losses


CASES = {
    "two slots": (lambda: kl.optimizers.LazyAdam(0.01), 3, {}),
    "a number per row": (lambda: kl.optimizers.RowWiseAdagrad(0.1), 2, {"use_bias": False}),
    "accumulated gradients": (lambda: kl.optimizers.Adagrad(0.1, gradient_accumulation_steps=4), 2, {}),
}


@pytest.mark.parametrize("case", in_the_suite(CASES, "two slots", "accumulated gradients"))
def test_training_goes_on_as_without(case):
    optimizer, devices, kwargs = CASES[case]
    # With 10 steps, gradients of two of them are waiting when the rows move.
    want, got = make(optimizer, devices, **kwargs), make(optimizer, devices, **kwargs)
    want_losses = fit(want, data(20).take(10)) + fit(want, data(20).skip(10))
    losses = fit(got, data(20).take(10))
    before = state(got)
    assert sorted(kl.distribute.rebalance(got, moved(got))) == ["embedding", "words"]
    after = state(got)
    for key in before:
        np.testing.assert_array_equal(after[key], before[key], err_msg=key)
    losses += fit(got, data(20).skip(10))
    np.testing.assert_allclose(losses, np.array(want_losses), rtol=1e-5)
    # Sums are taken in another order where rows have other neighbours.
    for key, values in state(want).items():
        np.testing.assert_allclose(state(got)[key], values, rtol=1e-5, atol=1e-5, err_msg=key)
    # And again, from one explicit placement to another: nothing is traced again.
    function = got.train_function
    kl.distribute.rebalance(got, moved(got, 1))
    assert got.train_function is function
    for key, values in state(want).items():
        np.testing.assert_allclose(state(got)[key], values, rtol=1e-5, atol=1e-5, err_msg=key)
    hidden = np.random.default_rng(0).normal(size=(5, DIM)).astype("float32")
    for mine, theirs in zip(got.layers[-1].top_k(hidden, 3), want.layers[-1].top_k(hidden, 3)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_functions_traced_before_fail_and_can_be_made_anew():
    model = make(lambda: kl.optimizers.SGD(0.1))
    ids = np.arange(2 * LENGTH, dtype="int32").reshape(2, LENGTH)
    with strategy_of(2).scope():
        twin = keras.Model(model.inputs, model.layers[1].output)  # another model with the same table
    want, rows = model.predict(ids, verbose=0), twin.predict(ids, verbose=0)
    kl.distribute.rebalance(model, moved(model))
    np.testing.assert_allclose(model.predict(ids, verbose=0), want, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"embedding.* were moved by .rebalance"):
        twin.predict(ids, verbose=0)
    twin.make_predict_function(force=True)
    np.testing.assert_array_equal(twin.predict(ids, verbose=0), rows)


def test_what_is_refused_moves_nothing():
    model = make(lambda: kl.optimizers.SGD(0.1))
    plan, before = moved(model), state(model)
    owners = np.array(plan["words"].owners)
    torn = owners.copy()
    torn[np.flatnonzero(owners >= 0)[0]] = 1 - torn[np.flatnonzero(owners >= 0)[0]]
    modulo = Placement.by_modulo(VOCAB, 2)
    refused = {
        "sharded over devices, .'embedding', 'words'.. Received: a plan for .'other'.": {"other": modulo},
        "as large shards": {"embedding": Placement.explicit(np.arange(VOCAB) // 100 % 2, 2)},
        "same replicated rows": {"embedding": Placement.by_range(VOCAB, 2).with_hot_rows([1])},
        "children of a node together": {"words": Placement.explicit(torn, 2, plan["words"].sizes)},
    }
    for message, wrong in refused.items():
        with pytest.raises(ValueError, match=message):
            kl.distribute.rebalance(model, {**plan, **wrong})
    after = state(model)
    for key in before:
        np.testing.assert_array_equal(after[key], before[key])
    assert model.layers[1].table.placement.kind == "range"
    assert kl.distribute.rebalance(model, {"embedding": model.layers[1].table.placement}) == []


def test_memory_is_bounded():
    """A table of 400 MB moves within a few chunks, in its own process."""
    code = """
        import numpy as np
        import keras_largeout as kl
        from keras_largeout.tables.moving import move_rows
        from keras_largeout.tables.table import ShardedTable

        def peak():
            fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
            return int(fields["VmHWM"].split()[0]) / 1024

        rows = 200_000
        with kl.distribute.strategy(2).scope():
            table = ShardedTable((rows, 512), "zeros", placement="permutation")
            owners = np.random.default_rng(0).permutation(np.arange(rows) % 2)
            new = kl.distribute.Placement.explicit(owners, 2)
            table.array.write(7, np.full((1, 512), 3.0, "float32"))
            before = peak()
            move_rows(table, new)
            table.move_to(new)
            assert table.array.read([7]).mean() == 3.0
        print("grown by", peak() - before)
    """
    ended, printed = run(["-c", textwrap.dedent(code)])
    assert ended == 0, printed
    assert float(printed.split("grown by")[1]) < 256
