"""What N devices saved M devices load, with the optimizer, and train on as if nothing had happened."""

import os
import pathlib
import re

import keras
import numpy as np
import pytest
from _forked import run
from _memory import need, need_peaks
from _mirrored import DIM, VOCAB, data, fit, model_of, optimizers, state, tables
from _tables import strategy_of
from _training import assert_same, needs_multi_optimizer

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.tables import chunks, placing

klo = kl.optimizers
STEP = 24  # Keras cannot begin with a batch that does not divide evenly
HOT = Placement.by_modulo(VOCAB, 2).with_hot_rows([0, 1, 2, 50])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * DIM * 11)  # several chunks a table
    monkeypatch.setattr(placing, "REPLICATED_BYTES", 0)  # "auto" cuts what is small as well


def accumulating():
    return klo.LazyAdam(0.02, gradient_accumulation_steps=4)  # saved after three steps


def loss_scaled():
    return klo.LossScaleOptimizer(klo.RowWiseAdagrad(0.1), initial_scale=64.0)


def multi():
    choice = keras.optimizers.OptimizerMap(klo.Adagrad(0.1), {"rnn/.*": keras.optimizers.Adam(0.01)})
    return keras.optimizers.MultiOptimizer(choice)


def saved_and_loaded(model, devices, suffix, path, optimizer, placement):
    """A model on `devices` devices from a file of `model`."""
    path = path / f"model{suffix}"
    if suffix == ".weights.h5":
        model.save_weights(path)
        other = model_of(devices, optimizer, placement)
        with strategy_of(devices).scope():
            other.optimizer.build(other.trainable_variables)
        other.load_weights(path)  # outside the scope: the copies of all devices are to be written
        return other
    model.save(path, zipped=suffix == ".keras")
    with strategy_of(devices).scope():
        return keras.models.load_model(path)


# More devices and fewer, from one and to one, and numbers of which none divides the other. A file has the
# rows in logical order, so that nothing more can depend on how many they are.
@pytest.mark.parametrize(
    "before, after, suffix, optimizer, placement",
    [
        (1, 3, ".keras", accumulating, "permutation"),
        pytest.param(3, 2, ".weights.h5", accumulating, "columns", marks=pytest.mark.soak),
        (2, 4, "", loss_scaled, "modulo"),
        pytest.param(2, 1, ".keras", multi, HOT, marks=needs_multi_optimizer),
        (2, 3, ".weights.h5", accumulating, "replicated"),
    ],
    ids=["1-3", "3-2", "2-4", "2-1", "2-3"],
)
def test_other_devices_train_on(before, after, suffix, optimizer, placement, tmp_path):
    model = model_of(before, optimizer, placement)
    fit(model, data(6)[:2], batch=STEP)
    other = saved_and_loaded(model, after, suffix, tmp_path, optimizer, placement)
    for key, values in state(model).items():
        np.testing.assert_array_equal(state(other)[key], values, err_msg=key)
    assert len(tables(other)["kernel"].shards) == (1 if after == 1 else after + 1)  # a top beside the shards
    more = data(4, seed=2)[:2]
    losses = [fit(m, more, batch=STEP) for m in (other, model)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert_same(state(other), state(model))


def test_copies_are_all_loaded(tmp_path):
    model = model_of(3, klo.SGD, "replicated")
    model.save_weights(tmp_path / "model.weights.h5")
    other = model_of(3, klo.SGD, "replicated")
    other.get_layer("words").table.assign(np.zeros((VOCAB, DIM)))
    other.load_weights(tmp_path / "model.weights.h5")
    (part,) = other.get_layer("words").table.shards
    assert len(part.copies) == 3
    for copy in part.copies:
        np.testing.assert_array_equal(copy.numpy(), model.get_layer("words").table.numpy())


def test_accumulated_rows_are_those_of_one_device(tmp_path):
    kept = []
    for devices, placement in ((1, "auto"), (3, "columns"), (3, "permutation")):
        model = model_of(devices, accumulating, placement)
        fit(model, data(1)[:2])
        store = {}
        (optimizer,) = optimizers(model)
        optimizer._row_slots.save(store)
        numbers = {key.removesuffix("_indices") for key in store if key.endswith("_indices")}
        sums = {}
        for key in numbers:
            shape = (max(t.shape[0] for t in tables(model).values()), *store[f"{key}_values"].shape[1:])
            sums[key] = np.zeros(shape)
            np.add.at(sums[key], store[f"{key}_indices"], store[f"{key}_values"])
        kept.append({key: values for key, values in sums.items() if values.any()})
    assert len(kept[0]) == 3  # words, kernel, bias
    for other in kept[1:]:
        for mine, theirs in zip(sorted(other), sorted(kept[0]), strict=True):
            np.testing.assert_allclose(other[mine], kept[0][theirs], rtol=1e-4, atol=1e-7)


_STREAM = """
import sys
import keras, numpy as np, tensorflow as tf
import keras_largeout as kl
from _memory import peak_of

strategy = kl.distribute.strategy(4)
placement = kl.distribute.Placement.by_modulo(600_000, 4).with_hot_rows(np.arange(1000))
with strategy.scope():
    ids = keras.Input((3,), dtype="int32")
    rows = kl.layers.ShardedEmbedding(600_000, 256, "ones", placement=placement, combiner="sum")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(kl.optimizers.SGD(0.1), "mse")
model.fit(np.arange(12).reshape(4, 3), np.ones((4, 1)), verbose=0)
path = sys.argv[1] + "/model.weights.h5"
print(peak_of(lambda: model.save_weights(path)))
print(peak_of(lambda: model.load_weights(path)))
print(peak_of(lambda: kl.export_saved_model(model, sys.argv[1] + "/export")))
"""


def test_files_are_streamed(tmp_path):
    """A table of 600 MB, in a fresh process: TensorFlow keeps what it has freed.

    Each of its four parts is larger than what saving and loading may take.
    """
    need_peaks()
    need(4)
    tests = str(pathlib.Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ["PYTHONPATH"]])
    code, printed = run(["-c", _STREAM, tmp_path], {**os.environ, "PYTHONPATH": path})
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.unlink()  # pytest would keep 1.2 GB
    assert code == 0, printed
    saving, loading, exporting = map(int, re.findall(r"^\d+$", printed, re.M))
    assert saving < 128 and loading < 128 and exporting < 256  # MB
