"""Files of other models, and files of earlier versions."""

import h5py
import keras
import numpy as np
import pytest
from _every_layer import every_layer, layers_state, same, whole_state

import keras_largeout as kl
from keras_largeout.files.array_digests import KEY


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model, and a file of it without a checksum: a plain one."""
    path = tmp_path_factory.mktemp("saved") / "m.weights.h5"
    model = every_layer(keras.Model)
    model.save_weights(path)
    return model, path


OTHERS = {
    "rows": ({"rows": 31}, r"must|expected shape \(31, 4\)"),
    "width": ({"dim": 5}, r"expected shape \(30, 5\)"),
    "fan-in": ({"fan_in": 5}, "'sparse': .*expected fan_in=5. Received: a file with fan_in=4"),
    "classes": ({"classes": 25}, "must have a tree of 25 classes"),
    "optimizer": ({"optimizer": kl.optimizers.Adagrad(0.1)}, "of another optimizer than 'adagrad'"),
}


@pytest.mark.full
@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_model_changes_nothing(saved, what):
    options, message = OTHERS[what]
    other = every_layer(seed=1, steps=0, **options)
    before = whole_state(other)
    with pytest.raises(ValueError, match=message):
        other.load_weights(saved[1])
    assert same(whole_state(other), before)


def test_what_fits_is_loaded_where_that_is_asked_for(saved):
    other = every_layer(seed=1, steps=0, fan_in=5)
    with pytest.warns(UserWarning, match="could not be loaded"):
        other.load_weights(saved[1], skip_mismatch=True)
    np.testing.assert_array_equal(other.layers[1].table.numpy(), saved[0].layers[1].table.numpy())


def test_slots_of_another_optimizer_of_as_many_variables(tmp_path):
    """Nothing of the optimizer is changed, also in a model of Keras."""

    def make(optimizer):
        ids = keras.Input((2,), dtype="int32")
        x = keras.layers.Dense(1)(keras.layers.Flatten()(kl.layers.ShardedEmbedding(9, 4)(ids)))
        model = keras.Model(ids, x)
        model.compile(optimizer, "mse")
        model.train_on_batch(np.ones((4, 2), int), np.ones(4))
        return model

    make(kl.optimizers.SGD(0.1, momentum=0.9)).save_weights(tmp_path / "m.weights.h5")
    other = make(kl.optimizers.Adagrad(0.1))
    before = [v.numpy() for v in other.optimizer.variables]
    with pytest.raises(ValueError, match=r"slots of tables are \['accumulator'\]. Received: \['table0_"):
        other.load_weights(tmp_path / "m.weights.h5")
    assert same([v.numpy() for v in other.optimizer.variables], before)


def test_files_without_digests_are_loaded(saved, tmp_path):
    """Those of versions before, and those that somebody has changed by HDF5."""
    model, path = saved
    old = tmp_path / "old.weights.h5"
    old.write_bytes(path.read_bytes())
    with h5py.File(old, "r+") as file:
        groups = []
        file.visititems(lambda name, found: groups.append(name) if name.endswith(f"/{KEY}") else None)
        assert len(groups) == 6
        for name in groups:
            del file[name]
    for cls, state in ((kl.Model, whole_state), (keras.Model, layers_state)):
        other = every_layer(cls, seed=1, steps=0)
        other.load_weights(old)
        assert same(state(other), state(model))


def test_errors_name_the_array(saved, tmp_path):
    _, path = saved
    damaged = tmp_path / "damaged.weights.h5"
    damaged.write_bytes(path.read_bytes())
    with h5py.File(damaged, "r+") as file:
        file["layers/sparse_output/vars/kernel_rows_000000"][3, 1] += 1
    message = (
        r"damaged.weights.h5, group /layers/sparse_output/vars, is damaged: its array 'kernel_rows_000000' "
        r"must have the CRC-32 with which it was saved, [0-9a-f]{8}. Received: [0-9a-f]{8}"
    )
    with pytest.raises(OSError, match=message):
        every_layer(steps=0).load_weights(damaged)
    with pytest.raises(ValueError, match=message):  # Keras's, of an example
        every_layer(keras.Model, steps=0).load_weights(damaged)


def test_a_damaged_name_changes_nothing(saved, tmp_path):
    """Keras would go on without what it does not find, and warn of it at most."""
    damaged = tmp_path / "damaged.weights.h5"
    damaged.write_bytes(saved[1].read_bytes())
    with h5py.File(damaged, "r+") as file:
        file.move("optimizer", "optimizes")
    other = every_layer(keras.Model, seed=1, steps=0)
    before = layers_state(other)
    with pytest.raises(
        ValueError, match="group /optimizes/vars, is damaged: it must be found as 'optimizer'"
    ):
        other.load_weights(damaged)
    assert same(layers_state(other), before)
