"""Tables in files: the numbers of tables in memory, found again, and refused where they may be torn."""

import gc
import json
import os
import shutil
import signal
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from _forked import Forked
from _tables import strategy_of
from _training import arrays_of
from tables.storage._models import (
    DATA,
    ON_ONE_DEVICE,
    OPTIMIZERS,
    assert_same_bits,
    model_of,
    tables_of,
    trained,
)

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.files.__main__ import main as files_main
from keras_largeout.files.record_marks import record_marks
from keras_largeout.layers import ShardedEmbedding
from keras_largeout.tables.storage import mapped


def twins(folder, **options):
    """The same model with its rows in files, and in memory."""
    on_disk, in_memory = model_of(f"file:{folder}", **options), model_of("device", **options)
    for a, b in zip(tables_of(on_disk), tables_of(in_memory)):
        b.assign(a.numpy())
    return on_disk, in_memory


def closed(model):
    for table in tables_of(model):
        table.folder.close()


def embedding(folder, rows=50, dim=4, **options):
    """A layer whose rows are in files of `folder`, which may end in ?mode=ro."""
    layer = ShardedEmbedding(rows, dim, storage=f"file:{folder}", name="words", **options)
    layer.build()
    return layer


@pytest.mark.parametrize(("name", "devices"), [*ON_ONE_DEVICE, ("lazy_adam", 2)])
def test_same_bits_as_in_memory(name, devices, tmp_path):
    assert_same_bits(*map(trained, twins(tmp_path, optimizer=OPTIMIZERS[name], devices=devices)))


def test_an_optimizer_of_the_tables(tmp_path):
    assert_same_bits(*map(trained, twins(tmp_path, own="adagrad")))


def test_found_again(tmp_path):
    """Rows, slots and the first values of rows that were never touched, though no seed was given."""
    model = model_of(f"file:{tmp_path}")
    _, arrays = trained(model)
    files = sorted(os.listdir(tmp_path / "words"))
    closed(model)
    again = model_of(f"file:{tmp_path}", seed=99)
    again.optimizer.build(again.trainable_variables)
    assert [table.folder.existed for table in tables_of(again)] == [True, True]
    assert sorted(os.listdir(tmp_path / "words")) == files
    for name, rows in arrays_of(*tables_of(again)).items():
        np.testing.assert_array_equal(rows, arrays[name], err_msg=name)


def test_another_optimizer_begins_anew(tmp_path):
    on_disk, in_memory = twins(tmp_path)
    for _ in range(2):
        assert_same_bits(trained(on_disk), trained(in_memory))
        for model in (on_disk, in_memory):
            model.compile(klo.Adagrad(0.1), "mse")


