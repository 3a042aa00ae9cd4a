"""Several steps per call where nobody has said how many: the same training, in fewer calls."""

import itertools
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from training.test_step_functions import Batches, data, model_of

import keras_largeout as kl
from keras_largeout.training import auto_steps

pytestmark = pytest.mark.usefixtures("on_cpu")


class Calls(keras.callbacks.ProgbarLogger):
    """The last step of each call, beside a progress bar that shows nothing."""

    def on_train_begin(self, logs=None):
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_begin(self, batch, logs=None):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1].append(batch)

    def on_epoch_end(self, epoch, logs=None):
        pass


@pytest.fixture
def at_once(monkeypatch):
    """A clock by which every call takes 2.5 ms. Calls should take 10, which is chosen after the third one."""
    clock = itertools.count(0, 0.0025)
    monkeypatch.setattr(auto_steps, "perf_counter", lambda: next(clock))  # asked twice per call
    monkeypatch.setattr(auto_steps, "_WATCHED", 0.0)
    monkeypatch.setattr(auto_steps, "_CALL", 0.01)


def fitted(model, dataset, callbacks=(), **arguments):
    calls = Calls()
    history = model.fit(dataset, verbose=0, callbacks=[calls, *callbacks], **arguments).history
    return calls.epochs, (history, [v.numpy().tolist() for v in (*model.weights, *model.optimizer.variables)])


def by_keras(dataset, **arguments):
    return fitted(model_of(keras.Model, 1), dataset, **arguments)[1]


def auto(cls=kl.Model, **options):
    model = model_of(cls, 1, **options)
    model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])  # nobody says how many
    return model


def test_numbers_of_keras_in_fewer_calls(at_once):
    dataset = data(60)
    epochs, trained = fitted(auto(), dataset, epochs=2)
    # A call took 2.5 ms: after three of them, those of 4 steps; then 4 steps took 2.5 ms, and so on.
    assert epochs[0][:3] == [0, 1, 2] and epochs[0][-1] == 14 and len(epochs[0]) < 10
    assert [epoch[-1] for epoch in epochs] == [14, 14] and len(epochs[1]) < 4
    assert trained == by_keras(dataset, epochs=2)


def test_auto_is_a_name_of_the_default(at_once, tmp_path):
    by_name, by_position = auto(), auto()
    by_name.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], steps_per_execution="auto")
    by_position.compile(keras.optimizers.Adam(0.1), "mse", None, ["mae"], None, False, "auto")
    by_name.save(tmp_path / "m.keras")
    for model in (by_name, by_position):
        epochs, trained = fitted(model, data(60))
        assert len(epochs[0]) < 10
        assert trained == by_keras(data(60))
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.get_compile_config()["steps_per_execution"] == 1  # which Keras can load, too
    assert len(fitted(loaded, data(60))[0][0]) < 10
    by_name.compile("sgd", "mse", steps_per_execution=1)
    assert fitted(by_name, data(60))[0] == [list(range(15))]


def test_another_string_is_refused_as_by_keras():
    for cls in (kl.Model, keras.Model):
        with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
            model_of(cls, "all").fit(data(8), verbose=0)


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": data(28).repeat(), "epochs": 3, "steps_per_epoch": 5},
        {"dataset": data(58), "epochs": 2, "validation_data": data(10)},
        {"dataset": data(20), "epochs": 2, "steps_per_epoch": 9},
    ],
    ids=["an epoch of another length", "validation", "too few batches"],
)
@pytest.mark.filterwarnings("ignore:.*ran out of data", "ignore:.*interrupting training")
def test_other_epochs(at_once, arguments):
    assert fitted(auto(), **arguments)[1] == by_keras(**arguments)


@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_a_length_that_nobody_knows(at_once):
    """When to stop is known after the first epoch."""
    epochs, trained = fitted(auto(), data(57).filter(lambda x, y: True), epochs=3)
    assert epochs[0] == list(range(15)) and len(epochs[2]) < 8
    assert trained == by_keras(data(57), epochs=3)


def test_ends_of_epochs_come_when_the_epoch_has_ended(at_once):
    """A `PyDataset` may change what it has, and must not do so before its last batch is trained on."""

    class Pieces(keras.utils.PyDataset):
        epoch = 0

        def __len__(self):
            return 20

        def __getitem__(self, index):
            x = np.random.default_rng([self.epoch, index]).normal(size=(4, 3)).astype("float32")
            return x, x.sum(axis=1, keepdims=True)

        def on_epoch_end(self):
            self.epoch += 1

    epochs, trained = fitted(auto(), Pieces(), epochs=3, shuffle=False)
    assert len(epochs[2]) < 10
    assert trained == by_keras(Pieces(), epochs=3, shuffle=False)


