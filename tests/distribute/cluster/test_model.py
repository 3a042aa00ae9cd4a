"""`kl.Model` on a cluster of real processes: the numbers of one device, and Keras's ways."""

import re

import keras
import numpy as np
import pytest
from distribute.cluster._model import MODEL, ended, said

import keras_largeout as kl

NUMBERS = (
    MODEL
    + """
# The other optimizers: tests/conformance.
model = make(kl.optimizers.LazyAdam)
weighted = data(12, seed=3).map(lambda x, y: (x, y, tf.cast(tf.range(8) % 3, tf.float32)))
say("fit", model.fit(data(12), epochs=2, validation_data=weighted, shuffle=False, verbose=0).history)
say("iterations", model.optimizer.iterations.numpy())
say("evaluate", model.evaluate(*arrays(5), batch_size=8, verbose=0))
say("weighted", model.evaluate(weighted, verbose=0))
say("predict", np.abs(model.predict(data(5).map(lambda x, y: x), verbose=0)).sum())
top = model.layers[-1].predictor(model, k=3)
x = np.random.default_rng(0).normal(size=(80, 12)).astype("float32")
y = np.random.default_rng(1).integers(-1, 300, (80, 4)).astype("int32")
for own in (None, kl.optimizers.LazyAdam(1e-2)):
    keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        hidden = keras.Input((12,))
        labels = kl.layers.SparseOutput(300, fan_in=8, optimizer=own, seed=3)
        sparse = kl.Model(hidden, labels(keras.layers.Dense(64, activation="relu")(hidden)))
        sparse.compile(kl.optimizers.LazyAdam(1e-2), loss=labels.loss)
    history = sparse.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    say(f"fan_in_{own is not None}", history)
    say(f"labels_{own is not None}", labels.predictor(sparse, k=3).predict(x, verbose=0)["ids"].tolist())
say("ids", top.predict(arrays(2)[0], batch_size=8, verbose=0)["ids"][:, -1].tolist())
say("on_batch", [model.train_on_batch(*arrays(1)), model.test_on_batch(*arrays(1))])
say("shape", model.predict_on_batch(arrays(1)[0]).shape)
# Several steps per call, which an epoch does not divide by; read by the worker itself, and by the chief.
for reads in (True, False):
    model = make(kl.optimizers.LazyAdam, steps_per_execution=5)
    itself = reads and isinstance(STRATEGY, tf.distribute.ParameterServerStrategy)
    batches = (lambda context: data(12)) if itself else data(12)
    history = model.fit(batches, steps_per_epoch=12 if itself else None, epochs=2, shuffle=False, verbose=0)
    say(f"calls_{reads}", [*history.history["loss"], model.optimizer.iterations.numpy()])
"""
)


def test_one_worker_gives_the_numbers_of_one_device(new_cluster, run_alone):
    alone = run_alone(NUMBERS)
    cluster = ended(new_cluster(1, 2).run(NUMBERS))
    names = re.findall(r"^>> (\w+): ", alone.text, re.M)
    assert len(names) == 14
    for name in names:
        ours, theirs = said(cluster, name), said(alone, name)
        if isinstance(theirs, dict):
            assert set(ours) == set(theirs)
            for key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=2e-5), (name, key)
        elif name == "ids" or name.startswith("labels"):
            assert ours == theirs
        else:
            assert ours == pytest.approx(theirs, rel=2e-5), name


