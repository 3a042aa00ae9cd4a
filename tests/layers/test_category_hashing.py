"""`CategoryHashing`: the ids of Keras and of xxHash, several hashes, crosses, files, what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.ops.hashing.reference import xxhash64_reference as xxh64
from keras_largeout.ops.hashing.wrapper import HASHES

WORDS = ["red", "green", "", "blue", "red"]


@pytest.mark.parametrize("mask", [None, ""])
@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse", "integers"])
def test_farmhash_gives_the_ids_of_keras(kind, mask):
    words = {
        "dense": tf.constant(WORDS),
        "ragged": tf.ragged.constant([WORDS, [], ["red"]]),
        "sparse": tf.sparse.from_dense([WORDS, WORDS]),
        "integers": tf.constant([[7, 0], [-7, 2**31 - 1]]),
    }[kind]
    mask = 0 if kind == "integers" and mask is not None else mask
    ours = kl.layers.CategoryHashing(97, mask_value=mask)(words)
    want = keras.layers.Hashing(97, mask_value=mask)(words)
    assert type(ours) is type(want)
    if isinstance(ours, tf.SparseTensor):
        np.testing.assert_array_equal(ours.indices, want.indices)
        ours, want = ours.values, want.values
    if isinstance(ours, tf.RaggedTensor):
        ours, want = ours.flat_values, want.flat_values
    np.testing.assert_array_equal(ours, want)


@pytest.mark.parametrize("seed", [None, 5, 2**64 - 1])
def test_xxhash_is_what_another_program_computes(seed):
    layer = kl.layers.CategoryHashing(1000, num_hashes=3, hash="xxhash64", seed=seed)
    first = seed or 0
    want = [[xxh64(w.encode(), (first + j) % 2**64) % 1000 + 1000 * j for j in range(3)] for w in WORDS]
    np.testing.assert_array_equal(layer(tf.constant(WORDS)), want)
    masked = kl.layers.CategoryHashing(1000, hash="xxhash64", seed=seed, mask_value="")
    want = [xxh64(w.encode(), first) % 999 + 1 if w else 0 for w in WORDS]
    np.testing.assert_array_equal(masked(tf.constant(WORDS)), want)


def test_features_and_crosses_are_what_another_program_computes():
    layer = kl.layers.CategoryHashing(1000, hash="xxhash64", seed=5, crosses=[("city", "hour")])
    cities, hours = ["Oslo", "Rome"], [7, 23]
    ids = layer({"city": tf.constant(cities), "hour": tf.constant(hours)})
    assert list(ids) == ["city", "hour", "city_X_hour"]

    def seed(name):
        return xxh64(name.encode(), 5)

    np.testing.assert_array_equal(ids["city"], [xxh64(c.encode(), seed("city")) % 1000 for c in cities])
    np.testing.assert_array_equal(ids["hour"], [xxh64(str(h).encode(), seed("hour")) % 1000 for h in hours])
    parts = [
        xxh64(c.encode()).to_bytes(8, "little") + xxh64(str(h).encode()).to_bytes(8, "little")
        for c, h in zip(cities, hours)
    ]
    np.testing.assert_array_equal(ids["city_X_hour"], [xxh64(p, seed("city_X_hour")) % 1000 for p in parts])


@pytest.mark.parametrize("hash", HASHES)
def test_a_cross_is_no_joined_string(hash):
    layer = kl.layers.CategoryHashing(2**40, hash=hash, crosses=[("a", "b"), ("b", "a")], mask_value="")
    ids = layer({"a": tf.constant(["xy", "x", "", "x"]), "b": tf.constant(["z", "yz", "z", ""])})
    assert ids["a_X_b"][0] != ids["a_X_b"][1] and ids["a_X_b"][0] != ids["b_X_a"][0]
    assert ids["a_X_b"].numpy()[2:].tolist() == [0, 0]  # a part of it is padding


@pytest.mark.full
@pytest.mark.parametrize("hash", HASHES)
def test_four_hashes_of_a_million_categories(hash):
    """The rule of the square root: as many collisions as chance makes, which is about none."""
    layer = kl.layers.CategoryHashing(None, 4, hash=hash, rule="sqrt", vocabulary_size=1_000_000)
    assert (layer.num_bins, layer.total_bins) == (1000, 4000)
    found = layer.collisions(np.arange(1_000_000))
    assert found["categories"] == 1_000_000 and 0.4 < found["expected"] < 0.6
    assert found["collisions"] == found["categories"] - found["tuples"] <= 4
    one = kl.layers.CategoryHashing(1_000_000, hash=hash).collisions(np.arange(1_000_000))
    assert abs(one["collisions"] - one["expected"]) < 5 * 500  # a third of them; deviation below 500


@pytest.mark.parametrize("hash", HASHES)
def test_shapes_of_several_hashes(hash):
    layer = kl.layers.CategoryHashing(100, 4, hash=hash)
    table = kl.layers.ShardedEmbedding(layer.total_bins, 5, combiner="sum")
    dense, ragged = tf.constant([WORDS, WORDS]), tf.ragged.constant([WORDS, []])
    assert layer(dense).shape == (2, 5, 4) and table(layer(dense)).shape == (2, 5, 5)
    rows = table(layer(ragged))
    np.testing.assert_array_equal(rows[0], table(layer(dense))[0])
    sparse = layer(tf.sparse.from_dense([["a", ""], ["b", "c"]]))
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse)[1], layer(tf.constant(["b", "c"])))
    assert layer(keras.Input((7,), dtype="string")).shape == (None, 7, 4)
    assert layer(tf.constant([], tf.string)).shape == (0, 4)


@pytest.mark.parametrize("hash", HASHES)
def test_in_a_pipeline_and_in_a_model(hash):
    layer = kl.layers.CategoryHashing(50, hash=hash, crosses=[("a", "b")], name="hashing")
    features = {"a": np.array(WORDS), "b": np.arange(5)}
    inputs = {"a": keras.Input((), dtype="string", name="a"), "b": keras.Input((), dtype="int64", name="b")}
    ids = layer(inputs)
    stacked = keras.ops.stack(list(ids.values()), axis=1)
    model = kl.Model(inputs, kl.layers.SparseDense(1, layer.total_bins)(stacked))
    of_model = model({name: tf.constant(values) for name, values in features.items()})
    data = tf.data.Dataset.from_tensor_slices(features).batch(2).map(layer)
    piped = np.concatenate([tf.stack(list(batch.values()), 1) for batch in data])
    np.testing.assert_array_equal(model.layers[-1](piped), of_model)
    clone = kl.layers.CategoryHashing.from_config(layer.get_config())
    np.testing.assert_array_equal(clone(features)["a_X_b"], piped[:, 2])


def test_bytes_are_hashed_as_they_are():
    values = [b"\xff\xfe", b"\x00", b"a\x00b", b"caf\xe9"]
    layer = kl.layers.CategoryHashing(1000, hash="xxhash64")
    np.testing.assert_array_equal(layer(tf.constant(values)), [xxh64(v) % 1000 for v in values])


def test_export(tmp_path):
    words = keras.Input((3,), dtype="string")
    for hash in HASHES:
        layer = kl.layers.CategoryHashing(20, 2, hash=hash, name="hashing")
        model = kl.Model(words, kl.layers.ShardedEmbedding(40, 4, combiner="sum")(layer(words)))
        path = str(tmp_path / hash)
        if hash == "xxhash64":
            with pytest.raises(ValueError, match=r"`hash` of 'hashing' must be 'farmhash64' in an exported"):
                kl.export_saved_model(model, path)
            continue
        kl.export_saved_model(model, path)
        batch = tf.constant([["a", "b", "c"]])
        saved = tf.saved_model.load(path)
        (served,) = tf.nest.flatten(saved.serve(batch))
        np.testing.assert_allclose(served, model(batch), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_bins": 1}, "`num_bins` must be an integer of at least 2. Received: num_bins=1"),
        ({"num_bins": None}, "`num_bins` must be an integer of at least 2"),
        ({"num_bins": 9, "num_hashes": 0}, "`num_hashes` must be a positive integer"),
        ({"num_bins": 9, "hash": "md5"}, "`hash` must be one of"),
        ({"num_bins": 9, "rule": "log"}, "`rule` must be one of"),
        ({"num_bins": None, "rule": "sqrt"}, "`vocabulary_size` must be given with rule='sqrt'"),
        ({"num_bins": 9, "vocabulary_size": 9}, "`vocabulary_size` must be given with rule='sqrt'"),
        ({"num_bins": 9, "rule": "sqrt", "vocabulary_size": 9}, "`num_bins` must be None where a `rule`"),
        ({"num_bins": 9, "seed": -1}, "`seed` must be None or an int from 0"),
        ({"num_bins": 9, "crosses": ["ab"]}, "`crosses` must be a list of tuples"),
        ({"num_bins": 9, "crosses": [("a",)]}, "`crosses` must be a list of tuples"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        kl.layers.CategoryHashing(**arguments)


def test_inputs_that_are_refused():
    layer = kl.layers.CategoryHashing(9, crosses=[("a", "b")], name="hashing")
    with pytest.raises(ValueError, match=r"`inputs` of 'hashing' must be a dictionary of features"):
        layer(tf.constant(["x"]))
    with pytest.raises(ValueError, match=r"`crosses` must name features of the inputs, which are \['a'\]"):
        layer({"a": tf.constant(["x"])})
    with pytest.raises(
        ValueError, match=r"must be dense tensors of one shape. Received: a: .*b: RaggedTensor"
    ):
        layer({"a": tf.constant(["x"]), "b": tf.ragged.constant([["x"]])})
    plain = kl.layers.CategoryHashing(9)
    for floats in (tf.constant([1.5]), keras.Input((3,))):
        with pytest.raises(TypeError, match=r"`inputs` must be strings or integers.*float32"):
            plain(floats)


@pytest.mark.parametrize(
    "mask_value, numbers, words", [(0, [1, 0, 2], ["x", "", "y"]), ("x", None, ["a", "x", "b"])]
)
def test_a_mask_among_strings_and_integers(mask_value, numbers, words):
    layer = kl.layers.CategoryHashing(1000, mask_value=mask_value, crosses=[("number", "word")])
    ids = layer({"number": np.array(numbers or [1, 0, 2]), "word": np.array(words)})
    assert (ids["number"].numpy() == 0).tolist() == [False, numbers is not None, False]
    for name in ("word", "number_X_word"):
        assert (ids[name].numpy() == 0).tolist() == [False, True, False]
    small = kl.layers.CategoryHashing(1000, mask_value=-1)({"small": np.array([255, 1], "uint8")})
    assert (small["small"].numpy() > 0).all()  # what a type cannot hold masks nothing