def step_of(layer, optimizer):
    """A function that trains rows of a layer, which has no model."""
    optimizer.build(layer.trainable_variables)

    def step(ids):
        with tf.GradientTape() as tape:
            rows = layer(ids if isinstance(ids, tf.RaggedTensor) else tf.constant(ids))
            loss = tf.reduce_sum(tf.cast(getattr(rows, "values", rows), tf.float32) ** 2)
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)

    return step


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slots_come_and_go(dtype, tmp_path):
    """Rows stay, whatever is beside them. (Five values of bfloat16 take three words.)"""
    on_disk, in_memory = embedding(tmp_path, 3000, 5, dtype=dtype), ShardedEmbedding(3000, 5, dtype=dtype)
    in_memory.build()
    in_memory.table.assign(on_disk.table.numpy())
    of_rows = [klo.SGD(0.1), klo.LazyAdam(0.1), klo.Adagrad(0.1), klo.SGD(0.1), klo.RowWiseAdagrad(0.1)]
    for number, optimizer in enumerate(of_rows):
        for layer in (on_disk, in_memory):
            step = step_of(layer, type(optimizer).from_config(optimizer.get_config()))
            step([number, 7, 7])
            step([7, 2000])
        found, wanted = arrays_of(on_disk.table).values(), arrays_of(in_memory.table).values()
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    (rows,) = (tmp_path / "words").glob("*.rows")
    assert os.stat(rows).st_blocks * 512 <= 6 * 4096  # the records that were written, not 3000
    on_disk.table.folder.close()
    again = embedding(tmp_path, 3000, 5, dtype=dtype)
    step_of(again, klo.RowWiseAdagrad(0.1))
    for got, want in zip(arrays_of(again.table).values(), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_function_of_another_optimizer_fails(tmp_path):
    layer = embedding(tmp_path)
    old = tf.function(step_of(layer, klo.LazyAdam(0.1)))
    old([1])
    step_of(layer, klo.Adagrad(0.1))([1])
    rows = layer.table.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not those of the optimizer for which"):
        old([1])
    np.testing.assert_array_equal(layer.table.numpy(), rows)


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_kinds_of_ids(combiner, tmp_path):
    """Rows that were never written, some of them, and none: three ways through a lookup."""
    options = {"combiner": combiner, "out_of_range": "zero"}
    on_disk, in_memory = embedding(tmp_path, **options), ShardedEmbedding(50, 4, **options)
    in_memory.build()
    in_memory.table.assign(on_disk.table.numpy())
    steps = [step_of(layer, klo.Adagrad(0.1)) for layer in (on_disk, in_memory)]
    dense, ragged = [[1, 2], [-1, 7], [50, 7]], tf.ragged.constant([[3], [], [1, 9, 9]])
    for ids in (tf.constant(dense), ragged, tf.constant(dense), ragged):
        got, want = (layer(ids) for layer in (on_disk, in_memory))
        assert type(got) is type(want)
        np.testing.assert_array_equal(*(tf.nest.flatten(x, expand_composites=True)[0] for x in (got, want)))
        for step in steps:
            step(ids)
    np.testing.assert_array_equal(on_disk.table.numpy(), in_memory.table.numpy())


def test_rows_of_coming_batches_are_asked_for(tmp_path, monkeypatch):
    layer, asked = embedding(tmp_path, rows=100), []
    monkeypatch.setattr(mapped.MappedShard, "prefetch", lambda part, rows: asked.append(rows.tolist()))
    model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.build((None, 2))
    data = tf.data.Dataset.from_tensor_slices(np.array([[1, 2], [2, 3], [7, 7], [3, 99]])).batch(1)
    assert len(list(kl.distribute.prefetch_rows(data, model, batches=2))) == 4
    assert asked == [[1, 2, 3], [3, 7, 99]]


def test_rows_that_begin_at_zero(tmp_path):
    on_disk = embedding(tmp_path, embeddings_initializer="zeros")
    assert not on_disk.table.numpy().any()
    step_of(on_disk, klo.Adagrad(1.0))([3, 3])  # no gradient: the rows are zero
    on_disk.table.assign(np.eye(50, 4))
    step_of(on_disk, klo.SGD(1.0))([3, 3])
    np.testing.assert_array_equal(on_disk.table.numpy()[:5].sum(1), [1, 1, 1, -3, 0])


def test_any_number_of_readers(tmp_path):
    layer = embedding(tmp_path)
    step_of(layer, klo.LazyAdam(0.1))([1, 2])
    rows = layer.table.numpy()
    with pytest.raises(BlockingIOError, match="is in use"):
        embedding(f"{tmp_path}?mode=ro")
    layer.table.folder.close()
    readers = [embedding(f"{tmp_path}?mode=ro") for _ in range(2)]
    for reader in readers:
        np.testing.assert_array_equal(reader(tf.range(50)), rows)
        with pytest.raises(ValueError, match="must not end in"):
            step_of(reader, klo.SGD(0.1))([1])
        with pytest.raises(ValueError, match="must not end in"):
            klo.LazyAdam().build(reader.trainable_variables)
        with pytest.raises(ValueError, match="must not end in"):
            reader.table.assign(rows)
    with pytest.raises(BlockingIOError, match="of readers alone"):
        embedding(tmp_path)
    store = {}
    other = ShardedEmbedding(50, 4)
    other.build()
    other.save_own_variables(store)
    readers[0].load_own_variables(store)  # a model is loaded: it has its rows
    np.testing.assert_array_equal(readers[0].table.numpy(), rows)
    assert readers[0].get_config()["storage"] == f"file:{tmp_path}?mode=ro"
    with pytest.raises(FileNotFoundError, match="must be the folder of a table that is there"):
        embedding(f"{tmp_path}/none?mode=ro")


def test_reading_writes_nothing(tmp_path):
    model = model_of(f"file:{tmp_path}")
    first = model.predict(list(DATA[0]), verbose=0)
    tables_of(model)[0].numpy()
    for folder, _, names in os.walk(tmp_path):
        for name in names:
            if name.endswith(".rows"):
                assert os.stat(os.path.join(folder, name)).st_blocks == 0, name
    np.testing.assert_array_equal(model.predict(list(DATA[0]), verbose=0), first)


def test_as_large_as_no_memory():
    """Four terabytes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        words = ShardedEmbedding(2**34, 64, combiner="sum", storage=f"file:{folder}", name="words")
        words.build()
        optimizer = klo.LazyAdam(0.1)
        optimizer.build(words.trainable_variables)
        ids = tf.constant([[0, 2**34 - 1]], tf.int64)
        before = words(ids)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(words(ids))
        weights = words.trainable_variables
        optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)
        np.testing.assert_allclose(words(ids), before - 0.2, atol=1e-5)
        words.table.folder.close()


def test_saved_and_loaded_by_a_model_in_memory(tmp_path):
    model = model_of(f"file:{tmp_path}/rows")
    _, arrays = trained(model)
    model.save_weights(tmp_path / "m.weights.h5")
    for other in (model_of("device"), model_of(f"file:{tmp_path}/other", devices=2)):
        with other.distribute_strategy.scope():
            other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "m.weights.h5")
        for name, rows in arrays_of(*tables_of(other)).items():
            np.testing.assert_array_equal(rows, arrays[name], err_msg=name)


def test_exported(tmp_path):
    model = model_of(f"file:{tmp_path}/rows")
    trained(model)
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    got = tf.nest.flatten(served.serve(*(tf.constant(x) for x in DATA[0])))[0]
    np.testing.assert_allclose(got, model.predict(list(DATA[0]), verbose=0), rtol=1e-6, atol=1e-7)


KILLED = """
import os, signal, sys, time
import keras, numpy as np
import keras_largeout as kl
words = kl.layers.ShardedEmbedding(50, 4, storage="file:" + sys.argv[1], name="words")
model = keras.Sequential([words, keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile(kl.optimizers.LazyAdam(), "mse")
model.fit(np.zeros((8, 2), "int32"), np.zeros(8), verbose=0)
if sys.argv[2] == "wait":
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1] + "/enough"):
        time.sleep(0.05)
elif sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_another_process_that_ends_is_killed_or_is_there(tmp_path):
    def start(how):
        return Forked(["-c", KILLED, tmp_path / how, how])

    waits, killed, ends = (start(how) for how in ("wait", "killed", "ends"))
    assert ends.wait(120) == 0
    assert embedding(tmp_path / "ends").table.folder.existed
    assert killed.wait(120) == -signal.SIGKILL
    _check_killed(tmp_path / "killed")
    assert "ready\n" in iter(waits.stdout.readline, "")
    with pytest.raises(BlockingIOError, match="is in use"):
        embedding(tmp_path / "wait")
    (tmp_path / "wait" / "enough").touch()
    assert waits.wait(120) == 0
    embedding(tmp_path / "wait")


def test_a_load_that_fails_leaves_rows_that_may_be_torn(tmp_path, monkeypatch):
    """Ctrl-C in the middle of it, such as: the next model must load them again."""
    rows = np.random.default_rng(0).random((50, 4)).astype("float32")
    layer = embedding(tmp_path / "t")
    write = type(layer.table.array).write

    def interrupted(array, start, values):
        write(array, start, values[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(type(layer.table.array), "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layer.table.assign(rows)
    monkeypatch.undo()
    layer.table.folder.close()
    layer = embedding(tmp_path / "t")
    with pytest.raises(OSError, match=r"was not closed: .*or a load of its rows failed"):
        layer(tf.constant([1]))
    layer.table.assign(rows)
    layer.table.folder.close()
    np.testing.assert_array_equal(embedding(tmp_path / "t").table.numpy(), rows)


def test_a_table_of_another_shape_leaves_the_folder_to_its_owner(tmp_path):
    layer = embedding(tmp_path / "t")
    with pytest.raises(ValueError, match="`storage` must be a folder of this table"):
        embedding(tmp_path / "t", dim=5)
    layer(tf.constant([1]))  # is open still


def _check_killed(folder):
    """Rows that may be torn stay as they are, and are not used; a save of the model takes their place."""
    files = {path.name for path in (folder / "words").iterdir()}
    layer = embedding(folder)
    for use in (lambda: layer(tf.constant([1])), layer.table.numpy, tf.function(lambda: layer(tf.range(3)))):
        with pytest.raises(OSError, match="was not closed: the process that trained it was killed"):
            use()
    with pytest.raises(OSError, match="was not closed"):
        step_of(layer, klo.LazyAdam(0.1))([1])
    layer.table.folder.close()
    with pytest.raises(OSError, match="was not closed"):
        embedding(f"{folder}?mode=ro")
    assert {path.name for path in (folder / "words").iterdir()} == files and not is_closed(folder / "words")
    layer, store = embedding(folder), {}
    other = ShardedEmbedding(50, 4)
    other.build()
    other.save_own_variables(store)
    layer.load_own_variables(store)
    step_of(layer, klo.LazyAdam(0.1))([1])
    rows = layer.table.numpy()
    layer.table.folder.close()
    assert is_closed(folder / "words") and len(list((folder / "words").glob("*.rows"))) == 1
    np.testing.assert_array_equal(embedding(folder).table.numpy(), rows)


TOLD_TO_END = """
import os, signal, sys
import keras, numpy as np
import keras_largeout as kl
folder, number, how = sys.argv[1], signal.Signals[sys.argv[2]], sys.argv[3]
signal.signal(number, signal.SIG_DFL)  # under `nohup` SIGHUP is ignored
if how == "handler":
    signal.signal(number, lambda *_: print("handled", flush=True))
words = kl.layers.ShardedEmbedding(50, 4, storage="file:" + folder, name="words")
model = keras.Sequential([words, keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile(kl.optimizers.LazyAdam(), "mse")
train = lambda epochs: model.fit(np.zeros((8, 2), "int32"), np.zeros(8), verbose=0, epochs=epochs)
train(1)
if how == "handler":
    os.kill(os.getpid(), number)
    train(1)
elif how == "closing":
    fsync = os.fsync
    os.fsync = lambda file: (os.kill(os.getpid(), number), fsync(file))
    kl.close_files(model)
elif how == "closed":
    kl.close_files(model)
    assert signal.getsignal(number) is signal.SIG_DFL
    os.kill(os.getpid(), number)
else:
    try:
        print("trains", flush=True)
        train(1_000_000)
    finally:
        print("leaves", flush=True)
        os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize(
    ("number", "how"),
    [("SIGTERM", "training"), ("SIGHUP", "training"), ("SIGTERM", "closing"), ("SIGTERM", "closed")],
)
def test_signals_close_the_folder(tmp_path, number, how):
    """Also a second one; the exit status names the signal."""
    process = Forked(["-c", TOLD_TO_END, tmp_path, number, how])
    if how == "training":
        assert "trains\n" in iter(process.stdout.readline, "")
        os.kill(process.pid, signal.Signals[number])
        assert "leaves\n" in iter(process.stdout.readline, "")
    assert process.wait(120) == -signal.Signals[number]
    assert is_closed(tmp_path / "words")


def test_a_handler_of_the_script_decides(tmp_path):
    process = Forked(["-c", TOLD_TO_END, tmp_path, "SIGTERM", "handler"])
    assert process.wait(120) == 0
    assert "handled" in process.stdout.read() and is_closed(tmp_path / "words")


def filled(folder):
    """The path of the file of a table that was trained and closed, twice, and its bytes after the first."""
    copies = []
    for _ in range(2):
        layer = embedding(folder)
        step_of(layer, klo.LazyAdam(0.1))([1, 2])
        layer.table.folder.close()
        (path,) = (folder / "words").glob("*.rows")
        copies.append(path.read_bytes())
    return path, copies[0]


def older_time(path, copy):
    os.utime(path, (0, path.stat().st_mtime - 100))


DAMAGES = {  # what is done to a file of rows, and what is said about it
    "gone": (lambda path, copy: path.unlink(), "no such file"),
    "older rows": (lambda path, copy: path.write_bytes(copy), "other rows"),
    "older": (older_time, "one that is 100 seconds older"),
    "cut": (lambda path, copy: os.truncate(path, 100), "100 bytes in the place of"),
}


def test_a_folder_without_files_to_check_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        files_main(["check", str(tmp_path)])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"{tmp_path}: there is no table and no saved model here\n"


@pytest.mark.parametrize("damage", DAMAGES)
def test_files_that_are_not_those_that_were_closed(tmp_path, damage, capsys):
    path, copy = filled(tmp_path)
    right, (harm, said) = path.read_bytes(), DAMAGES[damage]
    harm(path, copy)
    for mode in ("", "?mode=ro"):
        with pytest.raises(OSError, match=rf"words.*\.rows must be the file that .* Received: {said}"):
            embedding(f"{tmp_path}{mode}")
    assert is_closed(tmp_path / "words")
    with pytest.raises(SystemExit) as end:
        files_main(["check", str(tmp_path)])
    repaired = damage == "older"
    assert end.value.code == (0 if repaired else 1)
    assert ("whose times were corrected" if repaired else said) in capsys.readouterr().out
    path.write_bytes(right)  # brought back
    embedding(f"{tmp_path}?mode=ro")


@pytest.mark.parametrize("word", [0, 2, 7], ids=["the digest", "the row", "its slot"])
def test_a_damaged_row_is_named(tmp_path, word, capsys):
    """By the lookup that reads it first, by a save, by another optimizer, and by a check of all rows."""
    path, _ = filled(tmp_path)
    about = path.parent / "table.json"
    content = json.loads(about.read_text())
    records = np.memmap(path, np.uint32, "r+").reshape(50, -1)
    records[2, word] ^= 1 << 7
    content["files"][path.name]["crc32"] = zlib.crc32(path.read_bytes())  # the sample did not see it
    about.write_text(json.dumps(content))

    said = rf"{path.name} is damaged: row 2 must have the digest with which it was written, [0-9a-f]{{8}}\. "
    for mode in ("?mode=ro", ""):
        layer = embedding(f"{tmp_path}{mode}")
        layer(np.array([1, 3]))
        with pytest.raises(tf.errors.DataLossError, match=said):
            layer(np.array([1, 2]))
        with pytest.raises(tf.errors.DataLossError, match=said):
            layer.table.numpy()
        del layer
        gc.collect()
    with pytest.raises(OSError, match=said):
        step_of(embedding(tmp_path), klo.Ftrl(0.1))([1])
    gc.collect()
    with pytest.raises(SystemExit) as end:
        files_main(["check", str(tmp_path)])
    assert end.value.code == 1 and "row 2 must have the digest" in capsys.readouterr().out


def test_rows_without_digests_are_read(tmp_path, capsys):
    """As version 0.1 wrote them. They get digests when they are trained."""
    path, _ = filled(tmp_path)
    about = path.parent / "table.json"
    content = json.loads(about.read_text())
    records = np.memmap(path, np.float32, "r+").reshape(50, -1)
    records[[1, 2], 0] = 1
    content["files"][path.name]["crc32"] = zlib.crc32(path.read_bytes())
    about.write_text(json.dumps(content))
    layer = embedding(tmp_path)
    np.testing.assert_array_equal(layer(np.array([1, 2])), records[[1, 2], 1:5])
    step_of(layer, klo.LazyAdam(0.1))([2, 7])
    layer.table.folder.close()
    found = np.memmap(path, np.float32, "r").reshape(50, -1)
    assert found[1, 0] == 1 and found[2, 0] == record_marks(found[2:3, 1:], [2])[0]
    with pytest.raises(SystemExit) as end:
        files_main(["check", str(tmp_path)])
    assert end.value.code == 0 and "; 3 rows are as they were written" in capsys.readouterr().out


def test_a_copy_of_a_folder_is_as_good(tmp_path):
    filled(tmp_path / "a")
    rows = embedding(f"{tmp_path}/a?mode=ro").table.numpy()
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    np.testing.assert_array_equal(embedding(tmp_path / "b").table.numpy(), rows)


def test_what_a_check_says(tmp_path, capsys):
    layer = embedding(tmp_path / "open")
    filled(tmp_path / "right")
    small_model(f"{tmp_path}/model").save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(SystemExit) as end:
        files_main(["check", str(tmp_path)])
    said = capsys.readouterr().out
    assert end.value.code == 0 and "open/words: in use, not checked" in said
    assert "right/words: closed, with all of its files" in said and "m.weights.h5: no damage found" in said
    layer.table.folder.close()
    for name, content in {
        "torn": json.dumps(
            {**json.loads((tmp_path / "right/words/table.json").read_text()), "closed": False}
        ),
        "half": '{"table": ',
        "other": '["table"]',
    }.items():
        (tmp_path / "right/words/table.json").write_text(content)
        with pytest.raises(SystemExit) as end:
            files_main(["check", str(tmp_path / "right")])
        said = capsys.readouterr().out
        assert end.value.code == 1 and ("It was not closed" if name == "torn" else "is damaged") in said
        if name != "torn":
            with pytest.raises(OSError, match=r"words/table\.json is damaged: it must"):
                embedding(tmp_path / "right")
    (tmp_path / "right/words/table.json").unlink()
    with pytest.raises(OSError, match=r"words/table\.json is gone, and must be there"):
        embedding(tmp_path / "right")


def test_closed_when_the_table_goes(tmp_path):
    model = small_model(tmp_path)
    model.fit(*SMALL, verbose=0)
    assert not is_closed(tmp_path / "words")
    del model
    gc.collect()
    assert is_closed(tmp_path / "words")


SMALL = np.arange(32).reshape(8, 4) % 7, np.ones((8, 1))


def small_model(folder, **options):
    words = ShardedEmbedding(50, 4, storage=f"file:{folder}", combiner="sum", name="words", **options)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), words, keras.layers.Dense(1)])
    model.compile(klo.LazyAdam(0.1), "mse")
    return model


def is_closed(folder):
    return json.loads((folder / "table.json").read_text())["closed"]


def rows_of(model):
    return model.get_layer("words").table.numpy()


def test_closed_by_hand(tmp_path):
    model = small_model(tmp_path)
    model.fit(*SMALL, verbose=0)
    rows = rows_of(model)
    kl.close_files(model)
    assert is_closed(tmp_path / "words")
    for use in (rows_of, lambda model: model(SMALL[0]), lambda model: model.get_layer("words")(SMALL[0])):
        with pytest.raises(ValueError, match="must be open to be used"):
            use(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be open to be used"):
        model.fit(*SMALL, verbose=0)  # a function that was traced before
    np.testing.assert_array_equal(rows_of(small_model(tmp_path)), rows)
    kl.close_files(model)  # a second time is nothing


def test_a_second_model_of_a_process_takes_the_folder_over(tmp_path):
    """As where a cell of a notebook runs twice."""
    first = small_model(tmp_path)
    first.fit(*SMALL, verbose=0)
    rows = rows_of(first)
    with pytest.warns(UserWarning, match=r"is the folder of another table of this process.*\?mode=new"):
        second = small_model(tmp_path)
    np.testing.assert_array_equal(rows_of(second), rows)
    second.fit(*SMALL, verbose=0)
    with pytest.raises(ValueError, match="by a table that took the folder over"):
        first(SMALL[0])


def test_copies_of_a_model_have_folders_of_their_own(tmp_path):
    model = small_model(tmp_path / "rows")
    model.fit(*SMALL, verbose=0)
    model.save(tmp_path / "old.keras")
    saved = rows_of(model)
    model.fit(*SMALL, verbose=0)
    newer = rows_of(model)
    with pytest.warns(UserWarning, match=r"words exists and stays as it is: .*words-2\."):
        loaded = keras.models.load_model(tmp_path / "old.keras")
    np.testing.assert_array_equal(rows_of(loaded), saved)
    assert loaded.get_layer("words").get_config()["storage"] == f"file:{tmp_path}/rows"
    with pytest.warns(UserWarning, match=r"words-3\."):
        clone = keras.models.clone_model(model)
    assert not np.array_equal(rows_of(clone), newer)
    with pytest.warns(UserWarning, match=r"words-4\."):
        larger = kl.resize(model, {"words": 60})
    np.testing.assert_array_equal(rows_of(larger)[:50], newer)
    with pytest.warns(UserWarning, match=r"words-5\."):
        fold = small_model(f"{tmp_path}/rows?mode=new")
    loaded.fit(*SMALL, verbose=0)
    fold.fit(*SMALL, verbose=0)
    # None of them has changed what is there.
    np.testing.assert_array_equal(rows_of(model), newer)
    kl.close_files(model)
    again = keras.models.load_model(tmp_path / "old.keras")
    np.testing.assert_array_equal(rows_of(again), saved)
    np.testing.assert_array_equal(rows_of(small_model(tmp_path / "rows")), newer)


def test_rows_go_where_they_are_told_to(tmp_path):
    model = small_model(tmp_path / "rows")
    model.fit(*SMALL, verbose=0)
    model.save(tmp_path / "m.keras")
    saved = rows_of(model)
    with kl.storage(tmp_path / "elsewhere"):
        loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(rows_of(loaded), saved)
    assert (tmp_path / "elsewhere" / "words" / "table.json").exists()
    model.fit(*SMALL, verbose=0)
    with kl.storage(overwrite=True), pytest.raises(BlockingIOError, match="is in use"):
        keras.models.load_model(tmp_path / "m.keras")
    kl.close_files(model)
    with kl.storage(overwrite=True):
        again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(rows_of(again), saved)
    kl.close_files(again)
    np.testing.assert_array_equal(rows_of(small_model(tmp_path / "rows")), saved)


def test_all_rows_are_never_read_as_one_tensor(tmp_path):
    """Their variable has records, of which Keras would take the slots for values."""
    layer = embedding(tmp_path)
    step_of(layer, klo.LazyAdam(0.1))([1, 2])
    (weight,) = layer.trainable_variables
    penalty = keras.regularizers.L2(0.1)
    for read in (keras.ops.sum, penalty, tf.reduce_sum, np.asarray, lambda w: w * 2, lambda w: w.numpy()):
        for call in (read, tf.function(read)):
            with pytest.raises(ValueError, match=r"must be read in pieces.*embeddings_regularizer"):
                call(weight)
    np.testing.assert_array_equal(layer(tf.range(50)), layer.table.numpy())


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    model = model_of(f"file:{tmp_path}")
    before = arrays_of(*tables_of(model))
    monkeypatch.setattr(mapped, "_LEAST_FREE", 1 << 60)
    with pytest.raises(tf.errors.OpError, match=r"The disk of .* is full: a step needs"):
        trained(model)
    for name, rows in before.items():
        np.testing.assert_array_equal(arrays_of(*tables_of(model))[name], rows, err_msg=name)
    monkeypatch.undo()
    trained(model)


def test_what_is_refused(tmp_path):
    layer = embedding(tmp_path / "a")
    layer.table.folder.close()
    for options in ({"rows": 51}, {"dim": 5}, {"dtype": "bfloat16"}):
        with pytest.raises(ValueError, match="`storage` must be a folder of this table"):
            embedding(tmp_path / "a", **options)
    embedding(tmp_path / "a").table.folder.close()
    with pytest.raises(ValueError, match=r"`storage` must be one of .* or 'file:<folder>'"):
        embedding("")
    with pytest.raises(ValueError, match="`initializer` of a table in files must be"):
        embedding(tmp_path / "b", embeddings_initializer="orthogonal")
    with strategy_of(2).scope(), pytest.raises(ValueError, match="by columns"):
        embedding(tmp_path / "c", placement="columns")
    with strategy_of(2).scope():
        words = embedding(tmp_path / "d", placement="range").table
    with pytest.raises(ValueError, match="Rows in files stay where they are"):
        words.check_move(words.placement)
    (tmp_path / "e").write_text("a file")
    with pytest.raises(OSError, match=r"exists|directory"):
        embedding(tmp_path / "e")
    head = kl.layers.FullSoftmax(50, kernel=embedding(tmp_path / "f"))
    with pytest.raises(ValueError, match='`kernel` of a head must be an embedding with storage="device"'):
        head.build((None, 4))
