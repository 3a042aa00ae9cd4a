"""Files are complete or not there: full disks, and kills at any moment."""

import contextlib
import errno
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

import keras_largeout as kl
from keras_largeout.files.seal import check_seal
from keras_largeout.files.whole import whole_file

DEAD = 2**22 + 1  # Linux has no process of this number


def make(cls, value=1.0):
    ids = keras.Input((2,), dtype="int32")
    x = keras.layers.Flatten()(kl.layers.ShardedEmbedding(3000, 4)(ids))
    model = cls(ids, keras.layers.Dense(1)(x))
    model.compile(kl.optimizers.Adagrad(0.1), "mse")
    model.set_weights([np.full(w.shape, value, "float32") for w in model.weights])
    return model


def data():
    return np.arange(8).reshape(4, 2), np.ones((4, 1))


@contextlib.contextmanager
def full_disk(size):
    """No file may become larger than `size` bytes: what a full disk is to a program that writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _fail(*args, **kwargs):
    raise OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
@pytest.mark.parametrize("cls", [kl.Model, keras.Model])
def test_a_full_disk_leaves_the_last_file(tmp_path, monkeypatch, cls, name):
    model, path = make(cls), tmp_path / name
    saves = kl.callbacks.ModelCheckpoint(path, save_weights_only=name.endswith("h5"))
    model.fit(*data(), verbose=0, callbacks=[saves])
    before, saved = path.read_bytes(), model.get_weights()

    def fails(number):
        with pytest.raises(OSError) as error:
            model.fit(*data(), verbose=0, callbacks=[saves])
        assert error.value.errno == number
        assert path.read_bytes() == before and os.listdir(tmp_path) == [name]

    with monkeypatch.context() as patch:  # known beforehand: the table and its slot are 96 kB
        patch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=95_000))
        fails(errno.ENOSPC)
    with monkeypatch.context() as patch:
        patch.setattr(keras.layers.Dense, "save_own_variables", _fail)
        fails(errno.ENOSPC)
    if name == "m.keras":  # HDF5 may crash: see `test_killed_in_the_midst_of_a_save`
        for size in (0, 1000, len(before) // 2):
            with full_disk(size):
                fails(errno.EFBIG)
    other = make(cls, 2.0)
    other.load_weights(path)
    for ours, theirs in zip(saved, other.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    model.fit(*data(), verbose=0, callbacks=[saves])  # there is room again
    assert path.read_bytes() != before


def test_sharded_weights(tmp_path, monkeypatch):
    """The files of the old map stay until the new map is there, and then go."""
    path = tmp_path / "m.weights.json"
    sizes = {"max_shard_size": 5e-5}
    keras.Model.save_weights(make(kl.Model, 1.0), path, **sizes)
    for value in (2.0, 3.0):
        make(kl.Model, value).save_weights(path, **sizes)
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(keras.layers.Dense, "save_own_variables", _fail)
            make(kl.Model, 4.0).save_weights(path, **sizes)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
        for cls in (kl.Model, keras.Model):
            again = make(cls, 0.0)
            again.load_weights(path)
            assert all(np.all(w == value) for w in again.get_weights())
    with pytest.warns(UserWarning, match="renamed"):
        keras.Model.save_weights(make(kl.Model), tmp_path / "keras.weights.h5", **sizes)
    make(kl.Model).save_weights(tmp_path / "ours.weights.h5", **sizes)
    assert (tmp_path / "ours.weights.json").exists()


def test_what_a_killed_process_left_is_removed(tmp_path):
    old, new, other = (
        tmp_path / name for name in (f".{DEAD}-m.weights.h5", f".{DEAD}-x.keras.partial", f".{DEAD}-notes")
    )
    running = tmp_path / f".{os.getppid()}-m.weights.h5.partial"
    old.write_text("half"), other.write_text("the user's"), new.mkdir(), running.mkdir()
    (new / "x.keras").write_text("half")
    make(kl.Model).save_weights(tmp_path / "m.weights.h5")
    assert sorted(os.listdir(tmp_path)) == sorted([running.name, other.name, "m.weights.h5"])


def test_the_disk_has_a_file_before_its_name_has(tmp_path, monkeypatch):
    """`fsync` of the new file, then the name, then `fsync` of the folder."""
    path, calls = tmp_path / "m.weights.h5", []
    fsync, replace = os.fsync, os.replace
    name_of = lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(name_of(fd)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    make(kl.Model).save_weights(path)
    assert calls == [path.name, "replace", tmp_path.name]
    assert check_seal(path) == {}


def test_links_and_folders(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link.json"
    real.mkdir()
    link.symlink_to(real / "plan.json")
    for content in "ab":
        with whole_file(link) as path:
            pathlib.Path(path).write_text(content)
        assert link.is_symlink() and (real / "plan.json").read_text() == content
    for content in "ab":
        with whole_file(tmp_path / "folder") as path:
            os.mkdir(path)
            pathlib.Path(path, content).write_text(content)
        assert os.listdir(tmp_path / "folder") == [content]
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "folder") as path:
        os.mkdir(path)
        raise ZeroDivisionError
    assert os.listdir(tmp_path / "folder") == ["b"] and os.listdir(real) == ["plan.json"]


def killed(program, *arguments):
    path = pathlib.Path(__file__).with_name(program)
    done = subprocess.run([sys.executable, path, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    counted = json.loads(done.stdout)
    assert counted["in the midst of a save"] >= counted["kills"] // 4, counted


PACKAGE = pathlib.Path(kl.__file__).parent


@pytest.mark.full
def test_killed_in_the_midst_of_a_save(tmp_path):
    killed("_killed.py", PACKAGE, tmp_path, 20, 1)


@pytest.mark.soak
def test_killed_a_hundred_times(tmp_path):
    killed("_killed.py", PACKAGE, tmp_path, 100, 2)


@pytest.mark.soak
def test_trainings_that_are_killed_go_on(tmp_path):
    killed("_killed_training.py", tmp_path, 8, 3)
