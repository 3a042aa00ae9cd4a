"""Damaged files: a load either raises before anything has changed, or gives exactly the saved numbers."""

import collections
import warnings

import keras
import numpy as np
import pytest
from _every_layer import every_layer, layers_state, same, whole_state

import keras_largeout as kl

FORMATS = ["m.weights.h5", "m.keras", "m.weights.json"]


def save(model, path):
    if path.name.endswith(".keras"):
        model.save(path)
    elif path.name.endswith(".json"):
        model.save_weights(path, max_shard_size=4e-6)
    else:
        model.save_weights(path)
    return {file: file.read_bytes() for file in path.parent.iterdir()}


def flipped(whole, rng):
    """One file of those that a model was saved to, with some bits of one byte flipped."""
    sizes = [len(content) for content in whole.values()]
    file = list(whole)[rng.choice(len(sizes), p=np.array(sizes) / sum(sizes))]
    damaged = bytearray(whole[file])
    damaged[rng.integers(len(damaged))] ^= int(rng.integers(1, 256))
    return file, bytes(damaged)


class Damage:
    """A saved model, and another one that loads what is left of its files."""

    def __init__(self, cls, state):
        self.state = state
        self.source, self.target = every_layer(cls, seed=0), every_layer(cls, seed=1, steps=0)
        self.saved, self.before = state(self.source), state(self.target)
        assert not same(self.saved, self.before)

    def outcome(self, path):
        """What comes of a load: "refused" and unchanged, or "the same"; anything else is an error."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.target.load_weights(path)
        except Exception as error:
            assert same(self.state(self.target), self.before), f"half a file was loaded: {error}"
            return "refused"
        assert same(self.state(self.target), self.saved), "other numbers were loaded"
        return "the same"

    def run(self, folder, name, flips, seed):
        folder = folder / f"{name}-{seed}"
        folder.mkdir()
        path = folder / name
        whole = save(self.source, path)
        own = folder.parent / "own.weights.h5"
        self.target.save_weights(own)
        outcomes, rng = collections.Counter(), np.random.default_rng(seed)
        for _ in range(flips):
            file, damaged = flipped(whole, rng)
            file.unlink()  # a new file: HDF5 remembers one that Keras, after an error, has left open
            file.write_bytes(damaged)
            found = self.outcome(path)
            outcomes[found] += 1
            if found == "the same":
                self.target.load_weights(own)
            file.unlink()
            file.write_bytes(whole[file])
        assert self.outcome(path) == "the same"
        self.target.load_weights(own)
        assert same(self.state(self.target), self.before)
        return outcomes


@pytest.fixture(scope="module")
def ours():
    return Damage(kl.Model, whole_state)


@pytest.fixture(scope="module")
def plain():
    """Of a model of Keras, the layers of this package and the slots of their tables are covered."""
    return Damage(keras.Model, layers_state)


@pytest.mark.full
@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bytes(ours, name, tmp_path):
    outcomes = ours.run(tmp_path, name, 15, seed=1)
    assert outcomes["refused"] >= 10, outcomes


@pytest.mark.full
@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bytes_of_a_plain_model(plain, name, tmp_path):
    outcomes = plain.run(tmp_path, name, 5 if name.endswith("json") else 12, seed=2)
    assert outcomes["refused"] >= 1, outcomes


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["ours", "plain"])
def test_many_flipped_bytes(request, kind, name, tmp_path):
    flips = {("plain", "m.weights.h5"): 80, ("plain", "m.weights.json"): 40}.get((kind, name), 320)  # slow
    outcomes = request.getfixturevalue(kind).run(tmp_path, name, flips, seed=3)
    print(f"{kind} {name}: {dict(outcomes)}")
