"""Deltas of exports: the next version is that of a whole export, to the bit, or is refused."""

import ast
import os
import pathlib
import subprocess
import sys

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.serving import apply, delta

ITEMS = 300


def model_of(items=ITEMS, **options):
    """Return a model with one table for both of its ends, and its predictor."""
    history = keras.Input((3,), dtype="int32", name="history")
    table = kl.layers.ShardedEmbedding(items, 8, combiner="mean", name="items")
    hidden = keras.layers.Dense(8, name="dense")(table(history))
    head = kl.layers.SampledSoftmax(items, 5, seed=3, kernel=table, use_bias=False, **options)
    model = kl.Model(history, head(hidden))
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
    train(model)
    return model, head.predictor(model, k=4)


def train(model, first=0):
    x = np.arange(first, first + 12).reshape(4, 3).astype("int32")
    model.fit(x, x[:, 0], verbose=0)


def answers(path, x):
    model = tf.saved_model.load(str(path))
    return {name: value.numpy() for name, value in model.serve(tf.constant(x)).items()}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name


def tensors(path):
    return {key: tensor.numpy() for key, tensor in apply.read_tensors(path) if key != apply._OBJECTS}


@pytest.fixture
def versions(tmp_path):
    """Two exports and the delta between them."""
    model, serving = model_of()
    kl.export_saved_model(serving, tmp_path / "1")
    train(model, first=30)
    kl.export_saved_model(serving, tmp_path / "whole")
    return tmp_path, kl.serving.export_delta(tmp_path / "whole", tmp_path / "1", tmp_path / "2.delta")


def test_the_next_version_is_that_of_a_whole_export(versions):
    folder, written = versions
    x = np.arange(30).reshape(10, 3).astype("int32")
    before, expected = answers(folder / "1", x), answers(folder / "whole", x)
    assert not np.array_equal(before["scores"], expected["scores"])
    assert 12 <= written["changed_rows"] < 60 and written["rows"] > ITEMS
    assert written["bytes"] == (folder / "2.delta").stat().st_size

    loaded = tf.saved_model.load(str(folder / "1"))
    kl.serving.apply_delta(loaded, folder / "2.delta")
    assert_same_bits(loaded.serve(tf.constant(x)), expected)

    kl.serving.apply_delta(folder / "1", folder / "2.delta", folder / "2")
    assert_same_bits(answers(folder / "2", x), expected)
    assert tensors(folder / "2").keys() == tensors(folder / "whole").keys()
    assert_same_bits(tensors(folder / "2"), tensors(folder / "whole"))
    assert_same_bits(answers(folder / "1", x), before)
    assert sorted(os.listdir(folder)) == ["1", "2", "2.delta", "whole"]


