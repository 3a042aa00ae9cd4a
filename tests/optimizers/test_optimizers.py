"""What optimizers do with rows and large matrices, each option: beyond the table of `conformance`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance._optimizers import DIM, OPTIMIZERS, OPTIONS, ROWS, assert_close, gradients, make, weights

import keras_largeout.optimizers as klo
from keras_largeout.tables.shard import ShardVariable

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def compiled_step(optimizer, variables):
    return tf.function(lambda grads: optimizer.apply_gradients(zip(grads, variables)))


# Options change gradients and hyperparameters before any rule comes to see them: where a case takes seconds,
# every option is tried with two rules, and every rule as it is and with the options that change a number of
# its formula.
IN_THE_FORMULA = ["plain", "weight_decay", "schedule"]
THOROUGH = ("momentum", "lazy_adam")


@pytest.mark.parametrize(
    ("table", "thorough"),
    [
        (keras.Variable, THOROUGH),
        (ShardVariable, THOROUGH),
        pytest.param(ShardVariable, OPTIMIZERS, marks=pytest.mark.soak),
    ],
    ids=["variable", "rows", "rows, every option"],
)
@every_optimizer
def test_rows_are_dense_updates_where_every_row_is_touched(rng, name, table, thorough):
    for option in OPTIONS if name in thorough else IN_THE_FORMULA:
        ours, truth = weights(table=table), weights()
        a, b = make(name, option), make(name, option, truth=True)
        a.build(ours)
        step = compiled_step(a, ours)
        for _ in range(6):
            sparse, dense = gradients(rng)
            step(sparse)
            b.apply_gradients(zip(dense, truth))
        assert int(a._iterations) == 6
        assert_close(ours, truth, 1e-5, option)


@every_optimizer
def test_row_wise_slots_and_memory(name):
    optimizer, variables = make(name), weights(table=ShardVariable)
    optimizer.build(variables)
    for slot in optimizer.slots_of(variables[0]):
        assert isinstance(slot, ShardVariable)
        assert tuple(slot.shape) == ((ROWS,) if name == "row_wise_adagrad" else (ROWS, DIM))
        assert any(slot is variable for variable in optimizer.variables)


def test_row_wise_adagrad_on_dense_weights(rng):
    optimizer = klo.RowWiseAdagrad(0.1, initial_accumulator_value=0.2, epsilon=1e-3)
    w, g = rng.normal(size=(2, 5, 3, 2)).astype("float32")
    variable = keras.Variable(w)
    optimizer.apply([tf.constant(g)], [variable])
    accumulator = 0.2 + np.square(g).mean(axis=(1, 2))
    np.testing.assert_allclose(optimizer._accumulators[0].numpy(), accumulator, rtol=1e-6)
    want = w - 0.1 * g / np.sqrt(accumulator + 1e-3)[:, None, None]
    np.testing.assert_allclose(variable.numpy(), want, rtol=1e-5, atol=1e-6)


@every_optimizer
def test_a_dense_gradient_of_a_table_updates_all_its_rows(rng, name):
    ours, truth = weights(table=ShardVariable), weights()
    _, dense = gradients(rng)
    make(name).apply(dense, ours)
    make(name, truth=True).apply(dense, truth)
    assert_close(ours, truth)


def test_accumulated_rows_take_the_memory_of_their_batches(rng):
    optimizer, variables = make("lazy_adam", "accumulation"), weights(table=ShardVariable)
    before = variables[0].numpy()
    sparse, _ = gradients(rng, touched=np.array([1, 1, 4]))
    for _ in range(2):
        optimizer.apply(sparse, variables)
    accumulator = optimizer._row_slots.accumulators[0]
    assert accumulator.values.shape == (None, DIM) and tuple(tf.shape(accumulator.values)) == (6, DIM)
    np.testing.assert_array_equal(variables[0].numpy(), before)
    optimizer.apply(sparse, variables)
    assert tuple(tf.shape(accumulator.values)) == (0, DIM)
    assert set(np.flatnonzero((variables[0].numpy() != before).any(axis=1))) == {1, 4}


@every_optimizer
def test_bfloat16(rng, name):
    ours = [keras.Variable(w.numpy(), dtype="bfloat16") for w in weights()]
    truth = [keras.Variable(tf.cast(w.value, tf.float32).numpy()) for w in ours]
    optimizer, keras_one = make(name, "global_clipnorm"), make(name, "global_clipnorm", truth=True)
    for _ in range(3):
        sparse, dense = gradients(rng, dtype="bfloat16")
        optimizer.apply_gradients(zip(sparse, ours))
        keras_one.apply_gradients(zip(dense, truth))
    assert all(slot.dtype == "float32" for slot in optimizer.slots_of(ours[0]))
    # Three roundings of weights of about 1 to 8 bits; dense bfloat16 weights are Keras's business.
    assert_close([tf.cast(w.value, tf.float32) for w in ours[:2]], truth[:2], 0.03)


@every_optimizer
def test_config_round_trip(name):
    optimizer = make(name, "schedule")
    config = keras.optimizers.serialize(optimizer)
    assert config["registered_name"] == f"keras_largeout>{type(optimizer).__name__}"
    again = keras.optimizers.deserialize(config)
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()


def test_exclude_from_weight_decay(rng):
    variables = [keras.Variable(np.ones((ROWS, DIM), "float32"), name=name) for name in ("kept", "decayed")]
    optimizer = klo.SGD(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["kept"])
    rows = tf.IndexedSlices(tf.zeros((1, DIM)), tf.constant([2]))
    optimizer.apply([rows, rows], variables)
    np.testing.assert_array_equal(variables[0].numpy(), 1.0)
    np.testing.assert_allclose(variables[1].numpy()[2], 0.95)
    np.testing.assert_array_equal(np.delete(variables[1].numpy(), 2, axis=0), 1.0)


@pytest.mark.parametrize("run_eagerly", [False, True])
@every_optimizer
def test_in_fit_with_a_keras_embedding(rng, name, run_eagerly):
    x = rng.integers(1, 30, (32, 4))
    y = np.sin(x.sum(axis=1, keepdims=True))
    model = keras.Sequential([keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
    optimizer = make(name) if name != "ftrl" else klo.Ftrl(0.5)  # its first step forgets the initial weights
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    model.build((None, 4))
    before = model.layers[0].embeddings.numpy()
    losses = model.fit(x, y, batch_size=8, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(model.layers[0].embeddings.numpy()[30:], before[30:])


@pytest.mark.full
@every_optimizer
@pytest.mark.parametrize(
    ("jit_compile", "tried"),
    [
        (False, slice(None)),
        (True, slice(1)),
        pytest.param(True, slice(1, None), marks=pytest.mark.soak),  # XLA takes seconds for each
    ],
    ids=["graph", "xla", "xla options"],
)
def test_large_dense_weights_take_one_pass(rng, on_cpu, rewritten_graphs, name, jit_compile, tried):
    """By `row_update`, with Keras's numbers; under XLA, which knows no ops of ours, by Keras's ops."""
    for option in [*(OPTIONS if name in THOROUGH else IN_THE_FORMULA)][tried]:
        shapes = [(40, 8192), (70, 3, 2048), (2, 200_000)]  # the last one has too few rows
        ours, truth = ([keras.Variable(rng.normal(size=s).astype("float32")) for s in shapes] for _ in "ab")
        for x, y in zip(ours, truth):
            y.assign(x)
        a, b = make(name, option), make(name, option, truth=True)

        def step(optimizer, variables):
            optimizer.build(variables)

            @tf.function(jit_compile=jit_compile)
            def apply(grads):
                optimizer.apply(grads, variables)

            return apply

        steps = step(a, ours), step(b, truth)
        for _ in range(4):
            dense = [tf.constant(rng.normal(size=s).astype("float32")) for s in shapes]
            for each in steps:
                each(dense)
        assert_close(ours + a.variables, truth + b.variables, 5e-6, option)
        assert a.in_one_pass(ours[0].value) and not a.in_one_pass(ours[2].value)


def test_amsgrad_is_kerass_own():
    optimizer = klo.LazyAdam(amsgrad=True)
    assert not optimizer.in_one_pass(tf.Variable(tf.zeros([64, 8192])))
