"""Files are complete or not there: full disks, and kills at any moment."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
import types

import keras
import numpy as np
import pytest

import keras_largeout as kl
from keras_largeout.files import atomic_write, model_files
from keras_largeout.files.atomic_write import whole_file
from keras_largeout.files.checksum import verify_checksum

PACKAGE = pathlib.Path(kl.__file__).parent


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
    if name == "m.keras":  # Python 3.12.1 fails in `load_weights` of a Keras model (cpython issue 128131)
        other = keras.models.load_model(path)
    else:
        other = make(cls, 2.0)
        other.load_weights(path)
    for ours, theirs in zip(saved, other.get_weights(), strict=True):
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


def test_what_a_killed_process_left_is_removed(tmp_path, monkeypatch):
    """That of another machine, whose locks may be unknown here, when it has not been renewed for long."""

    def left(at, boot=atomic_write._BOOT):
        with monkeypatch.context() as patch:
            patch.setattr(atomic_write, "_BOOT", boot)
            patch.setattr(atomic_write, "_clear", lambda outer, inner, lock: os.close(lock))
            with whole_file(tmp_path / "m") as path:
                pathlib.Path(path).write_text("half")
        outer = pathlib.Path(path).parents[1]
        os.utime(outer / "lock", (at, at))
        return outer.name

    now = time.time()
    removed = {left(now), left(now - 1000, "01234567")}
    kept = {left(now, "01234567"), ".4194305-m.partial"}
    (tmp_path / ".4194305-m.partial").mkdir()
    assert removed | kept == set(os.listdir(tmp_path)) - {"m"}
    make(kl.Model).save_weights(tmp_path / "m.weights.h5")
    assert set(os.listdir(tmp_path)) == {*kept, "m", "m.weights.h5"}


def _no_locks(*arguments):
    raise OSError(errno.ENOLCK, "no locks")


@pytest.mark.parametrize("boot", [atomic_write._BOOT, "01234567"])
@pytest.mark.parametrize("locks", [True, False])
def test_several_processes_save_into_one_folder(tmp_path, monkeypatch, locks, boot):
    """Others that save have no number of a process here; nor need the file system have locks."""
    if not locks:
        monkeypatch.setattr(fcntl, "flock", _no_locks)
    monkeypatch.setattr(atomic_write, "_RENEWED", 0.01)
    with whole_file(tmp_path / "a") as path:
        pathlib.Path(path).write_text("first")
        lock = pathlib.Path(path).parents[1] / "lock"
        os.utime(lock, (0, 0))
        while lock.stat().st_mtime == 0:
            time.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(atomic_write, "_BOOT", boot)
            for name in "ab":
                with whole_file(tmp_path / name) as other:
                    pathlib.Path(other).write_text("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first" and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_two_processes_save_one_map(tmp_path, monkeypatch):
    """At any moment of one save, the other one begins and ends."""
    path, sizes = tmp_path / "m.weights.json", {"max_shard_size": 5e-5}
    put = model_files.put
    for moment in range(4):
        calls = itertools.count()

        def saves_between(new, name, calls=calls, moment=moment):
            if next(calls) == moment:
                make(kl.Model, 7.0).save_weights(path, **sizes)
                assert again() == {7.0}
            put(new, name)

        def again():
            model = make(kl.Model, 0.0)
            model.load_weights(path)
            return {float(value) for w in model.get_weights() for value in np.unique(w)}

        with monkeypatch.context() as patch:
            patch.setattr(model_files, "put", saves_between)
            make(kl.Model, float(moment)).save_weights(path, **sizes)
        assert again() in ({float(moment)}, {7.0})  # whose map came last
        assert {p.name for p in tmp_path.glob("m-*")} <= model_files._named(path)


SAVES = """
import os, sys, time, types
package, path, waits = sys.argv[1:]
sys.modules["keras_largeout"] = types.ModuleType("keras_largeout")  # without TensorFlow
sys.modules["keras_largeout"].__path__ = [package]
from keras_largeout.files.atomic_write import whole_file
with whole_file(path) as new:
    open(new, "w").write(f"process {os.getpid()}")
    print("writes", flush=True)
    while waits and not os.path.exists(waits):
        time.sleep(0.01)
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["a", "b"])
def test_containers_save_into_one_folder(tmp_path, name):
    """Each has a process 1, as containers do."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("processes may not have numbers of their own here")

    def start(name, waits):
        command = [*alone, sys.executable, "-c", SAVES, PACKAGE, tmp_path / name, waits]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)

    first = start("a", tmp_path / "enough")
    assert first.stdout.readline() == "writes\n"
    assert start(name, "").wait(60) == 0
    assert (tmp_path / name).read_text() == "process 1"
    (tmp_path / "enough").touch()
    assert first.wait(60) == 0
    assert (tmp_path / "a").read_text() == "process 1"
    assert set(os.listdir(tmp_path)) == {"a", name, "enough"}


def test_the_disk_has_a_file_before_its_name_has(tmp_path, monkeypatch):
    """`fsync` of the new file, then the name, then `fsync` of the folder."""
    path, calls = tmp_path / "m.weights.h5", []
    fsync, replace = os.fsync, os.replace
    name_of = lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(name_of(fd)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    make(kl.Model).save_weights(path)
    assert calls == [path.name, "replace", tmp_path.name]
    assert verify_checksum(path) == {}


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
    assert counted["in the middle of a save"] >= counted["kills"] // 4, counted


@pytest.mark.full
def test_killed_in_the_midst_of_a_save(tmp_path):
    killed("_killed.py", PACKAGE, tmp_path, 20, 1)


@pytest.mark.soak
def test_killed_a_hundred_times(tmp_path):
    killed("_killed.py", PACKAGE, tmp_path, 100, 2)


@pytest.mark.soak
def test_trainings_that_are_killed_go_on(tmp_path):
    killed("_killed_training.py", tmp_path, 8, 3)
