"""One table of optimizers that pass the same tests: dense weights as in Keras, rows as in the reference."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import one_shard

import keras_largeout.optimizers as klo
from keras_largeout.distribute.tables.shard import ShardVariable
from keras_largeout.ops import row_update as ru

# name -> (ours, the optimizer whose dense path is the truth, arguments)
OPTIMIZERS = {
    "sgd": (klo.SGD, keras.optimizers.SGD, {}),
    "momentum": (klo.SGD, keras.optimizers.SGD, {"momentum": 0.9}),
    "nesterov": (klo.SGD, keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (klo.Adagrad, keras.optimizers.Adagrad, {}),
    "row_wise_adagrad": (klo.RowWiseAdagrad, klo.RowWiseAdagrad, {}),
    "lazy_adam": (klo.LazyAdam, keras.optimizers.Adam, {}),
    "ftrl": (
        klo.Ftrl,
        keras.optimizers.Ftrl,
        {"l1_regularization_strength": 0.01, "l2_shrinkage_regularization_strength": 0.01, "beta": 0.1},
    ),
}
OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.3},
    "weight_decay": {"weight_decay": 0.1},
    "accumulation": {"gradient_accumulation_steps": 3, "clipnorm": 1.0},
    "loss_scale": {"loss_scale_factor": 1024.0},
    "schedule": {"learning_rate": keras.optimizers.schedules.PolynomialDecay(0.1, 5, 0.01)},
}
ROWS, DIM = 23, 7
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make(name, option="plain", truth=False):
    ours, keras_one, arguments = OPTIMIZERS[name]
    return (keras_one if truth else ours)(**{"learning_rate": 0.1, **arguments, **OPTIONS[option]})


def weights(rng_seed=1, table=keras.Variable):
    rng = np.random.default_rng(rng_seed)
    values = [rng.normal(size=shape).astype("float32") for shape in [(ROWS, DIM), (ROWS,), (DIM, 3), ()]]
    first = [keras.Variable(v) if table is keras.Variable else _shard(v) for v in values[:2]]
    return first + [keras.Variable(v) for v in values[2:]]


def _shard(values):
    shard = one_shard(values.shape, "zeros", name="table")
    shard.assign(values)
    return shard


def gradients(rng, touched=None, dtype="float32"):
    """Gradients of `weights()`, as slices with duplicates for the first two, and the same ones dense."""

    def draw(shape):
        return tf.cast(rng.normal(size=shape).astype("float32"), dtype)

    # Every row at least once, unless told otherwise, so that lazy and dense updates are the same thing.
    touched = np.concatenate([np.arange(ROWS), rng.integers(0, ROWS, 30)]) if touched is None else touched
    indices = rng.permutation(touched)
    sparse, dense = [], []
    for shape in [(ROWS, DIM), (ROWS,)]:
        values = draw((len(indices),) + shape[1:])
        total = np.zeros(shape, "float32")
        np.add.at(total, indices, tf.cast(values, tf.float32).numpy())
        sparse.append(tf.IndexedSlices(values, tf.constant(indices), tf.constant(shape, tf.int64)))
        dense.append(tf.constant(total))
    others = [draw(shape) for shape in [(DIM, 3), ()]]
    return sparse + others, dense + [tf.cast(g, tf.float32) for g in others]


def compiled_step(optimizer, variables):
    return tf.function(lambda grads: optimizer.apply_gradients(zip(grads, variables)))


def assert_close(ours, truth, tolerance=2e-6, message=""):
    for a, b in zip(ours, truth):
        a, b = keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=message)


@every_optimizer
def test_dense_gradients_are_kerass_own_path(rng, name):
    for option in OPTIONS:
        ours, truth = weights(), weights()
        a, b = make(name, option), make(name, option, truth=True)
        for _ in range(5):
            _, dense = gradients(rng)
            a.apply_gradients(zip(dense, ours))
            b.apply_gradients(zip(dense, truth))
        for x, y in zip(ours + a.variables, truth + b.variables):
            np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=option)


@pytest.mark.parametrize("table", [keras.Variable, ShardVariable])
@every_optimizer
def test_rows_are_dense_updates_where_every_row_is_touched(rng, name, table):
    for option in OPTIONS:
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
def test_rows_equal_the_reference(rng, name):
    """Some rows only: lazy updates have no Keras counterpart, so the op's NumPy reference is the truth."""
    optimizer, variables = make(name, "weight_decay"), weights()
    optimizer.build(variables)
    table = variables[0].numpy()
    rule, slots = optimizer.row_rule, [slot.numpy() for slot in optimizer.slots_of(variables[0])]
    for step in range(5):
        sparse, _ = gradients(rng, touched=np.array([3, 5, 5, 20, 3, step]))
        hyper = optimizer.row_hyper(0.1, 0.01).numpy()
        table, slots = ru.row_update_reference(
            rule, table, slots, sparse[0].indices.numpy(), sparse[0].values.numpy(), hyper
        )
        optimizer.apply(sparse, variables)
    assert_close([variables[0], *optimizer.slots_of(variables[0])], [table, *slots])
    untouched = np.setdiff1d(np.arange(ROWS), [0, 1, 2, 3, 4, 5, 20])
    np.testing.assert_array_equal(variables[0].numpy()[untouched], weights()[0].numpy()[untouched])


@every_optimizer
def test_row_wise_slots_and_memory(name):
    optimizer, variables = make(name), weights(table=ShardVariable)
    optimizer.build(variables)
    for slot in optimizer.slots_of(variables[0]):
        assert isinstance(slot, ShardVariable)
        assert tuple(slot.shape) == ((ROWS,) if name == "row_wise_adagrad" else (ROWS, DIM))
    assert not any(isinstance(v, ShardVariable) for v in optimizer.variables)


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


@every_optimizer
@pytest.mark.parametrize("jit_compile", [False, True])
def test_large_dense_weights_take_one_pass(rng, name, jit_compile):
    """By `row_update`, with Keras's numbers; under XLA, which knows no ops of ours, by Keras's ops."""
    for option in OPTIONS:
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


@pytest.mark.parametrize(
    ("device", "expected"), [("", True), ("/job:ps/device:CPU:1", True), ("/device:GPU:0", False)]
)
def test_weights_on_a_gpu_are_not_updated_in_one_pass(device, expected):
    weight = SimpleNamespace(dtype=tf.float32, shape=tf.TensorShape([64, 8192]), device=device)
    assert klo.SGD().in_one_pass(weight) == expected


def test_amsgrad_is_kerass_own():
    optimizer = klo.LazyAdam(amsgrad=True)
    assert not optimizer.in_one_pass(tf.Variable(tf.zeros([64, 8192])))
