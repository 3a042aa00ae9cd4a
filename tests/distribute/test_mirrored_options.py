"""What `compile` and optimizers can be asked for: over several devices the numbers of one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _mirrored import LENGTH, VOCAB, data, fit, model_of, state
from _tables import strategy_of
from _training import arrays_of, assert_same, needs_multi_optimizer

import keras_largeout as kl
from keras_largeout.planning.placement import Placement

klo = kl.optimizers
HOT = Placement.by_modulo(VOCAB, 3).with_hot_rows([0, 1, 2, 50])


def regression(devices, optimizer, placement="permutation", **compile_args):
    """The smallest model with a table, quick to trace."""
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        ids = keras.Input((LENGTH,), dtype="int32")
        table = kl.layers.ShardedEmbedding(VOCAB, 5, placement=placement if devices > 1 else "auto")
        model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(table(ids))))
        model.compile(optimizer(), "mse", **compile_args)
    return model


def numbers(steps=6):
    ids = data(steps)[0]
    return ids, np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")


def weights(model):
    """The logical table, its slots, and the dense weights."""
    return arrays_of(model.layers[1].table, **{str(i): w for i, w in enumerate(model.layers[-1].weights)})


def trained(devices, optimizer, placement="permutation", **compile_args):
    """The losses, the weights and the model."""
    model = regression(devices, optimizer, placement, **compile_args)
    return fit(model, numbers()), weights(model), model


def assert_as_one_device(
    optimizer, placement="permutation", rtol=2e-5, atol=2e-6, one_device=None, **compile_args
):
    """`one_device`: what `trained` gives there, where a test has it already."""
    want_losses, want, _ = one_device or trained(1, optimizer, **compile_args)
    losses, got, model = trained(3, optimizer, placement, **compile_args)
    np.testing.assert_allclose(losses, want_losses, rtol=max(rtol, 1e-5))
    assert_same(got, want, rtol, atol)
    return model


def multi():
    choice = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01), {".*embeddings.*": klo.Adagrad(0.1)})
    return keras.optimizers.MultiOptimizer(choice)


@pytest.mark.parametrize("how", [{"steps_per_execution": 4}, {"run_eagerly": True}])
def test_ways_to_run(how):
    assert_as_one_device(lambda: klo.LazyAdam(0.01), **how)


@needs_multi_optimizer
def test_multi_optimizer():
    assert_as_one_device(multi)


@functools.cache
def on_one_device(**options):
    return trained(1, lambda: klo.SGD(0.3, momentum=0.9, **options))


# Norms add up over the shards of a row, and over rows and copies. A value is clipped by itself, wherever it
# is, and a gradient is kept by the part that it belongs to.
PLACEMENTS = {"columns": "columns", "hot": HOT}
CLIPPED_AND_KEPT = [
    *(("clipnorm", 0.05, kind) for kind in PLACEMENTS),
    *(("global_clipnorm", 0.05, kind) for kind in PLACEMENTS),
    ("clipvalue", 0.002, "hot"),
    ("gradient_accumulation_steps", 3, "hot"),
]


@pytest.mark.parametrize(("option", "value", "placement"), CLIPPED_AND_KEPT)
def test_clipping_and_accumulation(option, value, placement):
    options = {option: value}
    optimizer = lambda: klo.SGD(0.3, momentum=0.9, **options)  # noqa: E731
    assert_as_one_device(optimizer, PLACEMENTS[placement], one_device=on_one_device(**options))


def test_head_with_several_of_them():
    optimizer = lambda: klo.LazyAdam(  # noqa: E731
        keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5),
        global_clipnorm=0.02,
        weight_decay=0.05,
        gradient_accumulation_steps=2,
    )
    one, several = model_of(1, optimizer), model_of(3, optimizer)
    np.testing.assert_allclose(fit(several, data()[:2]), fit(one, data()[:2]), rtol=1e-5)
    assert_same(state(several), state(one))


# Mixed precision. A float16 or bfloat16 sum over a replica's batch is rounded where one device's is not.


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = assert_as_one_device(lambda: klo.SGD(0.1), rtol=2e-2, atol=2e-3)
        # `compile` wrapped the optimizer by itself.
        assert isinstance(model.optimizer, klo.LossScaleOptimizer) == (policy == "mixed_float16")
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("wrapper", [klo.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
def test_infinity_on_the_last_replica_skips_the_step_everywhere(wrapper):
    model = regression(3, lambda: wrapper(klo.LazyAdam(0.01), initial_scale=64.0), HOT)
    ids, y = numbers(1)
    fit(model, (ids, y))
    before = weights(model)
    bad = y.copy()
    bad[-1] = np.inf
    fit(model, (ids, bad))
    for key, values in weights(model).items():
        np.testing.assert_array_equal(values, before[key])
    assert model.optimizer.dynamic_scale.numpy() == 32.0
    fit(model, (ids, y))
    assert np.abs(weights(model)["embeddings"] - before["embeddings"]).max() > 0


# Freezing.


def test_frozen_and_thawed():
    found = []
    for devices in (1, 3):
        model = regression(devices, lambda: klo.LazyAdam(0.01))
        table = model.layers[1]
        for trainable in (False, True):
            table.trainable = trainable
            before = table.table.numpy()
            with strategy_of(devices).scope():
                model.compile(klo.LazyAdam(0.01), "mse")
            fit(model, numbers())
            assert np.array_equal(table.table.numpy(), before) != trainable
        found.append(weights(model))
    assert_same(found[1], found[0])


def test_a_frozen_table_beside_kerass_own_optimizer():
    model = regression(2, lambda: klo.SGD(0.1))
    model.layers[1].trainable = False
    with strategy_of(2).scope():
        model.compile(keras.optimizers.Adam(0.1), "mse")
    before = weights(model)
    fit(model, numbers(1))
    after = weights(model)
    np.testing.assert_array_equal(after["embeddings"], before["embeddings"])
    assert np.abs(after["0"] - before["0"]).max() > 0


# Models.


class Subclassed(keras.Model):
    def __init__(self, table):
        super().__init__()
        self.table, self.score = table, keras.layers.Dense(1)

    def call(self, ids):
        return self.score(self.table(ids))


@pytest.mark.parametrize("kind", ["sequential", "subclassed"])
def test_layers_built_inside_fit(kind):
    found = []
    for devices in (1, 3):
        keras.utils.set_random_seed(7)
        with strategy_of(devices).scope():
            place = HOT if devices > 1 else "auto"
            table = kl.layers.ShardedEmbedding(VOCAB, 5, combiner="mean", placement=place)
            layers = [table, keras.layers.Dense(1)]
            model = keras.Sequential(layers) if kind == "sequential" else Subclassed(table)
            model.compile(klo.LazyAdam(0.01), "mse")
        fit(model, numbers())
        found.append(arrays_of(table.table))
    assert_same(found[1], found[0])


def test_shared_and_several_tables():
    found = []
    for devices in (1, 3):
        keras.utils.set_random_seed(7)
        with strategy_of(devices).scope():
            a, b = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")
            kinds = {"permutation": None, "columns": "sum", "replicated": "mean"}
            layers = [
                kl.layers.ShardedEmbedding(
                    VOCAB, 5, combiner=combiner, placement=kind if devices > 1 else "auto", name=kind
                )
                for kind, combiner in kinds.items()
            ]
            shared = keras.layers.Flatten()(layers[0](a) * layers[0](b))
            x = keras.layers.Concatenate()([shared, *(layer(a) for layer in layers[1:])])
            model = keras.Model((a, b), keras.layers.Dense(1)(x))
            model.compile(klo.LazyAdam(0.01), "mse")
        ids, y = numbers()
        fit(model, ((ids, ids[::-1].copy()), y))
        found.append({f"{n.name}_{s.name}": s.numpy() for n in layers for s in n.table.array.arrays()})
    assert_same(found[1], found[0], 1e-4, 1e-5)


class Tied(keras.Model):
    """Scores words by the table that they are looked up in."""

    def __init__(self, placement):
        super().__init__()
        self.words = kl.layers.ShardedEmbedding(VOCAB, 5, placement=placement)

    def call(self, ids):
        return tf.matmul(self.words(ids), self.words.embeddings.value, transpose_b=True)


def test_tied_input_and_output():
    words, following, _ = data()
    found = []
    for devices in (1, 3):
        keras.utils.set_random_seed(7)
        with strategy_of(devices).scope():
            model = Tied("replicated" if devices > 1 else "auto")
            model.compile(klo.LazyAdam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        fit(model, (words, following))
        found.append(arrays_of(model.words.table))
    assert_same(found[1], found[0])
    part = model.words.table.shards[0]
    for copy in part.copies:
        np.testing.assert_array_equal(copy.numpy(), found[1]["embeddings"])


def test_a_compiled_step_is_not_offered():
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model = regression(2, lambda: klo.SGD(0.1), jit_compile=True)
    assert not model.jit_compile
    fit(model, numbers(1))


@pytest.mark.parametrize("table", [False, True])
def test_large_dense_weights_in_one_pass(table):
    """`row_update` on each device's copy of a dense weight: beside a table, and with Keras's step alone."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(32, 64)).astype("float32"), rng.integers(0, 40, 32)
    kernels = []
    for devices in (1, 4):
        keras.utils.set_random_seed(7)
        with strategy_of(devices).scope():
            inputs = keras.Input((64,))
            hidden = keras.layers.Dense(4096, activation="relu")(inputs)
            if table:
                head = kl.layers.SparseOutput(40, 5, loss="softmax", seed=3)
                model, loss = keras.Model(inputs, head(hidden)), head.loss
            else:
                model = keras.Model(inputs, keras.layers.Dense(40)(hidden))
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(kl.optimizers.LazyAdam(0.01), loss=loss)
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        kernel = model.layers[1].kernel
        assert model.optimizer.in_one_pass(kernel.value)
        kernels.append(kernel.numpy())
    np.testing.assert_allclose(*kernels, rtol=2e-4, atol=2e-5)
