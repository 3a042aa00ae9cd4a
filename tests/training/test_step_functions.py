"""The functions that take the steps of `kl.Model`: to the bit those of a `keras.Model`, without Optionals."""

import contextlib
import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from tensorflow.python.framework.func_graph import FuncGraph

import keras_largeout as kl
from keras_largeout.replicas._tensorflow import stop_before_data_goes

pytestmark = pytest.mark.usefixtures("on_cpu")


class Batches(keras.callbacks.Callback):
    """What callbacks see of each call."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, {name: float(value) for name, value in logs.items()}))

    on_test_batch_end = on_train_batch_end


def data(examples, batch=4, **options):
    x = np.random.default_rng(0).normal(size=(examples, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, **options)


def model_of(cls, per_call, devices=1, **options):
    with strategy_of(devices).scope() if devices > 1 else tf.device("CPU:0"):
        keras.utils.set_random_seed(0)
        x = keras.Input((3,))
        hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(5, activation="tanh")(x))
        model = cls(x, keras.layers.Dense(1)(hidden))
        options = {"loss": "mse", "metrics": ["mae"], **options}
        model.compile(keras.optimizers.Adam(0.1), steps_per_execution=per_call, **options)
    return model


def both(act, per_call, **options):
    """Return what `act` returns for a `kl.Model` and for a `keras.Model`, with the values of its weights."""
    found = []
    for cls in (kl.Model, keras.Model):
        model = model_of(cls, per_call, **options)
        result = act(model)
        found.append((result, [v.numpy().tolist() for v in (*model.weights, *model.optimizer.variables)]))
    return found


def fitted(dataset, **arguments):
    def act(model):
        batches = Batches()
        history = model.fit(
            dataset() if callable(dataset) else dataset, verbose=0, callbacks=[batches], **arguments
        )
        return history.history, batches.seen

    return act


CASES = {
    "batches that divide": {"dataset": data(24), "epochs": 2},
    "a smaller last batch": {"dataset": data(22), "epochs": 2},
    "a call that ends early": {"dataset": data(28), "epochs": 2},
    "fewer batches than a call has": {"dataset": data(4), "epochs": 2},
    "an epoch of another length": {"dataset": data(28).repeat(), "epochs": 3, "steps_per_epoch": 4},
    "too few batches": {"dataset": data(12), "epochs": 2, "steps_per_epoch": 5},
    "validation": {"dataset": data(24), "validation_data": data(10), "epochs": 2},
    "class weights": {
        "dataset": data(22).map(lambda x, y: (x, tf.round(y) % 2)),
        "class_weight": {0: 1.0, 1: 3.0},
    },
}


@pytest.mark.parametrize("per_call", [1, 3])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*ran out of data", "ignore:.*interrupting training")
def test_numbers_and_callbacks_of_keras(case, per_call):
    ours, keras_own = both(fitted(**CASES[case]), per_call)
    assert ours == keras_own


@pytest.mark.full
@pytest.mark.parametrize("per_call", [1, 3])
def test_a_length_that_nobody_knows(per_call):
    """A call without a batch counts no step. (In Keras it does, and Adam's next steps are others.)"""
    found = []
    for cls, dataset in ((kl.Model, data(28).filter(lambda x, y: True)), (keras.Model, data(28))):
        model = model_of(cls, per_call)
        history = model.fit(dataset, epochs=3, verbose=0).history
        found.append((history, [v.numpy().tolist() for v in (*model.weights, *model.optimizer.variables)]))
    assert found[0] == found[1]


class Pieces(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        x = np.random.default_rng(index).normal(size=(4, 3)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)


def generated():
    for i in range(5):
        yield Pieces()[i]


@pytest.mark.full
@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize(
    "source",
    [Pieces, generated, lambda: tuple(np.concatenate(part) for part in zip(*generated()))],
    ids=["PyDataset", "generator", "arrays"],
)
def test_data_of_other_kinds(source, per_call):
    def act(model):
        given = source()
        x, y = given if isinstance(given, tuple) else (given, None)
        fit = model.fit(x, y, verbose=0, shuffle=False)
        evaluated = model.evaluate(*(given if isinstance(given, tuple) else (source(),)), verbose=0)
        return fit.history, evaluated

    ours, keras_own = both(act, per_call)
    if source is generated and per_call == 1:  # at its end Keras counts a step without a batch
        keras_own[1][4] = 5
    assert ours == keras_own


@pytest.mark.parametrize("per_call", [1, 3])
def test_evaluated(per_call):
    ours, keras_own = both(lambda model: model.evaluate(data(22), verbose=0, return_dict=True), per_call)
    assert ours == keras_own


def test_single_batches():
    def act(model):
        x, y = next(iter(data(4)))
        return [model.train_on_batch(x, y), model.train_on_batch(x, y), model.test_on_batch(x, y)]

    ours, keras_own = both(act, 1)
    np.testing.assert_array_equal(ours[0], keras_own[0])
    assert ours[1] == keras_own[1]


@pytest.mark.parametrize("per_call", [1, 3])
def test_ragged_batches(per_call):
    bags = tf.ragged.constant([[1, 2], [], [3], [4, 5, 6], [7]] * 4, dtype=tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((bags, np.arange(20.0))).batch(3)

    def trained(cls):
        keras.utils.set_random_seed(0)
        x = keras.Input((None,), ragged=True, dtype="int64")
        table = kl.layers.ShardedEmbedding(9, 4, combiner="sum")
        model = cls(x, keras.layers.Dense(1)(table(x)))
        model.compile(kl.optimizers.Adagrad(0.1), "mse", steps_per_execution=per_call)
        history = model.fit(dataset, epochs=2, verbose=0).history
        return history, table.table.numpy().tolist()

    assert trained(kl.Model) == trained(keras.Model)


@pytest.mark.parametrize("per_call", [1, 3])
def test_logs_of_a_step_of_the_users(per_call):
    """Vectors, numbers of Python, and none at all."""

    class Own(kl.Model):
        def train_step(self, batch):
            self.count.assign_add(1)
            if not self.logs:
                return {}
            return {"vector": tf.reduce_sum(batch[0], axis=1), "seven": 7, "count": self.count}

    inputs = keras.Input((3,))
    for logs in (True, False):
        model = Own(inputs, keras.layers.Dense(1)(inputs))
        model.logs, model.count = logs, tf.Variable(0, trainable=False)
        model.compile("sgd", "mse", steps_per_execution=per_call)
        model.make_train_function()
        batches = iter(data(22))
        last = [model.train_function(batches) for _ in range(-(-6 // per_call))][-1]
        assert model.count.numpy() == 6
        if logs:
            x, _ = list(data(22))[-1]
            np.testing.assert_array_equal(last["vector"], np.sum(x, axis=1))
            assert int(last["seven"]) == 7 and int(last["count"]) == 6
        with pytest.raises((StopIteration, tf.errors.OutOfRangeError)):
            model.train_function(batches)


@pytest.mark.full
@pytest.mark.parametrize("per_call", [1, 3])
def test_errors_of_the_data_and_of_a_step(per_call):
    wrong = data(22).map(lambda x, y: (tf.debugging.check_numerics(x / (x - x), "wrong data"), y))
    for cls in (kl.Model, keras.Model):
        with pytest.raises(tf.errors.InvalidArgumentError, match="wrong data"):
            model_of(cls, per_call).fit(wrong, verbose=0)


@pytest.mark.full
@pytest.mark.parametrize("per_call", [1, 3])
def test_stopped_in_the_middle_of_an_epoch(per_call):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 2

    def act(model):
        return model.fit(data(40), epochs=3, verbose=0, callbacks=[Stop()]).history

    ours, keras_own = both(act, per_call)
    assert ours == keras_own


def test_eagerly():
    ours, keras_own = both(fitted(data(10)), 1, run_eagerly=True)
    assert ours == keras_own


@pytest.mark.full
@pytest.mark.parametrize("per_call", [1, 3])
def test_over_devices(per_call):
    """Keras's own function of several steps fails there in TensorFlow 2.21: it is asked for one."""
    found = []
    for cls, count in ((kl.Model, per_call), (keras.Model, 1)):
        model = model_of(cls, count, devices=2)
        history = model.fit(data(28), epochs=2, validation_data=data(16), verbose=0).history
        found.append((history, [v.numpy().tolist() for v in (*model.weights, *model.optimizer.variables)]))
    assert found[0] == found[1]


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 2])
def test_data_begin_once_per_epoch_where_the_model_is_built(devices):
    begun = []

    def batches():
        begun.append(True)
        yield from ((np.ones((4, 3), "float32"), np.ones((4, 1), "float32")) for _ in range(3))

    shapes = tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=shapes)
    model = model_of(kl.Model, 1, devices=devices)
    model.fit(dataset, verbose=0)
    for loop in (model.fit, model.evaluate):
        begun.clear()
        loop(dataset, verbose=0)
        assert len(begun) == 1


@pytest.mark.parametrize("per_call", [1, 3])
def test_no_result_is_an_optional(per_call):
    """Its kernel is on the CPU: a GPU would be waited for in every step."""
    model = model_of(kl.Model, per_call)
    model.make_train_function()
    model.make_test_function()
    model.make_predict_function()  # Keras's own
    ops = []
    with watched_graphs(ops):
        model.train_function(iter(data(24)))
        model.test_function(iter(data(24)))
        model.predict_function([(x,) for x, _ in data(24)][:per_call])
    assert "IteratorGetNext" in ops or "IteratorGetNextAsOptional" in ops
    assert "OptionalFromValue" not in ops


@contextlib.contextmanager
def watched_graphs(ops):
    """A context in which the types of all ops that are made in graphs are noted in the list `ops`."""
    made = FuncGraph._create_op_internal

    def noted(graph, op_type, *args, **kwargs):
        ops.append(op_type)
        return made(graph, op_type, *args, **kwargs)

    FuncGraph._create_op_internal = noted
    try:
        yield
    finally:
        FuncGraph._create_op_internal = made


def _read_on_two_devices(data):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    iterator = iter(strategy_of(2).experimental_distribute_dataset(data.with_options(options)))
    stop_before_data_goes(iterator)
    iterator.get_next()
    return iterator


@pytest.mark.parametrize("traced", [False, True], ids=["eagerly", "while a graph is traced"])
def test_data_of_an_iterator_are_read_no_more_when_it_goes(traced):
    iterators = [_read_on_two_devices(tf.data.Dataset.range(100).batch(2))]
    reader = iterators[0]._iterators[0]._iterator._multi_device_iterator_resource
    ask = functools.partial(
        tf.raw_ops.MultiDeviceIteratorGetNextFromShard,
        multi_device_iterator=reader,
        shard_num=0,
        output_types=[tf.int64],
        output_shapes=[[None]],
    )
    assert len(ask(incarnation_id=1)) == 1

    def collect():
        iterators.clear()
        gc.collect()

    if traced:  # the graph gets nothing of it
        assert not tf.function(collect).get_concrete_function().graph.get_operations()
    else:
        collect()
    with pytest.raises(tf.errors.InvalidArgumentError, match="incarnation"):
        ask(incarnation_id=1)  # there is another dataset
    with pytest.raises(tf.errors.OutOfRangeError):
        ask(incarnation_id=2)


@pytest.mark.soak
def test_iterators_that_go_in_the_middle_of_a_batch():
    # Without `stop_before_data_goes` TensorFlow 2.21 crashes within a hundred of them.
    def slow(i):
        return tf.reduce_sum(tf.random.stateless_uniform([100_000], [i, i]))

    for _ in range(300):
        _read_on_two_devices(tf.data.Dataset.range(1000).map(slow).batch(2))
