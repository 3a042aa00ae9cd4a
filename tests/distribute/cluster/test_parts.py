"""What a step and a prediction on a cluster are made of, without a cluster."""

from concurrent.futures import Future

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.distribute.cluster.local_state import LocalState, nothing_added
from keras_largeout.distribute.cluster.steps import PrefetchedPredictions, _all_counters
from keras_largeout.training import strategy_steps


@pytest.mark.parametrize("steps", [None, 0, 1, 4, 9])
@pytest.mark.parametrize("limit", [1, 3, 20])
def test_ahead_reads_in_order_and_no_further_than_asked(steps, limit):
    read, submitted = [], []

    def batches():
        for i in range(7):
            read.append(i)
            yield (tf.constant(i),)

    def submit(batch):
        submitted.append(int(batch[0]))
        answer = Future()
        answer.set_result(submitted[-1])
        return answer

    found = []
    for answer in PrefetchedPredictions(batches(), submit, steps, limit):
        found.append(answer.result())
        assert len(submitted) - len(found) <= limit
    wanted = list(range(7))[:steps]
    assert found == submitted == read == wanted


def test_local_state_keeps_its_own_and_writes_what_is_not():
    added, counter, other = keras.Variable(5.0), keras.Variable(7, dtype="int64"), keras.Variable([1.0, 2.0])

    @tf.function
    def step():
        state = nothing_added([added])
        for _ in range(2):
            with LocalState([added], state, [counter]) as local:
                added.assign(added + 1.0)
                counter.assign(counter + 1)
                other.assign(other * 2.0)
                other.assign(other + added)
            state = local.results()
            counts.append(tf.identity(counter.value))
        return state, counts

    counts = []
    (found,), counted = step()
    assert float(found) == 2.0  # it started at zero
    assert float(added.value) == 5.0 and int(counter.value) == 9
    assert [int(count) for count in counted] == [8, 9]  # whoever reads the variable sees each step
    np.testing.assert_array_equal(other.value, [8.0, 12.0])


def test_steps_count_for_all_optimizers():
    """For the model's own, that of a head, and those of two tables."""
    tables = [kl.layers.TableConfig(name, 9, 4, optimizer=name) for name in ("sgd", "adam")]
    embedding = kl.layers.DistributedEmbedding([kl.layers.FeatureConfig(t.name, t) for t in tables])
    head, ids = kl.layers.FullSoftmax(9, optimizer="sgd"), [keras.Input((), dtype="int32") for _ in tables]
    model = kl.Model(ids, head(keras.layers.add(embedding(ids))))
    model.compile("adam", head.loss)
    optimizers = [model.optimizer, head.optimizer, *embedding.optimizers]
    assert {id(v) for v in _all_counters(model)} == {id(optimizer.iterations) for optimizer in optimizers}
    assert len(optimizers) == 4


def test_functions_of_a_process_and_of_a_cluster_replace_each_other(monkeypatch):
    """A model that was made outside of the scope predicts outside, then inside, and outside again."""

    class OfCluster:
        def __init__(self, *args, **kwargs):
            pass

    def functions():
        found = [model.make_train_function(), model.make_test_function(), model.make_predict_function()]
        return [isinstance(function, OfCluster) for function in found]

    for name in ("Steps", "Predictions"):
        monkeypatch.setattr(strategy_steps, name, OfCluster)
    model = kl.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    assert functions() == [False] * 3
    with monkeypatch.context() as inside:
        inside.setattr(type(model), "_cluster_strategy", object())
        assert functions() == [True] * 3
    assert functions() == [False] * 3
