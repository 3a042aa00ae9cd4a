"""`parallelize`: the numbers of one device, files of one device, and what is refused."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import assert_same, in_the_suite
from distribute.parallel._models import (
    DEVICES,
    IDS,
    OPTIMIZERS,
    WORD_DATA,
    WORDS,
    X,
    Y,
    dense_model,
    loss_of,
    trained,
    values,
    word_model,
)

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.distribute import Device, parallelize
from keras_largeout.distribute.parallel.layer_costs import call_costs

WAYS = ["stages", "sections", "towers", "data"]


CUTS = {2: ["norm"], 4: ["norm", "gru", "add"]}


@functools.cache
def of_one_device(name, make, data):
    model = make()
    losses = trained(model, OPTIMIZERS[name](), DATA[data])
    return losses, values(model)


DATA = {"words": WORD_DATA, "dense": (X, Y)}


# What a device does with its weights or rows is the business of the optimizer alone: one with a formula of
# Keras's, one that clips by all weights.
IN_THE_SUITE = ("keras.Adam", "LazyAdam")


@pytest.mark.parametrize("name", in_the_suite(OPTIMIZERS, *IN_THE_SUITE))
@pytest.mark.parametrize("way", ["stages", "sections"])
def test_fifty_steps_as_one_device(way, name):
    """Each optimizer on two devices or on four."""
    if (way, name) == ("sections", "RowWiseAdagrad"):
        pytest.skip("refused: it looks at whole rows")
    number = 4 if (list(OPTIMIZERS).index(name) + (way == "stages")) % 2 else 2
    if name == "keras.Adam":  # which trains no table over several devices
        make, data, extra = dense_model, "dense", {"cuts": CUTS[number]} if way == "stages" else {}
    else:
        make, data, extra = word_model, "words", {}
    if way == "stages" and make is dense_model:  # dropout draws again for each micro-batch
        extra["microbatches"] = 3
    losses, weights = of_one_device(name, make, data)
    model = parallelize(make(), way, DEVICES[:number], verbose=0, **extra)
    got = trained(model, OPTIMIZERS[name](), DATA[data])
    np.testing.assert_allclose(got, losses, rtol=1e-4)
    assert_same(values(model), weights)


def first(number, x):
    return tf.nest.map_structure(lambda value: value[:number], x)


@pytest.mark.parametrize("way", in_the_suite(WAYS, "stages"))
def test_last_batches_of_any_size(way):
    # Copies are all alike, so two will do.
    devices = DEVICES[:2] if way in ("towers", "data") else DEVICES
    model = parallelize(word_model() if way != "towers" else dense_model(), way, devices, verbose=0)
    x, y = WORD_DATA if way != "towers" else (X, Y)
    model.compile(klo.LazyAdam(0.01), loss_of(model))
    want = model.predict(x, batch_size=40, verbose=0)
    whole = model.evaluate(first(8, x), y[:8], verbose=0)
    for number in (1, 2, 9):
        few = first(number, x)
        got = model.predict(few, batch_size=8, verbose=0)
        np.testing.assert_allclose(got, want[:number], rtol=1e-5, atol=1e-6)
        assert np.isfinite(model.evaluate(few, y[:number], batch_size=8, verbose=0))
    batches = [tf.data.Dataset.from_tensors((first(n, x), y[:n])) for n in (8, 0)]
    data = batches[0].concatenate(batches[1])
    np.testing.assert_allclose(model.evaluate(data, verbose=0), whole, rtol=1e-5)
    assert model.predict(data.map(lambda x, y: x), verbose=0).shape == want[:8].shape
    model.fit(data, verbose=0)
    assert all(np.isfinite(w.numpy()).all() for w in model.weights)


@pytest.mark.parametrize("way", in_the_suite(["stages", "sections", "data"], "sections"))
def test_files_go_both_ways(way, tmp_path):
    """Weights and slots: another file is written by two devices than by one only where bytes differ."""
    make = functools.partial(parallelize, how=way, verbose=0)
    model = make(word_model(), devices=DEVICES[:3])
    trained(model, klo.LazyAdam(0.01), WORD_DATA, epochs=1)
    model.save(tmp_path / "m.keras")
    plain = keras.models.load_model(tmp_path / "m.keras")
    assert type(plain) is type(word_model())
    assert_same(values(plain), values(model), rtol=0, atol=0)
    # All go on as one, slots included.
    again = make(plain, devices=DEVICES[:2])
    again.compile(klo.LazyAdam(0.01), loss_of(again))
    with again.distribute_strategy.scope():
        again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "m.keras")
    for one in (again, model):
        one.get_layer("dropout").rate = 0.0
    plain = keras.models.load_model(tmp_path / "m.keras")
    plain.get_layer("dropout").rate = 0.0
    x, y = WORD_DATA
    each = [
        one.fit(x, y, batch_size=8, shuffle=False, verbose=0).history["loss"] for one in (plain, again, model)
    ]
    np.testing.assert_allclose(each[1:], [each[0]] * 2, rtol=1e-5)
    model.save_weights(tmp_path / "m.weights.h5")
    fresh = word_model()
    fresh.load_weights(tmp_path / "m.weights.h5")
    assert_same(values(fresh), values(model), rtol=0, atol=0)
    clone = keras.models.clone_model(model)
    assert [type(layer) for layer in clone.layers] == [type(layer) for layer in fresh.layers]


@pytest.mark.parametrize("way", WAYS)
def test_exports(way, tmp_path):
    model = parallelize(dense_model(), way, DEVICES[:2], verbose=0)
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    got = tf.nest.flatten(served.serve(tf.constant(X)))[0]
    np.testing.assert_allclose(got, model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


def counted(model):
    balance = kl.callbacks.LoadBalance()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = X if len(model.inputs[0].shape) == 3 else X[:, 0]
    history = model.fit(x, Y, batch_size=8, epochs=2, verbose=0, callbacks=[balance]).history
    assert history["layer_bytes"] == [balance.layer_bytes.sum()] * 2
    weights = sum(np.prod(w.shape) * 4 for w in model.trainable_weights)
    assert balance.memory.sum() == 3 * weights  # with both slots of Adam
    return balance


def test_bytes_and_memory_of_stages(capsys):
    model = parallelize(dense_model(), "stages", DEVICES[:2], cuts=["gru"], microbatches=2)
    plan = model.parallel_plan
    assert "between devices, forward and back" in capsys.readouterr().out
    balance = counted(model)
    np.testing.assert_allclose(balance.layer_bytes, (plan.bytes + plan.bytes.T) * 8 / plan.batch_size)
    assert balance.memory.tolist() == [w + s for w, s in zip(*weights_and_slots(plan))]
    one = (6 * 5 + 6 * 8) * 4 * 8  # what the GRU takes, and the output that skips layers
    assert balance.layer_bytes.tolist() == [[0, one], [one, 0]]


def weights_and_slots(plan):
    return [
        [sum(getattr(plan.calls[i], kind) for i in stage) for stage in plan.stages]
        for kind in ("weights", "slots")
    ]


def test_bytes_and_memory_of_sections(capsys):
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(3), keras.layers.Dense(1, name="last")]
    model = kl.Sequential([keras.Input((5,)), *layers])
    model = parallelize(model, "sections", DEVICES[:2])
    assert "weights and slots per device" in capsys.readouterr().out
    plan = model.parallel_plan
    balance = counted(model)
    there = 8 * 5 * 4  # the input, to the second device; back the partial sums of the pair: one per pair
    back = 8 * 3 * 4
    other = plan.places[2] * back  # where the last layer is on the second device, its input goes there
    assert balance.layer_bytes.tolist() == [[0, there + back + other], [there + back + other, 0]]
    assert sum(plan.memory) == balance.memory.sum()


def test_sections_are_even():
    model = parallelize(word_model(), "sections", DEVICES, verbose=0)
    ways = model.parallel_plan.ways
    assert ways["up"] == "columns" and ways["down"] == "rows" and ways["hidden"] == "columns"
    assert ways["plain"] == "columns" and ways["items"] == ways["words"] == "cut"
    for name in ("up", "down", "plain", "items"):
        sizes = {}
        for weight in model.get_layer(name).weights:
            device = weight.value.device[-5:]
            sizes[device] = sizes.get(device, 0) + int(np.prod(weight.shape))
        assert sorted(sizes) == DEVICES and max(sizes.values()) <= 1.5 * min(sizes.values()), sizes
    for of_wholes in (klo.LazyAdam(0.01, clipnorm=1.0), klo.RowWiseAdagrad(0.1)):
        with pytest.raises(ValueError, match="must treat each value of a weight by itself"):
            model.compile(of_wholes, loss_of(model))
    with pytest.raises(ValueError, match=r"one of keras_largeout\.optimizers where several devices"):
        model.compile("adam", loss_of(model))


def test_stages_remember_less_and_compute_again():
    """`remat`: the same numbers."""
    results = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(7, "tanh", name=f"d{i}") for i in range(4)]
        model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1)])
        model = parallelize(model, "stages", DEVICES[:2], remat=remat, cuts=["d2"], verbose=0)
        results.append(trained(model, klo.SGD(0.05), (X[:, 0], Y), epochs=2))
    np.testing.assert_allclose(*results, rtol=1e-6)


def own_optimizers(tmp_path):
    """Layers that train themselves, each in its own way."""
    keras.utils.set_random_seed(4)
    ids = keras.Input((6,), dtype="int32")
    one = kl.layers.ShardedEmbedding(50, 8, optimizer="sgd", storage=f"file:{tmp_path}", name="one")
    config = kl.layers.TableConfig("two", 50, 8, optimizer="adagrad")
    several = kl.layers.DistributedEmbedding({"ids": kl.layers.FeatureConfig("ids", config)}, name="several")
    x = keras.layers.Add()([one(ids), several({"ids": ids})["ids"]])
    x = keras.layers.LSTM(8, recurrent_dropout=0.5)(x)  # draws outside of training, too
    heads = [
        kl.layers.FullSoftmax(50, optimizer="adam", name="full"),
        kl.layers.HierarchicalSoftmax(50, optimizer="adagrad", name="tree"),
        kl.layers.SparseOutput(50, 4, optimizer="sgd", name="sparse"),
    ]
    return kl.Model(ids, [head(x) for head in heads])


def test_a_trial_changes_nothing(tmp_path):
    model = own_optimizers(tmp_path)
    model.compile("sgd", [model.get_layer(name).loss for name in ("full", "tree", "sparse")])
    model.fit(IDS, [WORDS] * 3, verbose=0)

    def state():
        own = [v for layer in model.layers for v in getattr(layer, "optimizer", model.optimizer).variables]
        known = [v for v in (*model.variables, *own) if "one" not in v.path]  # rows in files are no arrays
        each = {f"{i} {v.path}": v.numpy() for i, v in enumerate(known)}
        return {**values(model), **each}

    before = state()
    call_costs(model, None, DEVICES[0])
    assert_same(state(), before, rtol=0, atol=0)
    assert not model.losses


def test_layers_with_optimizers_of_their_own_in_stages(tmp_path):
    results = []
    for way in (None, "stages"):
        model = own_optimizers(tmp_path / str(way))
        if way:
            model = parallelize(model, way, DEVICES[:2], cuts=["full"], verbose=0)
        model.compile("sgd", [model.get_layer(name).loss for name in ("full", "tree", "sparse")])
        model.fit(IDS, [WORDS] * 3, batch_size=8, shuffle=False, epochs=2, verbose=0)
        results.append(values(model))
    assert_same(*results)


class Untold(keras.layers.Layer):
    """A layer that is not told whether it is called in training; it adds losses, and counts."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(0.5, seed=1)
        self.inner = keras.layers.Dense(5, activity_regularizer="l1", kernel_regularizer="l2")

    def build(self, shape):
        self.inner.build(shape)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        x = self.inner(self.dropout(x))
        self.add_loss(0.1 * keras.ops.mean(x * x))
        return x * self.calls


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("way", ["stages", "on devices"])
def test_what_is_computed_again_is_the_same(way, eagerly):
    """Random numbers, averages, losses that layers add: each once, and as without."""
    results = []
    for remat in (None, False, True):
        keras.utils.set_random_seed(3)
        x = inputs = keras.Input((5,))
        twice = keras.layers.GaussianNoise(0.5)
        for layer in (twice, keras.layers.Dense(5, activity_regularizer="l2"), Untold(), twice):
            x = layer(x)
        x = keras.layers.BatchNormalization()(x)
        model = kl.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, name="cut")(x)))
        if remat is not None and way == "stages":
            model = parallelize(model, way, DEVICES[:2], remat=remat, cuts=["cut"], verbose=0)
        elif remat is not None:
            for layer in model.layers[1:]:
                kl.distribute.OnDevice(layer, DEVICES[0], remat=remat)
        losses = trained(model, klo.SGD(0.01), (X[:16, 0], Y[:16]), epochs=2, run_eagerly=eagerly)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X[:4, 0], training=True)) + sum(model.losses)
        tape.gradient(loss, [weight.value for weight in model.trainable_weights])
        results.append([*losses, *model.losses, *(v.numpy().sum() for v in model.variables)])
    np.testing.assert_allclose(results[1:], [results[0]] * 2, rtol=2e-5, atol=1e-5)