WAYS = (
    MODEL
    + """
import importlib.util
BOARD = importlib.util.find_spec("tensorboard") is not None
folder = os.environ["FOLDER"]
model = make(rate=keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9))
seen = []
history = model.fit(
    *arrays(20), batch_size=8, epochs=6, validation_split=0.2, verbose=2,
    callbacks=[
        keras.callbacks.ModelCheckpoint(folder + "/best.keras", save_best_only=True),
        keras.callbacks.ModelCheckpoint(folder + "/{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(folder + "/often.weights.h5", save_weights_only=True, save_freq=7),
        keras.callbacks.CSVLogger(folder + "/log.csv"),
        *([keras.callbacks.TensorBoard(folder + "/board", update_freq=5)] if BOARD else []),
        keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0),
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch)),
    ],
)
say("epochs", len(history.history["loss"]))
say("batches", len(seen))
say("rate", model.optimizer.learning_rate.numpy())
say("expected", 1e-2 * 0.9 ** (32 / 10))
say("files", sorted(os.listdir(folder)))
again = make()
again.load_weights(folder + "/2.weights.h5")
say("same", float(again.evaluate(*arrays(3), verbose=0) - model.evaluate(*arrays(3), verbose=0)))
with STRATEGY.scope():
    loaded = keras.models.load_model(folder + "/best.keras")
say("kind", [type(loaded).__name__, isinstance(loaded, kl.Model)])
say("goes_on", loaded.fit(data(4), verbose=0).history["loss"])

# Several steps a call; an epoch that they do not divide; classes of metrics.
model = make()
model.compile(kl.optimizers.SGD(0.1), loss=model.layers[-1].loss, steps_per_execution=4)
model.fit(data(10), epochs=2, verbose=0)
say("steps", model.optimizer.iterations.numpy())

# A function of the data: every worker reads its own part.
def read(context):
    pieces = tf.data.Dataset.range(1000, 1012).shard(context.num_input_pipelines, context.input_pipeline_id)
    return pieces.map(lambda i: (tf.fill([8, 5], tf.cast(i % 400 + 1, tf.int32)), tf.fill([8, 5], i % 400)))

# Every evaluation begins with the first batches, and comes to no others.
def first(context):
    words = tf.data.Dataset.range(1000).map(lambda i: tf.fill([8, 5], tf.where(i < 4, 1, 400)))
    return words.map(lambda words: (words, words))

model = make(kl.optimizers.SGD, 0.0)
there = {"validation_data": first, "validation_steps": 4}
say("read", model.fit(read, steps_per_epoch=12, epochs=3, verbose=0, **there).history)
model = make(kl.optimizers.SGD, steps_per_execution=5)
model.fit(read, steps_per_epoch=12, epochs=2, verbose=0, **there)
say("read_steps", model.optimizer.iterations.numpy())
made = data(2)
outside = {"x": lambda _: made, "steps_per_epoch": 12}
variable = {"x": lambda _: tf.data.Dataset.range(tf.Variable(3)), "steps_per_epoch": 12}
for wrong in ({"x": read}, {"x": data(2), "validation_data": read}, outside, variable):
    try:
        model.fit(**wrong)
    except ValueError as error:
        say("refused", str(error))
try:
    make(run_eagerly=True).fit(data(2))
except ValueError as error:
    say("eager", str(error))
try:
    model.fit(tf.data.Dataset.from_tensors((tf.fill([8, 5], 7), tf.fill([8, 5], WORDS + 7))), verbose=0)
except tf.errors.InvalidArgumentError as error:
    say("wrong_id", str(error)[-2000:])
say("after", model.evaluate(data(2), verbose=0) > 0)

# Subclass, with its own step; Sequential, built by fit; Keras's own layers, metrics and optimizer.
class Own(kl.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
    def call(self, x):
        return self.dense(x)
    def train_step(self, data):
        return {**super().train_step(data), "one": tf.constant(1.0)}

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
with STRATEGY.scope():
    own = Own()
    own.compile("adam", "mse")
    flat = kl.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.1),
                          keras.layers.BatchNormalization(), keras.layers.Dense(1, activation="sigmoid")])
    flat.compile(keras.optimizers.Adam(0.05), "binary_crossentropy",
                 metrics=["accuracy", keras.metrics.AUC()], weighted_metrics=["mae"])
say("own", sorted(own.fit(x, y, verbose=0).history))
history = flat.fit(x, y, sample_weight=y[:, 0] + 1, batch_size=8, epochs=8, verbose=0).history
say("sequential", [history["accuracy"][-1], sorted(history), int(flat.optimizer.iterations.numpy())])

# Keras's optimizer cannot make the slots of a table. What it trained elsewhere can be loaded here.
stock = make(keras.optimizers.Adam)
try:
    stock.fit(data(1), verbose=0)
except ValueError as error:
    say("stock", str(error))
with STRATEGY.scope():
    loaded = keras.models.load_model(folder + "/../stock.keras")
say("loaded", list(loaded.predict(np.zeros((4, 2), "int32"), verbose=0).shape))

# An optimizer of a layer's own counts its steps too.
with STRATEGY.scope():
    x = keras.Input((4,))
    head = kl.layers.SparseOutput(50, fan_in=4, optimizer=keras.optimizers.Adam(0.01))
    fused = kl.Model(x, head(keras.layers.Dense(16)(x)))
    fused.compile("adam", loss=head.loss)
fused.fit(*(np.zeros((200, n), kind) for n, kind in ((4, "float32"), (1, "int32"))), batch_size=2, verbose=0)
say("fused", [int(optimizer.iterations.numpy()) for optimizer in (fused.optimizer, head.optimizer)])

# Each of the optimizers of tables, too.
with STRATEGY.scope():
    tables = [kl.layers.TableConfig(f"t{i}", 9, 4, optimizer=kl.optimizers.LazyAdam(0.1 * i)) for i in (1, 2)]
    configs = [kl.layers.FeatureConfig(table.name, table) for table in tables]
    embedding, ids = kl.layers.DistributedEmbedding(configs), [keras.Input((), dtype="int32") for _ in tables]
    several = kl.Model(ids, keras.layers.add(embedding(ids)))
    several.compile("sgd", "mse")
several.fit([np.arange(400) % 9] * 2, np.zeros((400, 4)), batch_size=2, verbose=0)
say("several", [int(optimizer.iterations.numpy()) for optimizer in embedding.optimizers])
"""
)


