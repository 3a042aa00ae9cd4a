"""Files that version 0.1 wrote (`stored/0.1`, made by `make.py` there) load, with these numbers."""

import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_largeout as kl

STORED = pathlib.Path(__file__).parent / "stored/0.1"
DATA = np.int32([[0, 1], [1, 4]]), np.float32([[1, 2], [3, 4]])
TABLE = [
    [0.44959262, 0.49324861],
    [0.44980934, 0.51160747],
    [-0.04296914, 0.01681549],
    [-0.00435533, 0.02956838],
    [0.49677134, 0.51146084],
    [0.01466877, -0.00273832],
]
AFTER_A_STEP = [[0.49137047, 0.71010226], [0.68211174, 0.78858]]
IN_FILES = [
    [0.3895174, 0.44675976],
    [0.44732234, 0.52399451],
    [-0.04040687, 0.01161558],
    [-0.033104, 0.00170293],
    [0.47088525, 0.53053665],
    [-0.00942726, 0.04698212],
]


@pytest.fixture
def stored(tmp_path):
    """A copy, in which a test may write."""
    return pathlib.Path(shutil.copytree(STORED, tmp_path / "stored", copy_function=shutil.copyfile))


def model(storage="device"):
    ids = keras.Input((2,), dtype="int32")
    words = kl.layers.ShardedEmbedding(6, 2, combiner="sum", storage=storage, name="words")
    made = kl.Model(ids, words(ids))
    made.compile(kl.optimizers.Adagrad(0.5), "mse")
    return made


def check(made):
    """The rows, and by a step from them the slots of the optimizer."""
    assert made.optimizer.iterations == 1
    np.testing.assert_allclose(made.get_layer("words").table.numpy(), TABLE, atol=1e-6)
    made.train_on_batch(*DATA)
    np.testing.assert_allclose(made.get_layer("words").table.numpy()[:2], AFTER_A_STEP, atol=1e-5)


def test_a_model(stored):
    check(keras.models.load_model(stored / "model.keras"))


@pytest.mark.parametrize("name", ["model.weights.h5", "pieces.weights.json"])
def test_weights(name, stored):
    made = model()
    made.optimizer.build(made.trainable_variables)
    made.load_weights(stored / name)
    check(made)


def test_a_backup(stored):
    made, epochs = model(), []
    tell = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    backup = kl.callbacks.BackupAndRestore(stored / "backup", delete_checkpoint=False)
    made.fit(*DATA, epochs=1, verbose=0, callbacks=[backup, tell])
    assert epochs == []  # the one epoch was done
    check(made)


def test_a_table_in_files(stored):
    first = keras.initializers.RandomUniform(seed=7)
    ids = keras.Input((2,), dtype="int32")
    words = kl.layers.ShardedEmbedding(
        6, 2, embeddings_initializer=first, combiner="sum", storage=f"file:{stored}/table", name="words"
    )
    made = kl.Model(ids, words(ids))
    np.testing.assert_allclose(words.table.numpy(), IN_FILES, atol=1e-6)
    np.testing.assert_allclose(made(DATA[0])[0], np.sum(IN_FILES[:2], axis=0), atol=1e-6)
    kl.close_files(made)


def test_a_vocabulary(stored):
    made = keras.models.load_model(stored / "vocabulary.keras")
    assert made.get_layer("items").get_vocabulary() == {1: 80, 2: 90, 3: 70}
    rows = [[-0.04707776, -0.0286449], [0.01821704, -0.00240813], [0.01447408, 0.01117034]]
    np.testing.assert_allclose(made(np.int64([[80, 90], [70, 70]])), [rows[:2], [rows[2]] * 2], atol=1e-6)


def test_a_tree(stored):
    head = keras.models.load_model(stored / "head.keras").get_layer("head")
    expected = [[-1.02784204, -1.56036651, -1.74877787, -1.67971194, -2.63458776]]
    np.testing.assert_allclose(head.log_probs(np.float32([[1, -1]])), expected, atol=1e-6)


def test_a_plan(stored):
    plan = kl.distribute.Plan.load(stored / "plan.json")
    found = {table.spec.name: (table.placement.kind, table.placement.sizes) for table in plan.tables}
    assert found == {"words": ("permutation", (500, 500)), "tiny": ("permutation", (5, 5))}
    # The same rows on the same devices.
    words = next(table.placement for table in plan.tables if table.spec.name == "words")
    assert words.position(np.arange(4)).tolist() == [0, 619, 238, 857]