class OwnBatch(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        pass


@pytest.mark.full
@pytest.mark.parametrize(
    "callback",
    [
        Batches,
        OwnBatch,
        lambda: keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
        keras.callbacks.TerminateOnNaN,
    ],
    ids=["begin and end", "the old names", "lambda", "NaN"],
)
def test_callbacks_that_want_every_batch_get_it(at_once, callback):
    epochs, _ = fitted(auto(), data(60), [callback()])
    assert epochs == [list(range(15))]


def test_who_wants_every_batch(tmp_path):
    wants, callbacks = auto_steps.wants_every_batch, keras.callbacks
    for made in (
        callbacks.History(),
        callbacks.EarlyStopping(),
        callbacks.CSVLogger(tmp_path / "log"),
        callbacks.LearningRateScheduler(lambda epoch: 0.1),
        callbacks.ModelCheckpoint(tmp_path / "a.keras"),
        kl.callbacks.ModelCheckpoint(tmp_path / "a.keras"),
        kl.callbacks.BackupAndRestore(tmp_path / "b"),
        kl.callbacks.LoadBalance(),
    ):
        assert not wants(made), made
    for made in (
        callbacks.ModelCheckpoint(tmp_path / "a.keras", save_freq=3),
        kl.callbacks.BackupAndRestore(tmp_path / "b", save_freq=3),
        callbacks.TensorBoard(tmp_path / "t"),
    ):
        assert wants(made), made


@pytest.mark.full
def test_who_says_how_many_gets_it(at_once, tmp_path):
    said = model_of(kl.Model, 1)  # `steps_per_execution=1`
    assert fitted(said, data(60))[0] == [list(range(15))]
    said = model_of(kl.Model, 3)
    assert fitted(said, data(60))[0] == [[2, 5, 8, 11, 14]]
    eager = auto()
    eager.compile("sgd", "mse", run_eagerly=True)
    assert fitted(eager, data(60))[0] == [list(range(15))]

    class Own(kl.Model):
        def make_train_function(self, force=False):
            super().make_train_function(force)
            whole = self.train_function
            self.train_function = lambda batches: whole(iter([next(batches)]))

    epochs, trained = fitted(auto(Own), data(60))
    assert epochs == [list(range(15))] and trained == by_keras(data(60))
    auto().save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert len(fitted(loaded, data(60))[0][0]) < 10


@pytest.mark.full
def test_batches_that_a_backup_has_done_are_passed_by(at_once, tmp_path):
    """One by one: another function stands in for ours meanwhile."""

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 10:
                raise KeyboardInterrupt

    def fit(model, folder, *callbacks, **options):
        backup = kl.callbacks.BackupAndRestore(folder, **options)
        model.fit(x, y, 4, epochs=2, shuffle=False, verbose=0, callbacks=[backup, *callbacks])
        return [weight.numpy().tolist() for weight in model.weights]

    x, y = next(data(60, batch=60).as_numpy_iterator())
    with pytest.raises(KeyboardInterrupt):
        fit(auto(), tmp_path / "a", Killed(), save_freq=8)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    calls = Calls()
    trained = fit(auto(), tmp_path / "a", calls)
    assert calls.epochs[0][:10] == list(range(10)) and len(calls.epochs[1]) < 8
    assert trained == fit(model_of(kl.Model, 1), tmp_path / "b")  # one step per call


def test_slow_steps_are_taken_one_by_one(monkeypatch):
    clock = itertools.count(0, 0.011)  # 11 ms per step
    monkeypatch.setattr(auto_steps, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(auto_steps, "_WATCHED", 0.0)
    assert fitted(auto(), data(60))[0] == [list(range(15))]


@pytest.mark.full
def test_over_devices(at_once):
    dataset = data(56)
    model = model_of(kl.Model, 1, devices=2)
    with model.distribute_strategy.scope():
        model.compile(keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])
    epochs, trained = fitted(model, dataset, epochs=2)
    assert len(epochs[1]) < 8
    other = model_of(keras.Model, 1, devices=2)
    assert trained == fitted(other, dataset, epochs=2)[1]


def test_a_step_that_fails_leaves_no_number_behind(at_once):
    model = auto()
    wrong = data(60).map(lambda x, y: (tf.debugging.check_numerics(x / (x - x), "wrong data"), y))
    with pytest.raises(tf.errors.InvalidArgumentError, match="wrong data"):
        model.fit(wrong, verbose=0)
    x, y = next(iter(data(4)))
    before = int(model.optimizer.iterations)
    model.train_on_batch(x, y)
    assert int(model.optimizer.iterations) == before + 1
