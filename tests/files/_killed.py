"""Saves that are killed, again and again. A program without TensorFlow, which takes seconds to start.

`python _killed.py PACKAGE FOLDER KILLS SEED`: a child process saves numbers to files of every kind, without
end, and is killed by SIGKILL at a random moment; another one goes on. After each kill all files are read. So
they are after saves to a disk that is full. Prints how many kills there were, and how many of them in the
midst of a save.
"""

# ruff: noqa: E402

import contextlib
import itertools
import json
import os
import pathlib
import random
import resource
import signal
import sys
import time
import types
import zipfile

package, folder, kills, seed = sys.argv[1:]
folder = pathlib.Path(folder)
stub = types.ModuleType("keras_largeout")  # whose `__init__` would import TensorFlow
stub.__path__ = [package]
sys.modules["keras_largeout"] = stub

import h5py
import numpy as np

from keras_largeout.files.atomic_write import whole_file
from keras_largeout.files.model_files import model_file
from keras_largeout.files.verified_loading import verify_file

FILES = "m.keras", "m.weights.h5", "s.weights.json", "plan.json"
CHUNKS, SIZE = 6, 20_000


def write_h5(path, chunks, number):
    with h5py.File(path, "w") as file:
        for chunk in chunks:
            file[f"rows_{chunk}"] = np.full(SIZE, number)


def read_h5(path):
    with h5py.File(path) as file:
        return np.concatenate([rows[:] for rows in file.values()])


def save(path, number):
    """As Keras does."""
    if path.name == "plan.json":
        with whole_file(path) as new:
            pathlib.Path(new).write_text(json.dumps([number] * SIZE))
        return
    with model_file(path, sharded=path.name == "s.weights.json") as new:
        if new.endswith(".keras"):
            with zipfile.ZipFile(new, "w") as archive:
                for chunk in range(CHUNKS):
                    archive.writestr(f"rows_{chunk}", np.full(SIZE, number).tobytes())
        elif new.endswith(".h5"):
            write_h5(new, range(CHUNKS), number)
        else:
            stem = pathlib.Path(new).name.removesuffix(".weights.json")
            names = [f"{stem}_{i:05}.weights.h5" for i in range(2)]
            for i, name in enumerate(names):
                write_h5(pathlib.Path(new).with_name(name), range(i * 3, i * 3 + 3), number)
            pathlib.Path(new).write_text(json.dumps({"metadata": {}, "weight_map": {"/vars": names}}))


def read(path):
    """The number that was saved, once for each chunk."""
    if path.name == "plan.json":
        return json.loads(path.read_text())
    verify_file(path)
    if path.name == "m.keras":
        with zipfile.ZipFile(path) as archive:
            return np.concatenate([np.frombuffer(archive.read(name), int) for name in archive.namelist()])
    if path.name == "m.weights.h5":
        return read_h5(path)
    h5py.File(path.with_name("s_00000.weights.h5")).close()  # Keras opens it first
    names = json.loads(path.read_text())["weight_map"]["/vars"]
    return np.concatenate([read_h5(path.with_name(name)) for name in names])


def check(number):
    """All files are whole, and of the round that was done, or of the one that was killed."""
    for name in FILES:
        found = read(folder / name)
        expected = SIZE if name == "plan.json" else SIZE * CHUNKS
        assert len(found) == expected and set(found) in ({number}, {number + 1}), (name, number, set(found))


def main():
    random.seed(int(seed))
    number, midst = 0, 0
    for name in FILES:
        save(folder / name, number)
    for _ in range(int(kills)):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            for new in itertools.count(number + 1):
                for name in FILES:
                    save(folder / name, new)
                os.write(theirs, b"%d\n" % new)
        time.sleep(random.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(theirs)
        with open(ours) as said:
            number = int((said.read().split() or [number])[-1])
        left = [p for p in folder.iterdir() if f"-{child}-" in p.name]
        midst += bool(left)
        check(number)
    for size in (0, 20_000, SIZE * CHUNKS * 4, SIZE * CHUNKS * 8 + 3000):  # a full disk; HDF5 may crash of it
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            for name in FILES:
                with contextlib.suppress(Exception):
                    save(folder / name, number + 1)
            os._exit(0)
        os.waitpid(child, 0)
        check(number)
    number += 2
    for name in FILES:
        save(folder / name, number)
    check(number)
    names = sorted(p.name for p in folder.iterdir())
    assert len(names) == len(FILES) + 3 and not [n for n in names if n.startswith(".")], names
    print(json.dumps({"kills": int(kills), "in the middle of a save": midst}))


main()
