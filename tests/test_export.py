"""Export: stock ops only, the same numbers elsewhere, no copies, nothing half written."""

import os
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from _forked import run
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout import export_saved_model
from keras_largeout.ops.embedding.wrapper import embedding_lookup
from keras_largeout.ops.tree_softmax import stock_top_k

pytestmark = pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")


def language_model(rng, vocab=700, tree=None, train=True, **options):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = kl.layers.ShardedEmbedding(vocab, 12, mask_zero=True)(tokens)
    x = keras.layers.GRU(9, return_sequences=True)(x)
    head = kl.layers.HierarchicalSoftmax(vocab, tree=tree, kernel_initializer="normal", **options)
    model = keras.Model(tokens, head(x))
    if train:
        # A sparse update also switches variables to copying reads, which the export must not fall for.
        model.compile(kl.optimizers.LazyAdam(0.05), loss=head.loss)
        y = rng.integers(vocab, size=(16, 5))
        model.fit(rng.integers(1, vocab, size=(16, 5)), y, epochs=2, verbose=0)
    return model, head


def elsewhere(code, *arguments):
    """Runs `code` in a process that cannot import keras_largeout or keras."""
    block = "import sys; sys.modules['keras_largeout'] = None; sys.modules['keras'] = None\n"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-c", block + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def serve(path, *inputs):
    loaded = tf.saved_model.load(str(path))
    return loaded.serve(*inputs)


def assert_stock(path):
    assert b"Largeout" not in (path / "saved_model.pb").read_bytes()


def assert_same(found, expected):
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["ids"], expected["ids"])


@pytest.mark.full
@pytest.mark.parametrize("tree", [None, kl.trees.huffman], ids=["head_tail", "huffman"])
@pytest.mark.parametrize(("position", "dense_classes"), [("all", 10**6), ("last", 0)], ids=["all", "last"])
def test_predictor_gives_the_same_elsewhere(tree, position, dense_classes, rng, monkeypatch, tmp_path):
    vocab = 1500
    model, head = language_model(rng, vocab, tree)
    tokens = rng.integers(0, vocab, size=(6, 8)).astype(np.int32)
    tokens[2, 5:] = 0
    monkeypatch.setattr(stock_top_k, "_DENSE_CLASSES", dense_classes)
    serving = head.predictor(model, k=7, position=position)
    path = tmp_path / position
    export_saved_model(serving, path)
    assert_stock(path)
    expected = serving(tokens)
    loaded = tf.saved_model.load(str(path))
    assert_same(loaded.serve(tokens), expected)
    assert_same(loaded.signatures["serving_default"](tokens=tf.constant(tokens)), expected)
    assert loaded.serve(np.zeros((0, 4), np.int32))["ids"].shape[0] == 0


@pytest.mark.full
def test_fresh_process_and_command_line(rng, tmp_path):
    model, head = language_model(rng, train=False)
    serving = head.predictor(model, k=3, position="last")
    export_saved_model(serving, tmp_path / "model")
    tokens = rng.integers(1, 700, size=(4, 6)).astype(np.int32)
    expected = serving(tokens)
    np.save(tmp_path / "tokens.npy", tokens)
    elsewhere(
        """
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1] + "/model")
outputs = model.signatures["serving_default"](tokens=tf.constant(np.load(sys.argv[1] + "/tokens.npy")))
np.savez(sys.argv[1] + "/outputs.npz", **{k: v.numpy() for k, v in outputs.items()})

from tensorflow.python.tools.saved_model_cli import main
folder = sys.argv[1]
sys.argv = ["saved_model_cli", "run", "--dir", folder + "/model", "--tag_set", "serve", "--signature_def",
            "serving_default", "--inputs", f"tokens={folder}/tokens.npy", "--outdir", folder + "/cli"]
main()
""",
        tmp_path,
    )
    assert_same(np.load(tmp_path / "outputs.npz"), expected)
    found = {name: np.load(tmp_path / "cli" / f"{name}.npy") for name in ("ids", "scores")}
    assert_same(found, expected)