@pytest.mark.full
def test_deltas_follow_one_another(tmp_path):
    """A base may be what a delta made; a model is exported on the way."""
    model, serving = model_of()
    x = np.arange(60).reshape(20, 3).astype("int32")
    kl.export_saved_model(serving, tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for day in 2, 3:
        train(model, first=30 * day)
        kl.serving.export_delta(serving, tmp_path / f"{day - 1}", tmp_path / f"{day}.delta")
        kl.serving.apply_delta(tmp_path / f"{day - 1}", tmp_path / f"{day}.delta", tmp_path / f"{day}")
        kl.serving.apply_delta(loaded, tmp_path / f"{day}.delta")
    kl.export_saved_model(serving, tmp_path / "whole")
    expected = answers(tmp_path / "whole", x)
    assert_same_bits(answers(tmp_path / "3", x), expected)
    assert_same_bits(loaded.serve(tf.constant(x)), expected)
    for served, path in ((tmp_path / "1", tmp_path / "4"), (loaded, None)):
        with pytest.raises(ValueError, match=r"apply the deltas in their order.*Received: the version"):
            kl.serving.apply_delta(served, tmp_path / "3.delta", path)


def test_a_vocabulary_of_strings(tmp_path):
    names = np.array([f"item {i}" for i in range(64)])
    items = kl.layers.DynamicVocabulary(32, name="names")
    inputs = keras.Input((2,), dtype="string", name="names")
    table = kl.layers.ShardedEmbedding(items.vocabulary_size(), 4, vocabulary=items, combiner="mean")
    model = kl.Model(inputs, keras.layers.Dense(1)(table(inputs)))
    model.compile(kl.optimizers.Adagrad(0.1), "mse")
    fit = lambda ids: model.fit(tf.constant(ids.reshape(-1, 2)), np.ones(len(ids) // 2), verbose=0)  # noqa: E731
    fit(names[:24])
    kl.export_saved_model(model, tmp_path / "1")
    fit(names[20:40])  # new ids, of which some replace others
    kl.export_saved_model(model, tmp_path / "whole")
    written = kl.serving.export_delta(tmp_path / "whole", tmp_path / "1", tmp_path / "2.delta")
    assert 0 < written["changed_rows"] < written["rows"]
    kl.serving.apply_delta(tmp_path / "1", tmp_path / "2.delta", tmp_path / "2")
    x = names.reshape(-1, 2)
    expected = answers(tmp_path / "whole", x)
    assert_same_bits(answers(tmp_path / "2", x), expected)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    kl.serving.apply_delta(loaded, tmp_path / "2.delta")
    assert_same_bits(loaded.serve(tf.constant(x)), expected)


@pytest.mark.full
def test_int8(tmp_path):
    model, serving = model_of()
    x = np.arange(30).reshape(10, 3).astype("int32")
    kl.export_saved_model(serving, tmp_path / "1", table_dtype="int8")
    train(model, first=30)
    written = kl.serving.export_delta(serving, tmp_path / "1", tmp_path / "2.delta", table_dtype="int8")
    kl.export_saved_model(serving, tmp_path / "whole", table_dtype="int8")
    assert written["changed_rows"] < 100
    kl.serving.apply_delta(tmp_path / "1", tmp_path / "2.delta", tmp_path / "2")
    assert_same_bits(answers(tmp_path / "2", x), answers(tmp_path / "whole", x))


def test_a_table_that_has_grown(tmp_path):
    model, serving = model_of()
    kl.export_saved_model(serving, tmp_path / "1")
    larger = kl.resize(model, {"items": ITEMS + 100})
    train(larger, first=ITEMS + 50)
    kl.export_saved_model(larger.layers[-1].predictor(larger, k=4), tmp_path / "whole")
    written = kl.serving.export_delta(tmp_path / "whole", tmp_path / "1", tmp_path / "2.delta")
    assert 100 <= written["changed_rows"] < 250  # the new rows, and a few of the others
    kl.serving.apply_delta(tmp_path / "1", tmp_path / "2.delta", tmp_path / "2")
    x = np.array([[1, 2, ITEMS + 51]], "int32")
    assert_same_bits(answers(tmp_path / "2", x), answers(tmp_path / "whole", x))
    with pytest.raises(ValueError, match=r"other shapes than the loaded model.*with `path`"):
        kl.serving.apply_delta(tf.saved_model.load(str(tmp_path / "1")), tmp_path / "2.delta")
    # And a smaller one.
    kl.serving.export_delta(tmp_path / "1", tmp_path / "2", tmp_path / "back.delta")
    kl.serving.apply_delta(tmp_path / "2", tmp_path / "back.delta", tmp_path / "back")
    assert_same_bits(tensors(tmp_path / "back"), tensors(tmp_path / "1"))


@pytest.mark.full
def test_another_model(tmp_path):
    """Whatever the two have in common, the next version is right."""
    kl.export_saved_model(model_of()[1], tmp_path / "1")
    inputs = keras.Input((2,), dtype="int32", name="ids")
    table = kl.layers.ShardedEmbedding(50, 8)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(table(inputs))))
    kl.serving.export_delta(model, tmp_path / "1", tmp_path / "2.delta")
    kl.serving.apply_delta(tmp_path / "1", tmp_path / "2.delta", tmp_path / "2")
    x = np.array([[1, 2]], "int32")
    kl.export_saved_model(model, tmp_path / "whole")
    assert_same_bits(answers(tmp_path / "2", x), answers(tmp_path / "whole", x))
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    with pytest.raises(ValueError, match="another graph"):
        kl.serving.apply_delta(loaded, tmp_path / "2.delta")


@pytest.mark.parametrize("where", ["end", "middle", "byte"])
def test_damage(versions, where):
    folder, _ = versions
    whole = (folder / "2.delta").read_bytes()
    rng = np.random.default_rng(0)
    expected = tensors(folder / "whole")
    for position in rng.integers(0, len(whole), 1 if where != "byte" else 40):
        torn = {
            "end": whole[:-1],
            "middle": whole[: len(whole) // 2],
            "byte": whole[:position] + bytes([whole[position] ^ 64]) + whole[position + 1 :],
        }[where]
        (folder / "torn").write_bytes(torn)
        try:
            kl.serving.apply_delta(folder / "1", folder / "torn", folder / "new")
        except OSError as error:
            assert "torn is damaged" in str(error)
            assert not (folder / "new").exists() and not (folder / ".new.partial").exists()
        else:  # such as the time of a file in the archive
            assert where == "byte"
            assert_same_bits(tensors(folder / "new"), expected)
            os.rename(folder / "new", folder / f"whole {position}")
    assert len(list(folder.glob("whole ?*"))) < 10


def test_other_values_under_the_version_of_the_base(versions):
    folder, _ = versions
    loaded = tf.saved_model.load(str(folder / "1"))
    changed = next(variable for variable in loaded.state if variable.shape == (ITEMS, 8))
    changed.assign(changed + 1)
    with pytest.raises(OSError, match=r"must have the values with which .*2\.delta was made"):
        kl.serving.apply_delta(loaded, folder / "2.delta")
    with pytest.raises(ValueError, match="Received: the version ''"):  # some of its variables are new
        kl.serving.apply_delta(loaded, folder / "2.delta")


def test_folders(versions):
    folder, _ = versions
    with pytest.raises(FileExistsError, match="`path` must be new"):
        kl.serving.apply_delta(folder / "1", folder / "2.delta", folder / "whole")
    (folder / ".2.partial").mkdir()
    (folder / ".2.partial" / "half").write_text("of a process that was killed")
    kl.serving.apply_delta(folder / "1", folder / "2.delta", folder / "2")
    assert sorted(os.listdir(folder / "2")) == ["fingerprint.pb", "saved_model.pb", "variables"]
    assert not (folder / ".2.partial").exists()


def test_what_has_no_version(versions):
    folder, _ = versions
    module = tf.Module()
    module.weight = tf.Variable(1.0)
    tf.saved_model.save(module, str(folder / "theirs"))
    with pytest.raises(ValueError, match=r"must be an export of `export_saved_model`.*Received: .*theirs"):
        kl.serving.export_delta(folder / "whole", folder / "theirs", folder / "delta")
    with pytest.raises(ValueError, match=r"`served` must be what `tf.saved_model.load` returned"):
        kl.serving.apply_delta(tf.saved_model.load(str(folder / "theirs")), folder / "2.delta")
    with pytest.raises(ValueError, match="of the path of an export `path` must be given"):
        kl.serving.apply_delta(str(folder / "1"), folder / "2.delta")


def test_two_exports_have_two_versions(tmp_path):
    _, serving = model_of()
    for name in "ab":
        kl.export_saved_model(serving, tmp_path / name)
    assert apply.version_of(tmp_path / "a") != apply.version_of(tmp_path / "b")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64"])
@pytest.mark.parametrize("shape", [(23,), (23, 3), (23, 2, 2), (0, 3), (5, 0), ()])
@pytest.mark.parametrize("before", ["none", "equal", "fewer", "one", "all"])
def test_rows_that_differ(dtype, shape, before, rng, monkeypatch):
    """All of a new array follows from the old one and the pieces, which are few."""
    monkeypatch.setattr(apply, "PIECE_BYTES", 64)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    new = rng.integers(-3, 4, shape).astype(kind)
    old = {"none": None, "fewer": new[:9] if shape else new, "all": new + 1}.get(before, new.copy())
    if before == "one" and new.size and new.ndim:
        old[7 % len(old)] -= 1
    if not shape:
        old = None
    made = np.array(new) if old is None or not new.ndim else np.zeros(shape, kind)
    if old is not None:
        made[: len(old)] = old
    changed = 0
    for start, ids, rows in delta._differing(old, new):
        if ids is None and new.ndim:
            made[start : start + len(rows)] = rows
        elif new.ndim:
            made[start + ids] = rows
        changed += delta._rows_in(rows)
    assert made.tobytes() == new.tobytes()
    if new.size and new.ndim:
        expected = {"none": len(new), "equal": 0, "fewer": len(new) - 9, "one": 1, "all": len(new)}[before]
        assert expected <= changed and (new.ndim == 1 or dtype == "int8" or changed - expected < 6)


def test_nan_and_zeros_are_compared_by_their_bits():
    old = np.array([[np.nan], [0.0], [1.0]], "float32")
    new = np.array([[np.nan], [-0.0], [1.0]], "float32")
    (found,) = delta._differing(np.tile(old, 9), np.tile(new, 9))
    assert found[1].tolist() == [1] and np.signbit(found[2]).all()


def test_apply_needs_nothing_of_the_package():
    tree = ast.parse(pathlib.Path(apply.__file__).read_text())
    imported = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported}
    assert roots - set(sys.stdlib_module_names) == {"numpy", "tensorflow"}


@pytest.mark.full
def test_as_a_program_without_the_package(versions):
    folder, _ = versions
    program, blocked = folder / "apply.py", "import sys; sys.modules['keras_largeout'] = None\n"
    program.write_text(blocked + pathlib.Path(apply.__file__).read_text())

    def run(*arguments):
        command = [sys.executable, program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)

    done = run("1", "2.delta", "2")
    assert done.returncode == 0, done.stderr
    assert_same_bits(tensors(folder / "2"), tensors(folder / "whole"))
    done = run("1")
    assert done.returncode == 1 and "usage: python apply.py BASE DELTA NEW" in done.stderr
