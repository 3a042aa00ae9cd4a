"""`kl.callbacks.BackupAndRestore` of any model: what a kill leaves is enough to go on."""

import contextlib
import json
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.files.checksum import note_of

EPOCHS = 4


class Stop(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    """Ends training at the beginning of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch, self.seen = epoch, []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(epoch)
        if epoch == self.epoch:
            raise Stop


def make(cls):
    keras.utils.set_random_seed(1)
    ids = keras.Input((2,), dtype="int32")
    x = keras.layers.Flatten()(kl.layers.ShardedEmbedding(30, 4)(ids))
    model = cls(ids, keras.layers.Dense(1)(x))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    return model


def train(cls, folder, stop=EPOCHS, **kwargs):
    """A script that is started: the model, and the epochs that it began."""
    model, stops = make(cls), StopAt(stop)
    backup = kl.callbacks.BackupAndRestore(folder, delete_checkpoint=False, **kwargs)
    x = np.arange(40).reshape(20, 2) % 30
    callbacks = [backup, stops]
    with contextlib.suppress(Stop):
        model.fit(x, x.sum(1), batch_size=5, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    return model, stops.seen


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(keras.Model, tmp_path_factory.mktemp("whole"))[0].get_weights()


def assert_same(model, undisturbed):
    for ours, theirs in zip(model.get_weights(), undisturbed):
        np.testing.assert_array_equal(ours, theirs)


LEFT = "", '{"epoch": 1, "batch": 0}', None


@pytest.mark.full
@pytest.mark.parametrize("cls, left", [(kl.Model, ""), *((keras.Model, left) for left in LEFT)])
def test_killed_between_the_weights_and_the_epoch(tmp_path, undisturbed, cls, left):
    """Keras writes the number of the epoch to its own file, later: empty, old, or not there."""
    train(cls, tmp_path / "backup", stop=2)
    epoch = tmp_path / "backup/training_metadata.json"
    assert note_of(tmp_path / "backup/latest.weights.h5") == json.loads(epoch.read_text())
    if left is None:
        epoch.unlink()
    else:
        epoch.write_text(left)
    model, epochs = train(cls, tmp_path / "backup")
    assert epochs == [2, 3]
    assert_same(model, undisturbed)


@pytest.mark.parametrize("cls, double", [(kl.Model, True), (keras.Model, True), (keras.Model, False)])
def test_a_damaged_backup(tmp_path, undisturbed, cls, double):
    train(cls, tmp_path / "backup", stop=2, double_checkpoint=double)
    latest = tmp_path / "backup/latest.weights.h5"
    content = bytearray(latest.read_bytes())
    content[len(content) // 2] ^= 1
    latest.write_bytes(content)
    if not double:
        with pytest.raises(OSError, match=r"latest\.weights\.h5 is damaged: its bytes 0 \.\. \d+ must have"):
            train(cls, tmp_path / "backup")
        return
    model, epochs = train(cls, tmp_path / "backup", double_checkpoint=True)
    assert epochs == [1, 2, 3]
    assert_same(model, undisturbed)


@pytest.mark.parametrize("cls", [kl.Model, keras.Model])
def test_a_backup_of_keras_is_restored(tmp_path, cls):
    model = make(cls)
    model.optimizer.build(model.trainable_variables)
    os.mkdir(tmp_path / "backup")
    keras.Model.save_weights(model, tmp_path / "backup/latest.weights.h5")
    (tmp_path / "backup/training_metadata.json").write_text('{"epoch": 3, "batch": 0}')
    assert train(cls, tmp_path / "backup")[1] == [3]


def test_every_few_batches(tmp_path):
    """The epoch is that of the batch, also after a restart in the middle of one."""
    train(keras.Model, tmp_path / "backup", stop=2, save_freq=3)
    note = note_of(tmp_path / "backup/latest.weights.h5")
    assert {key: note[key] for key in ("epoch", "batch", "done")} == {"epoch": 1, "batch": 1, "done": 2}
    _, epochs = train(keras.Model, tmp_path / "backup", stop=2, save_freq=3)
    assert epochs == [1, 2]
    assert note_of(tmp_path / "backup/latest.weights.h5")["epoch"] == 1
    backup = kl.callbacks.BackupAndRestore(tmp_path / "gone")
    make(keras.Model).fit(np.ones((2, 2), int), np.ones(2), epochs=5, verbose=0, callbacks=[backup])
    assert not os.path.exists(tmp_path / "gone")


def test_killed_before_the_first_backup(tmp_path, caplog):
    """Tables in files begin again, where the killed process had made them. Others stay refused."""

    def model_in(folder):
        keras.utils.set_random_seed(1)
        ids = keras.Input((2,), dtype="int32")
        rows = kl.layers.ShardedEmbedding(30, 4, name="rows", storage=f"file:{folder}")(ids)
        model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
        model.compile(kl.optimizers.LazyAdam(0.1), "mse")
        return model

    def fit(model, **kwargs):
        model.fit(x, x.sum(1), batch_size=5, shuffle=False, verbose=0, **kwargs)
        return model.get_layer("rows").table.numpy()

    def killed(model, folder):
        """Leave in `folder` what a kill of the process would leave."""
        shutil.copytree(model.get_layer("rows").table.folder.path, folder / "rows")

    x, backup = np.arange(40).reshape(20, 2) % 30, kl.callbacks.BackupAndRestore(tmp_path / "backup")
    first = model_in(tmp_path / "a")
    expected = fit(first)
    killed(first, tmp_path / "b")
    with pytest.raises(OSError, match="was not closed"):
        fit(model_in(tmp_path / "b"))
    again = model_in(tmp_path / "b")
    np.testing.assert_array_equal(fit(again, callbacks=[backup]), expected)
    assert "begin again" in caplog.text
    kl.close_files(again)

    second = model_in(tmp_path / "b")
    fit(second)
    killed(second, tmp_path / "c")
    with pytest.raises(OSError, match="was not closed"):
        fit(model_in(tmp_path / "c"), callbacks=[backup])


class StopAfter(keras.callbacks.Callback):
    """Ends training after so many steps, as a kill does."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= bool(logs)
        if logs and not self.steps:
            raise Stop


class Data(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[4 * index : 4 * index + 4], X[4 * index : 4 * index + 4].sum(1)


X = np.arange(40).reshape(20, 2) % 30


def train_on(cls, data, folder=None, after=0, at_once=1):
    """A model that was trained for 2 epochs of 5 steps, or backed up and stopped after some of them."""
    model = make(cls)
    model.compile(kl.optimizers.LazyAdam(SCHEDULE), "mse", steps_per_execution=at_once)
    keras.utils.set_random_seed(5)
    dataset = tf.data.Dataset.from_tensor_slices((X, X.sum(1))).batch(4)
    args, kwargs = {
        "arrays": ((X, X.sum(1)), {"batch_size": 4, "shuffle": False}),
        "shuffled arrays": ((X, X.sum(1)), {"batch_size": 4}),
        "PyDataset": ((Data(),), {"shuffle": False}),
        "shuffled PyDataset": ((Data(),), {}),
        "Dataset": ((dataset,), {}),
        "endless Dataset": ((dataset.repeat(),), {"steps_per_epoch": 5}),
    }[data]
    callbacks = [StopAfter(after)]
    if folder is not None:
        often = after or 1000
        callbacks.insert(0, kl.callbacks.BackupAndRestore(folder, save_freq=often, delete_checkpoint=False))
    with contextlib.suppress(Stop):
        model.fit(*args, **kwargs, epochs=2, verbose=0, callbacks=callbacks)
    return model


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
KNOWN = "arrays", "shuffled arrays", "PyDataset"
OTHERS = "shuffled PyDataset", "Dataset", "endless Dataset"


@pytest.mark.full
@pytest.mark.parametrize(
    "cls, data, after",
    [
        *((kl.Model, data, 3) for data in (*KNOWN, *OTHERS)),
        (kl.Model, "shuffled arrays", 8),
        (kl.Model, "Dataset", 5),
        (keras.Model, "arrays", 3),
    ],
)
def test_goes_on_behind_the_last_batch(tmp_path, caplog, cls, data, after):
    """As many steps wherever it was killed, and the same ones where the order is the same."""
    train_on(cls, data, tmp_path, after)
    caplog.clear()
    model = train_on(cls, data, tmp_path)
    assert int(model.optimizer.iterations) == 10
    if data != "shuffled PyDataset":
        assert_same(model, train_on(cls, data).get_weights())
    known = after == 5 or (cls is kl.Model and data in KNOWN)
    assert ("some batches may be repeated and others skipped" in caplog.text) == (not known)


def test_another_order_is_said(tmp_path, caplog):
    train_on(kl.Model, "shuffled arrays", tmp_path, 8)
    train_on(kl.Model, "arrays", tmp_path)
    assert "in epoch 2 after 3 batches" in caplog.text


def test_several_steps_at_once(tmp_path):
    """Five batches are two and two and one."""
    train_on(kl.Model, "arrays", tmp_path, 2, at_once=2)
    model = train_on(kl.Model, "arrays", tmp_path, at_once=2)
    assert int(model.optimizer.iterations) == 10
    assert_same(model, train_on(kl.Model, "arrays", at_once=2).get_weights())