def test_each_table_is_on_disk_once(rng, tmp_path):
    model, head = language_model(rng)
    export_saved_model(head.predictor(model, k=3), tmp_path / "1")
    shapes = [tuple(shape) for _, shape in tf.train.list_variables(str(tmp_path / "1/variables/variables"))]
    assert shapes.count((700, 12)) == 1 and shapes.count((head.num_rows, 9)) == 1
    stored = sum(f.stat().st_size for f in (tmp_path / "1/variables").glob("*.data*"))
    weights = 4 * (
        700 * 12 + head.num_rows * 10 + sum(int(np.prod(w.shape)) for w in model.layers[2].weights)
    )
    arrays = sum(a.nbytes for a in head.tree.arrays().values())
    assert stored <= weights + arrays + 4096  # no optimizer slots, and nothing twice


@pytest.mark.full
def test_memory_stays_flat(tmp_path):
    code = """
import numpy as np, keras, keras_largeout as kl
from keras_largeout import export_saved_model
def status(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])
x = keras.Input((3,), dtype="int32")
y = keras.layers.Flatten()(kl.layers.ShardedEmbedding(500_000, 256)(x))
model = keras.Model(x, keras.layers.Dense(1)(y))
model.compile(kl.optimizers.SGD(0.1), loss="mse")
model.fit(np.arange(12).reshape(4, 3), np.ones(4), verbose=0)
try:
    open("/proc/self/clear_refs", "w").write("5")  # The high-water mark starts again.
except OSError:
    pass
before = status("VmHWM")
export_saved_model(model, sys.argv[1])
print((status("VmHWM") - before) // 1024)
"""
    code, printed = run(["-c", "import sys" + code, tmp_path / "1"])
    assert code == 0, printed
    assert int(printed.split()[-1]) < 128  # MB, beside a table of 512


def test_bfloat16_policy(rng, tmp_path):
    with_policy = keras.DTypePolicy("mixed_bfloat16")
    model, head = language_model(rng, train=False, dtype=with_policy)
    serving = head.predictor(model, k=4)
    export_saved_model(serving, tmp_path / "1")
    tokens = rng.integers(1, 700, size=(2, 3)).astype(np.int32)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_allclose(
        loaded.serve(tokens)["scores"], serving(tokens)["scores"], rtol=1e-4, atol=1e-4
    )


def test_several_inputs_by_name(rng, tmp_path):
    ids, weights = keras.Input((4,), dtype="int64", name="ids"), keras.Input((3,))
    bag = kl.layers.ShardedEmbedding(50, 3, combiner="mean", out_of_range="zero")(ids)
    model = keras.Model([ids, weights], [bag * weights, bag])
    export_saved_model(model, tmp_path / "1")
    assert_stock(tmp_path / "1")
    a, b = rng.integers(-3, 60, size=(5, 4)), rng.standard_normal((5, 3)).astype(np.float32)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    found = loaded.signatures["serving_default"](ids=tf.constant(a), inputs_1=tf.constant(b))
    first, second = model([a, b])
    np.testing.assert_allclose(found["output_0"], first, rtol=1e-6)
    np.testing.assert_allclose(found["output_1"], second, rtol=1e-6)

    named = keras.Model({"w": weights, "ids": ids}, {"bag": bag * weights})  # not in the order of names
    export_saved_model(named, tmp_path / "2")
    loaded = tf.saved_model.load(str(tmp_path / "2"))
    found = loaded.signatures["serving_default"](ids=tf.constant(a), w=tf.constant(b))
    np.testing.assert_allclose(found["bag"], first, rtol=1e-6)


def test_sequential_with_a_vocabulary(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="string"),
            keras.layers.StringLookup(vocabulary=["a", "b"]),
            kl.layers.ShardedEmbedding(3, 2),
        ]
    )
    export_saved_model(model, tmp_path / "1")
    words = tf.constant([["b", "z"]])
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_array_equal(loaded.serve(words)["output_0"], model(words))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = kl.layers.ShardedEmbedding(9, 2)

    def call(self, inputs):
        return {"rows": self.table(inputs["ids"])}