def test_keras_ways(new_cluster, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    stock = kl.Sequential([keras.Input((2,), dtype="int32"), kl.layers.ShardedEmbedding(9, 3)])
    stock.compile("adam", "mse")
    stock.fit(np.zeros((4, 2)), np.zeros((4, 2, 3)), verbose=0)
    stock.save(tmp_path / "stock.keras")
    script = ended(new_cluster(2, 2).run(WAYS, FOLDER=str(folder)))
    assert said(script, "epochs") == 2 and said(script, "batches") == 32
    assert said(script, "rate") == pytest.approx(said(script, "expected"), rel=1e-5)
    files = ["1.weights.h5", "2.weights.h5", "best.keras", "log.csv", "often.weights.h5"]
    assert [name for name in said(script, "files") if name != "board"] == files
    assert said(script, "same") == 0
    assert said(script, "kind") == ["Model", True] and len(said(script, "goes_on")) == 1
    assert said(script, "steps") == 20
    read = said(script, "read")
    assert read.keys() == {"loss", "val_loss"} and len(read["loss"]) == 3
    assert read["val_loss"] == pytest.approx([read["val_loss"][0]] * 3, rel=1e-6)
    assert said(script, "read_steps") == 24
    refused = re.findall("^>> refused: (.*)$", script.text, re.M)
    assert "`steps_per_epoch` must say how many" in refused[0] and "`validation_steps`" in refused[1]
    assert "must make its datasets itself" in refused[2] and "must not make variables" in refused[3]
    assert "`run_eagerly` must be False" in said(script, "eager")
    assert "must be in [0, 500)" in said(script, "wrong_id") and said(script, "after")
    assert said(script, "own") == ["loss", "one"]
    wanted = r"one of keras_largeout\.optimizers where parameter servers .* use .*\.LazyAdam"
    assert re.search(wanted, said(script, "stock")) and said(script, "loaded") == [4, 2, 3]
    accuracy, names, steps = said(script, "sequential")
    assert said(script, "fused") == [100, 100]
    assert said(script, "several") == [200, 200]
    assert accuracy > 0.8 and steps == 64 and names == ["accuracy", "auc", "loss", "mae"]


LOAD = (
    MODEL
    + """
import warnings
rows, dim = 20_000, 8
weights = 1 / np.arange(1, rows + 1) ** 1.1
ids = np.random.default_rng(0).choice(rows, (32 * 10, 20), p=weights / weights.sum()).astype("int32")
counts = weights * 1e6
plan = kl.distribute.plan(
    [kl.distribute.TableSpec("words", rows, dim, counts=counts)], devices=2, batch_size=32 * 20, small=0
)
for placement in ("range", plan):
    with STRATEGY.scope():
        tokens = keras.Input((20,), dtype="int32")
        x = kl.layers.ShardedEmbedding(rows, dim, placement=placement, name="words")(tokens)
        head = kl.layers.HierarchicalSoftmax(rows, counts=counts, name="output")
        model = kl.Model(tokens, head(x))
        model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    balance = kl.callbacks.LoadBalance(warn_above=1.25)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(ids, ids, batch_size=32, epochs=2, verbose=0, callbacks=[balance]).history
    name = "contiguous" if placement == "range" else "planned"
    load = balance.loads["words"]
    say(name, [history["words_load"][-1], history["output_load"][-1]])
    say(name + "_rows", [load.steps, load.work.tolist(), load.gradients.tolist(), load.bytes.tolist()])
    say(name + "_warned", [str(w.message) for w in caught if "busiest server" in str(w.message)])
say("unique", sum(len(np.unique(batch)) for batch in ids.reshape(10, -1)))
"""
)


def test_load_of_servers(new_cluster):
    script = ended(new_cluster(2, 2).run(LOAD))
    assert said(script, "contiguous")[0] > 1.5
    assert max(said(script, "planned")) <= 1.15
    steps, work, gradients, ((first, second),) = said(script, "contiguous_rows")
    # Data is shuffled: as many rows as there are in these batches, more or less.
    assert steps == 10 and sum(work) == pytest.approx(said(script, "unique"), rel=0.05)
    assert gradients == work and [first, second] == [2 * n * (8 * 4 + 8) for n in work]
    assert len(said(script, "contiguous_warned")) == 1 and not said(script, "planned_warned")


FILES = (
    MODEL
    + """
import pathlib, time
FOLDER = os.environ["FOLDER"]
keras.utils.set_random_seed(1)
with STRATEGY.scope():
    inputs = {name: keras.Input((3,), dtype="int32", name=name) for name in ("a", "b", "c")}
    one, two = kl.layers.TableConfig("one", 300, 8), kl.layers.TableConfig("two", 500, 8)
    tables = {"a": one, "b": two, "c": two}
    features = {name: kl.layers.FeatureConfig(name, table, combiner="sum") for name, table in tables.items()}
    x = kl.layers.DistributedEmbedding(features, placement="permutation")(inputs)
    x = keras.layers.Dense(64, activation="relu")(keras.layers.Concatenate()(list(x.values())))
    head = kl.layers.SparseOutput(WORDS, fan_in=8, optimizer=keras.optimizers.Adam(0.01))
    model = kl.Model(inputs, head(x))
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
rng = np.random.default_rng(0)
x = {name: rng.integers(0, 300, (64, 3)).astype("int32") for name in inputs}
y = rng.integers(0, WORDS, (64, 2)).astype("int32")

def fit():
    model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    return model.evaluate(x, y, verbose=0)

fit()
with kl.distribute.server_files(FOLDER):
    model.save_weights(f"{FOLDER}/first.weights.h5")
first = fit()
with kl.distribute.server_files(FOLDER, keep=2):
    model.save_weights(f"{FOLDER}/second.weights.h5")
say("folders", len(list(pathlib.Path(FOLDER).glob("tables-*"))))
second = fit()
model.load_weights(f"{FOLDER}/first.weights.h5")
say("first", [first, fit()])
model.load_weights(f"{FOLDER}/second.weights.h5")
say("second", [second, fit()])
time.time_ns = lambda: 0  # a clock that goes back
with kl.distribute.server_files(FOLDER):
    model.save_weights(f"{FOLDER}/third.weights.h5")
say("left", len(list(pathlib.Path(FOLDER).glob("tables-*"))))

def nowhere():
    with kl.distribute.server_files("/proc/none"):
        model.save_weights(f"{FOLDER}/none.weights.h5")

third = fit()
moved = pathlib.Path(f"{FOLDER}-moved")
pathlib.Path(FOLDER).rename(moved)
model.load_weights(f"{moved}/third.weights.h5")
say("third", [third, fit()])
moved.rename(FOLDER)

damaged = min(pathlib.Path(FOLDER).glob("tables-*/*.data-*"), key=lambda path: path.name)
content = bytearray(damaged.read_bytes())
content[100] ^= 1
damaged.write_bytes(content)
before = fit()
for name, trial in {
    "damaged": lambda: model.load_weights(f"{FOLDER}/third.weights.h5"),
    "gone": lambda: model.load_weights(f"{FOLDER}/second.weights.h5"),
    "nowhere": nowhere,
}.items():
    try:
        trial()
    except Exception as error:
        say(name, f"{type(error).__name__}: {error}")
say("unchanged", [before, model.evaluate(x, y, verbose=0)])
model.save_weights(f"{FOLDER}/chief.weights.h5")
say("files", sorted(path.name for path in pathlib.Path(FOLDER).glob("*.h5")))
say("bytes", [pathlib.Path(f"{FOLDER}/{name}.weights.h5").stat().st_size for name in ("third", "chief")])
"""
)


def test_servers_write_and_read_their_tables_themselves(new_cluster, folder):
    cluster = new_cluster(1, 2)
    script = ended(cluster.run(FILES, FOLDER=str(folder)))
    assert said(script, "folders") == 2 and said(script, "left") == 1
    for name in ("first", "second", "third"):  # the third from a folder that was moved
        before, after = said(script, name)
        assert after == pytest.approx(before, rel=1e-6)
    # The second save left nothing of the first, the file that the chief writes has no rows.
    gone = said(script, "gone")
    assert re.search(r"(?s)could not be loaded.*The chief does not find .*/tables-\d+/0000-", gone)
    assert "Error" in said(script, "nowhere")
    assert re.search(r"(?s)could not be loaded.*/tables-\d+/0000-\S+ is damaged", said(script, "damaged"))
    before, after = said(script, "unchanged")
    assert after == pytest.approx(before, rel=1e-6)
    assert said(script, "files") == [f"{n}.weights.h5" for n in ("chief", "first", "second", "third")]
    by_servers, by_chief = said(script, "bytes")
    assert by_chief - by_servers > 3 * 4 * (800 * 8 + 500 * 8)  # weights and two moments
