"""`DynamicVocabulary`: rows for ids of any number, counted, given and taken away."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.layers import DynamicVocabulary
from keras_largeout.ops.vocabulary.reference import EMPTY, update_reference

CAPACITY = 32


def batches(steps=6, size=24, ids=90, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.zipf(1.3, size) % ids * 10**12 - 5 for _ in range(steps)]


def counted(vocabulary, ids):
    """The rows that a training step gives `ids`."""
    return vocabulary(tf.constant(ids), training=True).numpy()


def test_an_id_gets_a_row_when_it_has_come_often_enough():
    vocabulary = DynamicVocabulary(CAPACITY, admit_after=3, num_oov_indices=1)
    assert vocabulary.vocabulary_size() == CAPACITY + 1
    assert counted(vocabulary, [7, 7, 8]).tolist() == [0, 0, 0]
    assert vocabulary(tf.constant([7] * 5)).numpy().tolist() == [0] * 5  # not in training: not counted
    known, unknown = counted(vocabulary, [7, 9])
    assert known > 0
    assert unknown == 0
    assert vocabulary(tf.constant([7, 8])).numpy().tolist() == [known, 0]
    assert vocabulary.get_vocabulary() == {known: 7}


def test_capacity_is_whole_buckets_and_unknown_ids_share_rows():
    vocabulary = DynamicVocabulary(17, num_oov_indices=4, mask_value=-3)
    assert vocabulary.vocabulary_size() == 1 + 4 + 32
    rows = vocabulary(tf.range(-3, 100, dtype=tf.int32)).numpy()
    assert rows[0] == 0
    assert set(rows[1:]) == {1, 2, 3, 4}
    none = DynamicVocabulary(16, num_oov_indices=0)
    assert none(tf.constant([5])).numpy().tolist() == [-1]


@pytest.mark.parametrize("evict", ["lfu", "lru"])
def test_it_is_what_the_reference_says(evict):
    vocabulary = DynamicVocabulary(CAPACITY, admit_after=2, evict=evict, num_oov_indices=0)
    keys, scores = np.full(CAPACITY, EMPTY), np.zeros(CAPACITY, np.int64)
    sketch, clock = np.zeros((CAPACITY // 4, 64), np.uint8), np.zeros(2, np.int64)
    for ids in batches():
        rows, _ = update_reference(keys, scores, sketch, clock, ids, admit_after=2, evict=evict)
        assert counted(vocabulary, ids).tolist() == rows.tolist()


def test_strings():
    vocabulary = DynamicVocabulary(CAPACITY, mask_value="")
    words = tf.constant([["a", "b", ""], ["b", "", "c"]])
    rows = vocabulary(words, training=True).numpy()
    assert ((rows == 0) == (words.numpy() == b"")).all()
    assert rows[0, 1] == rows[1, 0] > 1
    ragged = vocabulary(tf.ragged.constant([["c"], [], ["a", "z"]]))
    assert ragged.to_list() == [[rows[1, 2]], [], [rows[0, 0], 1]]
    sparse = vocabulary(tf.sparse.from_dense(words))
    assert sparse.values.numpy().tolist() == [rows[0, 0], rows[0, 1], rows[1, 0], rows[1, 2]]


def test_the_rows_that_begin_anew_are_those_that_change_hands():
    vocabulary, replaced = DynamicVocabulary(CAPACITY, num_oov_indices=3), []

    def note(rows):
        replaced.append(sorted(rows.numpy().tolist()))

    vocabulary.on_replaced(note)
    vocabulary.build()
    for ids in batches(size=12):
        before = vocabulary.get_vocabulary()
        counted(vocabulary, ids)
        after = vocabulary.get_vocabulary()
        assert replaced[-1] == [row for row, key in before.items() if after[row] != key]
    assert any(0 < len(rows) < CAPACITY // 2 for rows in replaced)


def model_of(optimizer=None, devices=1, many=False, **options):
    with strategy_of(devices).scope():
        keras.utils.set_random_seed(3)
        ids = keras.Input((2,), dtype="int64", name="ids")
        items = DynamicVocabulary(CAPACITY, name="items", **options)
        size = items.vocabulary_size()
        initializer = keras.initializers.RandomUniform(seed=4)
        if many:
            table = kl.layers.TableConfig(
                "items", size, 3, initializer, vocabulary=items, placement="modulo", optimizer=optimizer
            )
            other = kl.layers.TableConfig("other", 9, 3, placement="modulo", out_of_range="modulo")
            features = [kl.layers.FeatureConfig(n, t) for n, t in (("a", table), ("o", other), ("b", table))]
            large = kl.layers.DistributedEmbedding(features, name="large")
            rows = keras.layers.Add()(large([ids, ids, ids]))
        else:
            large = kl.layers.ShardedEmbedding(
                size,
                3,
                initializer,
                combiner="mean",
                vocabulary=items,
                placement="modulo",
                optimizer=optimizer,
                name="large",
            )
            rows = large(ids)
        model = kl.Model(ids, keras.layers.Dense(1, name="small")(rows))
        model.compile(kl.optimizers.Adagrad(0.1), "mse")
    return model


@pytest.mark.parametrize("accumulated", [None, 2])
def test_slots_that_are_made_in_the_first_graph_begin_anew(accumulated):
    """Keras builds the optimizer while it traces the first step; without other weights there is one trace."""
    found = []
    for built in (False, True):
        items, first = DynamicVocabulary(CAPACITY), keras.initializers.RandomUniform(seed=4)
        table = kl.layers.ShardedEmbedding(33, 3, first, combiner="mean", vocabulary=items)
        ids = keras.Input((2,), dtype="int64")
        model = kl.Model(ids, table(ids))
        model.compile(kl.optimizers.Adagrad(0.1, gradient_accumulation_steps=accumulated), "mse")
        if built:
            model.optimizer.build(model.trainable_variables)
        for step in range(5):
            model.train_on_batch(np.arange(16).reshape(8, 2) + 16 * step, np.ones((8, 3)))
        found.append([array.numpy() for array in table.table.array.arrays()])
    for array, expected in zip(*found):
        np.testing.assert_array_equal(array, expected)


def state(model):
    """The table, its slots and the vocabulary of a model."""
    large = model.get_layer("large")
    if isinstance(large, kl.layers.ShardedEmbedding):
        array, rows, items = large.table.array, slice(None), large.vocabulary
    else:
        (items,), table = large.vocabularies, large.tables[0]
        array, section = table.array, next(s for s in table.sections if s.name == "items")
        rows = slice(section.start, section.stop)
    return [a.numpy()[rows] for a in array.arrays()], items.get_vocabulary()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_row_begins_anew_for_another_id(devices, own, many):
    """Rows of ids that came once, and were replaced by others: as they were before any training."""
    model = model_of("adagrad" if own else None, devices, many)
    before, _ = state(model)
    x = np.arange(8 * CAPACITY, dtype=np.int64).reshape(-1, 2) * 7
    model.fit(x, np.ones(len(x)), batch_size=16, shuffle=False, verbose=0)
    (table, accumulator), known = state(model)
    # Those of the last batch were trained once, after their rows had begun again.
    last = {int(i) for i in x[-16:].ravel()}
    rows = [row for row, key in known.items() if key in last]
    assert len(rows) > CAPACITY // 2
    change = np.abs(table[rows] - before[0][rows])
    assert change.max() < 0.11  # Adagrad's step is at most its rate
    if not many:
        assert change.min() > 0
    assert np.unique(accumulator[rows].round(3)).size > 1
    assert accumulator[rows].min() >= 0.1


@pytest.mark.full
@pytest.mark.parametrize("many", [False, True])
def test_two_devices_do_what_one_does(many):
    models = [model_of(devices=devices, many=many, admit_after=2, evict="lru") for devices in (1, 2)]
    ids = np.concatenate(batches(8)).reshape(-1, 2)
    histories = [
        model.fit(ids, np.sin(ids[:, 0]), batch_size=16, shuffle=False, verbose=0).history["loss"]
        for model in models
    ]
    assert histories[1] == pytest.approx(histories[0], rel=1e-5)
    (one, known), (two, same) = (state(model) for model in models)
    assert known == same
    for want, got in zip(one, two):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("many", [False, True])
def test_saved_loaded_and_exported(many, tmp_path):
    model = model_of(many=many, admit_after=2)
    ids = np.concatenate(batches(4)).reshape(-1, 2)
    y = np.cos(ids[:, 1])
    model.fit(ids, y, batch_size=16, shuffle=False, verbose=0)
    want = model.predict(ids, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), want)
    assert state(loaded)[1] == state(model)[1]
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    np.testing.assert_allclose(served.serve(tf.constant(ids))["output_0"], want, rtol=1e-5, atol=1e-6)
    for m in (model, loaded):
        m.fit(ids[::-1], y, batch_size=16, shuffle=False, verbose=0)
    for got, want in zip(state(loaded)[0], state(model)[0]):
        np.testing.assert_array_equal(got, want)


def test_another_capacity_does_not_load(tmp_path):
    small, large = (
        keras.Sequential([keras.Input((2,), dtype="int64"), DynamicVocabulary(n)]) for n in (16, 32)
    )
    small.save_weights(tmp_path / "v.weights.h5")
    with pytest.raises(ValueError, match="`keys` must have the shape"):
        large.load_weights(tmp_path / "v.weights.h5")


def test_masks():
    items = DynamicVocabulary(16, mask_value=-1)
    large = kl.layers.ShardedEmbedding(items.vocabulary_size(), 2, mask_zero=True, vocabulary=items)
    assert large.compute_mask(tf.constant([[3, -1]])).numpy().tolist() == [[True, False]]


def test_what_is_refused():
    for options, words in (
        ({"admit_after": 0}, "`admit_after` must be an integer from 1 to 255. Received: admit_after=0"),
        ({"admit_after": 300}, "Received: admit_after=300"),
        ({"evict": "fifo"}, r"`evict` must be one of \('lfu', 'lru'\). Received: evict='fifo'"),
        ({"num_oov_indices": -1}, "`num_oov_indices` must be an integer, not negative"),
    ):
        with pytest.raises(ValueError, match=words):
            DynamicVocabulary(16, **options)
    items = DynamicVocabulary(16)
    with pytest.raises(ValueError, match=r"`input_dim` must be that of the vocabulary, 17 .* input_dim=16"):
        kl.layers.ShardedEmbedding(16, 2, vocabulary=items)
    with pytest.raises(ValueError, match="`mask_zero` must be False where the vocabulary has no"):
        kl.layers.ShardedEmbedding(17, 2, vocabulary=items, mask_zero=True)
    with pytest.raises(ValueError, match=r"`vocabulary` must be a DynamicVocabulary or None.*'abc'"):
        kl.layers.ShardedEmbedding(17, 2, vocabulary="abc")


# Several lookups in a step.


def sum_of(rows):
    return keras.ops.sum(rows, axis=(1, 2))[:, None]


def model_of_calls(calls, weights, layers=1, optimizer=None, devices=1, **options):
    """A model whose loss is the weighted sum of several lookups, by as many layers, of as many inputs."""
    with strategy_of(devices).scope():
        items = DynamicVocabulary(16, **options)
        large = [
            kl.layers.ShardedEmbedding(
                items.vocabulary_size(), 2, "zeros", vocabulary=items, placement="modulo", name=f"large{n}"
            )
            for n in range(layers)
        ]
        inputs = [keras.Input((None,), dtype="int64") for _ in range(max(calls) + 1)]
        found = [large[n % layers](inputs[call]) for n, call in enumerate(calls)]
        total = keras.layers.Add()([w * sum_of(rows) for w, rows in zip(weights, found)])
        model = kl.Model(inputs, total)
        model.compile(optimizer or kl.optimizers.SGD(1.0), lambda y, total: total)
    return model, items, [layer.table for layer in large]


def step(model, *inputs):
    model.fit([np.array(x) for x in inputs], np.zeros(len(inputs[0])), batch_size=1000, verbose=0)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("evict", ["lfu", "lru"])
def test_an_id_keeps_its_row_while_another_lookup_of_the_step_brings_new_ones(evict, eager, devices):
    if eager and devices > 1:
        pytest.skip("Keras runs steps of several replicas in graphs")
    weights = [1.0, 2.0]
    model, items, (table,) = model_of_calls([0, 1], weights, devices=devices, evict=evict)
    model.run_eagerly = eager
    inputs, owners = np.arange(100, 132).reshape(2, 2, 8), []
    for both in (inputs, inputs[::-1]):
        step(model, *both)
        # The ids of the lookup that came first have all rows, and those of the other one have none.
        (owner,) = (n for n in range(2) if set(items.get_vocabulary().values()) == set(both[n].ravel()))
        mean = 2  # of the losses of two examples
        want = np.full((16, 2), -weights[owner] / mean, "float32")
        np.testing.assert_array_equal(table.array.numpy()[1:], want)
        owners.append(sorted(items.get_vocabulary().values()))
    assert owners[0] != owners[1]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_tensor_of_ids_counts_once_whatever_layers_look_it_up(devices):
    model, items, tables = model_of_calls([0, 0, 0], [1.0] * 3, 2, devices=devices, admit_after=2)
    step(model, [[7, 9], [8, 10]])
    assert items.get_vocabulary() == {}
    step(model, [[7, 11], [12, 13]])
    assert list(items.get_vocabulary().values()) == [7]
    for table, calls in zip(tables, (2, 1)):
        (row,) = items.get_vocabulary()
        np.testing.assert_array_equal(table.array.numpy()[row], [-calls / 2] * 2)


def test_ids_of_several_tensors_all_count():
    model, items, _ = model_of_calls([0, 1], [1.0, 1.0], admit_after=2)
    step(model, [[7, 9]], [[7, 8]])
    assert list(items.get_vocabulary().values()) == [7]


def test_two_tables_of_one_layer_share_a_vocabulary(tmp_path):
    items = DynamicVocabulary(16, admit_after=2)
    wide, deep = (
        kl.layers.TableConfig(f"{n}", items.vocabulary_size(), n, "zeros", vocabulary=items) for n in (1, 2)
    )
    features = {n: kl.layers.FeatureConfig(n, t) for n, t in (("wide", wide), ("deep", deep))}
    ids = keras.Input((2,), dtype="int64")
    rows = kl.layers.DistributedEmbedding(features)({"wide": ids, "deep": ids})
    model = kl.Model(ids, keras.ops.concatenate([rows["wide"], rows["deep"]], axis=-1))
    model.compile(kl.optimizers.SGD(1.0), lambda y, total: keras.ops.sum(total, axis=1))
    step(model, [[7, 9]])
    assert items.get_vocabulary() == {}
    step(model, [[7, 11]])
    (row,) = items.get_vocabulary()
    want = model.predict(np.array([[7, 9]]), verbose=0)
    # The mean of -0.5, a row of one step, and -1.5, that of ids without one: of three in two steps.
    np.testing.assert_array_equal(want, [[-1.0] * 3])
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", compile=False)
    np.testing.assert_array_equal(loaded.predict(np.array([[7, 9]]), verbose=0), want)
    (layer,) = (layer for layer in loaded.layers if hasattr(layer, "vocabularies"))
    assert [v.get_vocabulary() for v in layer.vocabularies] == [{row: 7}]


def test_gradients_being_accumulated_go_with_the_id_that_they_belong_to():
    optimizer = kl.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    model, items, (table,) = model_of_calls([0], [1.0], optimizer=optimizer, evict="lru", num_oov_indices=0)
    step(model, [range(16)])
    step(model, [range(100, 108)])
    known = items.get_vocabulary()
    for row, rows in enumerate(table.array.numpy()):
        assert rows.tolist() == [-0.5, -0.5], (row, known[row])  # the mean of one gradient and of none


def test_an_optimizer_that_would_carry_one_ids_state_over_to_another_is_refused():
    for optimizer in (
        keras.optimizers.Adam(),
        keras.optimizers.SGD(momentum=0.9),
        keras.optimizers.SGD(gradient_accumulation_steps=2),
    ):
        with pytest.raises(ValueError, match=r"where a `vocabulary` gives rows of a table to other ids"):
            step(model_of_calls([0], [1.0], optimizer=optimizer)[0], [[7, 8]])
    model, items, (table,) = model_of_calls([0], [1.0], optimizer=keras.optimizers.SGD(1.0))
    step(model, [[7, 8]])
    for row in items.get_vocabulary():
        np.testing.assert_array_equal(table.array.numpy()[row], [-1, -1])


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2**24), ("float64", 2**53), ("bfloat16", 2**8)])
def test_floating_point_ids_are_exact_or_refused(dtype, limit):
    items = kl.layers.DynamicVocabulary(16)
    items(tf.cast([1, limit - 1], dtype), training=True)
    assert set(items.get_vocabulary().values()) == {1, limit - 1}
    for wrong in (limit, 0.5):
        for call in (items, tf.function(items)):
            with pytest.raises(tf.errors.InvalidArgumentError, match="`inputs` must be integers"):
                call(tf.cast([1, wrong], dtype))
    for ids in (tf.constant([True]), keras.Input((2,), dtype="bool")):
        with pytest.raises(TypeError, match=r"must be strings or integers\. Received: dtype=bool"):
            items(ids)