def test_subclassed_model_needs_a_signature(tmp_path):
    model = Subclassed()
    expected = model({"ids": np.array([1, 2])})
    with pytest.raises(ValueError, match="`input_signature` must be given"):
        export_saved_model(model, tmp_path / "1")
    export_saved_model(model, tmp_path / "1", input_signature={"ids": tf.TensorSpec([None], tf.int32)})
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_array_equal(loaded.serve(np.array([1, 2], np.int32))["rows"], expected["rows"])


class Lambda(keras.layers.Layer):
    """Calls a function, which Keras does not look into."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)

    def compute_output_shape(self, input_shape):
        return (*input_shape, 1)


def with_layer(function, dtype="int32"):
    x = keras.Input((2,), dtype=dtype)
    return keras.Model(x, Lambda(function)(x))


@pytest.mark.parametrize("nested", [False, True])
def test_custom_ops_are_named(nested, tmp_path):
    table = tf.Variable(tf.zeros([5, 1]))
    lookup = tf.function(embedding_lookup) if nested else embedding_lookup
    with pytest.raises(ValueError, match=r"stock TensorFlow ops.*Received: Largeout>\w+ \(node"):
        export_saved_model(with_layer(lambda x: lookup(table, x)), tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_large_constants_are_refused(tmp_path):
    numbers = np.zeros((5 * 2**20, 1), np.float32)
    tensor = tf.constant(numbers)
    for held in (numbers, tensor):
        with pytest.raises(ValueError, match=r"at most 16 MB.*Received: constant .* 20 MB"):
            export_saved_model(with_layer(lambda x, held=held: tf.gather(held, x)), tmp_path / "1")
    variable = tf.Variable(tensor)
    export_saved_model(with_layer(lambda x: tf.gather(variable, x)), tmp_path / "1")


def test_foreign_state_is_refused(tmp_path):
    keys = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int32), tf.constant([2], tf.int32)), -1
    )
    with pytest.raises(ValueError, match="must own the state"):
        export_saved_model(with_layer(lambda x: keys[x][..., None]), tmp_path / "1")


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"`serving` must be a keras\.Model. Received: Dense"):
        export_saved_model(keras.layers.Dense(1), tmp_path / "1")
    x = keras.Input((3,), dtype="int32", sparse=True)
    bag = kl.layers.ShardedEmbedding(5, 2, combiner="sum")(x)
    with pytest.raises(ValueError, match="must be dense, or ragged of rank 2"):
        export_saved_model(keras.Model(x, bag), tmp_path / "1")
    x = keras.Input((None, None), dtype="int32", ragged=True)
    bag = kl.layers.ShardedEmbedding(5, 2, combiner="sum")(x)
    with pytest.raises(ValueError, match="must be dense, or ragged of rank 2"):
        export_saved_model(keras.Model(x, bag), tmp_path / "1")


def test_what_is_replaced_and_what_is_not(tmp_path, monkeypatch):
    x = keras.Input((1,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(x))
    path = tmp_path / "deep" / "1"
    export_saved_model(model, path)
    model.layers[1].kernel.assign([[3.0]])
    with pytest.raises(FileExistsError, match="overwrite=False"):
        export_saved_model(model, path, overwrite=False)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(tf.saved_model, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            export_saved_model(model, path)
    assert [p.name for p in path.parent.iterdir()] == ["1"]
    assert serve(path, [[1.0]])["output_0"] != 3.0
    export_saved_model(model, path)
    assert [p.name for p in path.parent.iterdir()] == ["1"]
    assert serve(path, [[1.0]])["output_0"] == 3.0

    other = tmp_path / "other"
    other.mkdir()
    export_saved_model(model, other)  # An empty folder may be taken.
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="a SavedModel to replace"):
        export_saved_model(model, tmp_path / "full")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@pytest.mark.full
def test_training_goes_on_afterwards(rng, tmp_path):
    model, head = language_model(rng)
    serving = head.predictor(model, k=3)
    export_saved_model(serving, tmp_path / "1")
    model.fit(rng.integers(1, 700, size=(8, 5)), rng.integers(700, size=(8, 5)), verbose=0)
    tokens = rng.integers(1, 700, size=(2, 3))
    before = serve(tmp_path / "1", tokens.astype(np.int32))["scores"]
    assert np.abs(before - serving(tokens)["scores"]).max() > 1e-4  # It was a copy.
    export_saved_model(serving, tmp_path / "1")
    after = serve(tmp_path / "1", tokens.astype(np.int32))["scores"]
    np.testing.assert_allclose(after, serving(tokens)["scores"], rtol=1e-5, atol=1e-5)


def bags(**options):
    """A model of two named inputs."""
    ids = keras.Input((3,), dtype="int32", name="ids")
    weights = keras.Input((3,), name="w")
    rows = kl.layers.ShardedEmbedding(9, 2, combiner="sum", **options)(ids, weights=weights)
    return keras.Model({"ids": ids, "w": weights}, {"bag": rows})


def test_served_in_every_way(tmp_path):
    model = bags()
    x = {"ids": np.array([[1, 2, 8]], np.int32), "w": np.array([[0.5, 1, 2]], np.float32)}
    expected = model(x)["bag"]
    export_saved_model(model, tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    assert set(loaded.signatures) == {"serving_default", "serve"}
    given = {name: tf.constant(value) for name, value in x.items()}
    found = [loaded.signatures["serve"](**given), loaded.serve(given), loaded.serve(x)]
    found += [loaded.serve(*given.values()), loaded.serve(list(given.values()))]
    for answer in found:
        np.testing.assert_allclose(answer["bag"], expected, rtol=1e-6)


@pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14),
    reason="before 3.14, Keras exports variables and functions without asking layers",
)
@pytest.mark.parametrize("cls", [keras.Model, kl.Model])
def test_keras_exports_with_a_warning_that_names_ours(cls, tmp_path):
    words, head = keras.Input((3,), dtype="int32"), kl.layers.FullSoftmax(9, name="head")
    model = cls(words, head(keras.layers.Embedding(5, 4)(words)))
    with pytest.warns(UserWarning, match=r"`keras_largeout\.export_saved_model") as seen:
        head.predictor(model, k=2).export(tmp_path / "keras", verbose=False)
    assert len({str(warning.message) for warning in seen if "keras_largeout" in str(warning.message)}) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*export_saved_model")
        kl.export_saved_model(head.predictor(model, k=2), tmp_path / "ours")


def test_what_others_save_within_stock_ops(tmp_path):
    model = bags()
    x = {"ids": tf.constant([[1, 2, 8]]), "w": tf.constant([[0.5, 1, 2]])}
    with kl.stock_ops():
        model.export(tmp_path / "1", verbose=False)
    assert_stock(tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_allclose(loaded.serve(x)["bag"], model(x)["bag"], rtol=1e-6)


def test_tables_in_parts_are_not_for_others(tmp_path):
    with strategy_of(2).scope():
        model = bags(placement="modulo")
    with pytest.raises(ValueError, match="must be in one piece to be saved within"), kl.stock_ops():
        model.export(tmp_path / "1", verbose=False)


def test_embeddings_in_int8(tmp_path):
    model = bags()
    x = {"ids": np.array([[1, 2, 8], [0, 0, 9]], np.int32), "w": np.ones((2, 3), np.float32)}
    table = model.layers[-1].table
    rows = np.random.default_rng(0).normal(size=(9, 2)).astype("float32")
    rows[2] = 0
    table.assign(rows)
    export_saved_model(model, tmp_path / "1", table_dtype="int8")
    assert_stock(tmp_path / "1")
    found = serve(tmp_path / "1", x)["bag"]
    scale = np.abs(rows).max(axis=1, keepdims=True) / 127
    near = np.rint(rows / np.where(scale > 0, scale, 1)) * scale
    assert np.abs(near - rows).max() <= scale.max() / 2 + 1e-7
    np.testing.assert_allclose(found, [near[1] + near[2] + near[8], 2 * near[0]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["tree", "full"])
def test_heads_in_int8(kind, devices, rng, tmp_path):
    """A smaller file, and nearly the same scores."""
    head = {"tree": kl.layers.HierarchicalSoftmax, "full": kl.layers.FullSoftmax}[kind]
    with strategy_of(devices).scope():
        words = keras.Input((4,), dtype="int32", name="words")
        hidden = kl.layers.ShardedEmbedding(3000, 64, "normal", combiner="mean")(words)
        model = keras.Model(words, head(3000, name="head")(hidden))
        serving = model.get_layer("head").predictor(model, k=10)
    x = rng.integers(0, 3000, (16, 4)).astype(np.int32)
    sizes, scores = [], []
    for name, dtype in (("float", None), ("int8", "int8")):
        export_saved_model(serving, tmp_path / name, table_dtype=dtype)
        sizes.append(sum(file.stat().st_size for file in (tmp_path / name / "variables").iterdir()))
        scores.append(serve(tmp_path / name, x)["scores"].numpy())
    assert sizes[1] < 0.4 * sizes[0]
    np.testing.assert_allclose(scores[1], scores[0], atol=0.02)


def test_another_dtype_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`table_dtype` must be None or 'int8'"):
        export_saved_model(bags(), tmp_path / "1", table_dtype="int4")


def test_a_bare_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bare", "./again"):
        export_saved_model(bags(), name)
        assert (tmp_path / name / "saved_model.pb").exists()


def ragged_model():
    """A model of ragged ids with weights, strings and numbers of their own lengths."""
    inputs = {
        name: keras.Input((None,), dtype=dtype, ragged=True, name=name)
        for name, dtype in (("ids", "int64"), ("weights", "float32"), ("words", "string"))
    }
    bag = kl.layers.ShardedEmbedding(30, 4, "normal", combiner="mean")(
        inputs["ids"], weights=inputs["weights"]
    )
    hashed = kl.layers.CategoryHashing(20, hash="farmhash64")(inputs["words"])
    features = {
        "words": kl.layers.FeatureConfig("words", kl.layers.TableConfig("rows", 20, 4, combiner="sqrtn"))
    }
    words = kl.layers.DistributedEmbedding(features)({"words": hashed})["words"]
    head = kl.layers.FullSoftmax(40, kernel_initializer="normal")
    model = keras.Model(inputs, head(keras.layers.concatenate([bag, words])))
    return head.predictor(model, k=5)


def test_ragged_inputs_are_padded_in_the_signature(rng, tmp_path):
    serving, lengths = ragged_model(), [3, 0, 5, 1]
    x = {
        "ids": tf.RaggedTensor.from_row_lengths(rng.integers(0, 30, 9), lengths),
        "weights": tf.RaggedTensor.from_row_lengths(np.float32([0, 0.5, 0, 1, 0, 3, 2, 0.1, 0]), lengths),
        "words": tf.RaggedTensor.from_row_lengths([f"w{i}" for i in range(9)], lengths),
    }
    export_saved_model(serving, tmp_path / "1")
    assert_stock(tmp_path / "1")
    expected = serving(x)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    for width in (5, 8):
        padding = {"ids": -1, "weights": np.nan, "words": ""}
        padded = {name: part.to_tensor(padding[name], [None, width]) for name, part in x.items()}
        assert_same(served(**padded), expected)
    assert served(**{name: part[:, :0] for name, part in padded.items()})["ids"].shape == (4, 5)
    assert served(**{name: part[:0] for name, part in padded.items()})["ids"].shape == (0, 5)


def test_padding_is_taken_from_the_end_alone(tmp_path):
    x = keras.Input((None,), dtype="int32", ragged=True, name="x")
    model = keras.Model(x, kl.layers.ShardedEmbedding(9, 2, combiner="sum", out_of_range="modulo")(x))
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    for path, signature in (("1", None), ("2", spec)):
        export_saved_model(model, tmp_path / path, signature)
        found = serve(tmp_path / path, tf.constant([[1, -1, 2, -1]]))["output_0"]
        np.testing.assert_array_equal(found, model(tf.ragged.constant([[1, -1, 2]])))