def test_computing_again_in_mixed_precision():
    layers = [keras.layers.Dense(8, "tanh", dtype="mixed_bfloat16"), keras.layers.Dropout(0.5)]
    for layer in layers:
        kl.distribute.OnDevice(layer, DEVICES[0], remat=True)
    model = kl.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1, dtype="float32")])
    assert np.isfinite(trained(model, klo.SGD(0.01), (X[:, 0], Y), epochs=1)).all()


class Unseeded(keras.layers.Layer):
    def call(self, x, training=None):
        return tf.nn.dropout(x, 0.5) if training else x


@pytest.mark.parametrize("eagerly", [False, True])
def test_what_cannot_be_computed_again(eagerly):
    layers = [keras.layers.Dense(8), Unseeded(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model = parallelize(model, "stages", DEVICES[:2], remat=True, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`remat` must be False for layers that compute"):
        trained(model, klo.SGD(0.01), (X[:, 0], Y), epochs=1, run_eagerly=eagerly)
    vocabulary = kl.distribute.OnDevice(kl.layers.DynamicVocabulary(16), DEVICES[0], remat=True)
    with pytest.raises(ValueError, match="`remat` must be False for a layer that counts"):
        vocabulary(np.arange(3))


def test_every_op_of_a_stage_is_on_its_device():
    model = parallelize(dense_model(), "stages", DEVICES[:2], cuts=["gru"], microbatches=2, verbose=0)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    for variable in [*model.weights, *model.optimizer.variables]:
        if len(variable.shape):
            second = any(name in variable.path for name in ("gru", "out"))
            assert variable.value.device.endswith(DEVICES[second]), variable.path
    step = tf.function(lambda x, y: model.train_step((x, y)))
    graph = step.get_concrete_function(tf.constant(X[:8]), tf.constant(Y[:8])).graph
    heavy = [op for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2", "While", "AddN")]
    assert len(heavy) > 12
    assert all(op.device.endswith(tuple(DEVICES[:2])) for op in heavy), [(op.name, op.device) for op in heavy]


@pytest.mark.parametrize("eagerly", [False, True])
def test_stages_outside_of_graphs(eagerly):
    results = []
    for make in (
        dense_model,
        lambda: parallelize(dense_model(), "stages", DEVICES[:2], cuts=["norm"], verbose=0),
    ):
        model = make()
        results.append(trained(model, klo.SGD(0.01), (X, Y), epochs=1, run_eagerly=eagerly))
    np.testing.assert_allclose(*results, rtol=1e-5)


@pytest.mark.parametrize("way", ["stages", "sections", "data"])
def test_predictors_and_layers_by_themselves(way):
    """Another model of the same layers: each is called outside of the graph that was cut."""
    model = parallelize(word_model(), way, DEVICES[:2], verbose=0)
    plain = word_model()
    answers = [
        keras.tree.flatten(one.get_layer("words").predictor(one, k=3).predict(WORD_DATA[0], verbose=0))
        for one in (model, plain)
    ]
    for got, want in zip(*answers, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    x = X[:4, 0]
    np.testing.assert_allclose(model.get_layer("up")(x), plain.get_layer("up")(x), rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_released(way):
    """A closure of a gradient would hold the model for good."""
    references = []
    for _ in range(3):
        model = kl.Sequential([keras.Input((5,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
        model = parallelize(model, way, DEVICES[:2], verbose=0)
        trained(model, klo.SGD(0.1), (X[:, 0], Y), epochs=1)
        references.append(weakref.ref(model.layers[1]))
        del model
    keras.backend.clear_session()
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 1


def test_mixed_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        results = []
        for way in (None, "stages", "sections"):
            keras.utils.set_random_seed(5)
            layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
            model = kl.Sequential([keras.Input((5,)), *layers])
            model = parallelize(model, way, DEVICES[:2], verbose=0) if way else model
            results.append(trained(model, klo.SGD(0.01), (X[:, 0], Y), epochs=2))
        np.testing.assert_allclose(results[1:], [results[0]] * 2, rtol=2e-2)
    finally:
        keras.config.set_dtype_policy(before)


REFUSED = {
    r"`how` must be one of": {"how": "pipeline"},
    r"`devices` must be a list of names": {"devices": 4},
    r"`device` must be one of": {"devices": ["CPU:1", "GPU:7"]},
    r"`devices` must be different ones": {"devices": ["CPU:1", "CPU:1"]},
    r"`mix` has a meaning for how='towers' alone": {"mix": "gated"},
    r"`microbatches` has a meaning for how='stages' alone": {"how": "sections", "microbatches": 2},
    r"`microbatches` must be an int of at least 1": {"microbatches": 0},
    r"`cuts` must name layers that the model itself calls. Received: 'what', not one of": {"cuts": ["what"]},
    r"`cuts` must name the first layer of each stage but the first, 3": {"cuts": ["norm"]},
    r"must fit on the devices": {"devices": [Device("CPU:1", memory=10), Device("CPU:2", memory=10)]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    given = {"how": "stages", "devices": DEVICES, "verbose": 0} | REFUSED[message]
    with pytest.raises(ValueError, match=message):
        parallelize(dense_model(), **given)


def test_models_that_cannot_be_cut():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(3, name="inner")

        def call(self, x):
            return self.inner(x)

    with pytest.raises(ValueError, match=r"must be functional or sequential.*'inner'"):
        parallelize(Own(), "stages", DEVICES)
    with pytest.raises(ValueError, match="must be built"):
        parallelize(keras.Sequential([keras.layers.Dense(2)]), "stages", DEVICES)
    small = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="must not be more than the layers that a model calls, 1"):
        parallelize(small, "stages", DEVICES[:2])
    nested = keras.Sequential([keras.Input((3,)), small, keras.layers.Dense(2)])
    inside = small.layers[0].name
    with pytest.raises(ValueError, match=f"Received: '{inside}', which is inside '{small.name}'"):
        parallelize(nested, "stages", DEVICES[:2], cuts=[inside])
    with tf.distribute.MirroredStrategy(
        DEVICES[:2], cross_device_ops=tf.distribute.ReductionToOneDevice()
    ).scope():
        model = dense_model()
        with pytest.raises(NotImplementedError, match="cannot be combined with a strategy"):
            parallelize(model, "stages", DEVICES[2:])
    kl.distribute.OnDevice(small.layers[0], "CPU:1")
    with pytest.raises(ValueError, match="must have no layer that was put on a device"):
        parallelize(small, "sections", DEVICES[:2])


@pytest.mark.parametrize("how", ["stages", "stages with remat", "sections"])
@pytest.mark.parametrize("kind", [kl.layers.ShardedEmbedding, keras.layers.Embedding])
def test_a_head_that_shares_the_table_of_an_embedding(kind, how):
    ids = np.random.default_rng(0).integers(0, 50, (16, 5))
    found = []
    for spread in (False, True):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((5,), dtype="int32")
        words = kind(50, 16, name="words")
        hidden = keras.layers.Dense(16)(keras.layers.Dense(64, activation="relu")(words(inputs)))
        model = kl.Model(inputs, kl.layers.FullSoftmax(50, kernel=words, name="head")(hidden))
        if spread:
            name, _, remat = how.partition(" with ")
            options = {"microbatches": 2, "remat": bool(remat)} if name == "stages" else {}
            model = kl.distribute.parallelize(model, name, ["CPU:0", "CPU:1"], verbose=0, **options)
        model.compile(kl.optimizers.LazyAdam(0.01), model.get_layer("head").loss)
        losses = model.fit(ids, ids, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append([*losses, model.get_layer("words").get_weights()[0]])
    for got, want in zip(*found):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
