"""`warm_start`: rows of tables from other models, layers, arrays and files, by their ids."""

import gzip

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.tables import chunks


def embedding(rows, dim=4, name="words", **options):
    layer = kl.layers.ShardedEmbedding(rows, dim, "normal", name=name, **options)
    layer(np.array([0]) if "vocabulary" not in options else tf.constant([0]))
    return layer


def numbers(rows, dim=4):
    return np.random.default_rng(1).normal(size=(rows, dim)).astype("float32")


def rows_of(layer):
    return layer.table.numpy()


@pytest.mark.parametrize(("rows", "others"), [(9, 9), (9, 5), (5, 9)])
def test_rows_of_the_same_numbers(rows, others, monkeypatch):
    monkeypatch.setattr(chunks, "rows_per_chunk", lambda shape, itemsize=4: 2)
    layer, source = embedding(rows), numbers(others)
    before, both = rows_of(layer), min(rows, others)
    assert kl.warm_start(layer, source) == {"words": both}
    np.testing.assert_array_equal(rows_of(layer)[:both], source[:both])
    np.testing.assert_array_equal(rows_of(layer)[both:], before[both:])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", [int, str])
def test_rows_by_ids(kind, devices):
    with strategy_of(devices).scope():
        layer = embedding(7, placement="modulo")
    before, source = rows_of(layer), numbers(5)
    ids, source_ids = [[kind(i) for i in given] for given in ([50, 3, 41, 8, 12], [8, 77, 3, 50, 6])]
    assert kl.warm_start(layer, source, ids=ids, source_ids=np.array(source_ids)) == {"words": 3}
    expected = before.copy()
    expected[[0, 1, 3]] = source[[3, 2, 0]]
    np.testing.assert_array_equal(rows_of(layer), expected)


@pytest.mark.parametrize(
    "text", ["4 3\na 1 2 3\nb 4 5 6\na 9 9 9\nc -1 0 1e-3\n", "a 1 2 3 \nb 4 5 6\nc -1 0 1e-3"]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_of_vectors(text, zipped, tmp_path):
    path = tmp_path / ("vectors.txt.gz" if zipped else "vectors.txt")
    (gzip.open if zipped else open)(path, "wt").write(text)
    layer = embedding(5, 3)
    before = rows_of(layer)
    assert kl.warm_start(layer, path, ids=["z", "c", b"a", "y"]) == {"words": 2}
    np.testing.assert_array_equal(rows_of(layer)[[1, 2]], np.array([[-1, 0, 1e-3], [1, 2, 3]], "float32"))
    np.testing.assert_array_equal(rows_of(layer)[[0, 3, 4]], before[[0, 3, 4]])


def test_vocabularies():
    """Of both, of one, strings and integers: an id has its row wherever that is."""
    names = [f"name {i}" for i in range(20)]
    vocabularies = [kl.layers.DynamicVocabulary(32, name=f"v{i}") for i in range(2)]
    layers = [
        embedding(v.vocabulary_size(), name=f"words{i}", vocabulary=v) for i, v in enumerate(vocabularies)
    ]
    vocabularies[0](tf.constant(names[:12]), training=True)
    vocabularies[1](tf.constant(names[8:][::-1]), training=True)
    assert kl.warm_start(layers[1], layers[0]) == {"words1": 4}
    for name in names[8:12]:
        one, other = (rows_of(a)[v(tf.constant([name])).numpy()] for a, v in zip(layers, vocabularies))
        np.testing.assert_array_equal(one, other)
    source = numbers(3)
    found = kl.warm_start(layers[1], source, source_ids=["name 15", "unknown", "name 9"])
    assert found == {"words1": 2}
    np.testing.assert_array_equal(
        rows_of(layers[1])[vocabularies[1](tf.constant(["name 15"])).numpy()[0]], source[0]
    )
    static = embedding(20)
    assert kl.warm_start(static, layers[1], ids=names) == {"words": 12}
    np.testing.assert_array_equal(rows_of(static)[15], source[0])
    assert kl.warm_start(layers[1], source, ids=["name 19", "nobody"], source_ids=names[17:]) == {"words1": 1}
    np.testing.assert_array_equal(
        rows_of(layers[1])[vocabularies[1](tf.constant(["name 19"])).numpy()[0]], source[2]
    )


def model_of(rows=30, dim=4):
    tables = {n: kl.layers.TableConfig(n, rows + i, dim) for i, n in enumerate(("user", "item"))}
    features = {n: kl.layers.FeatureConfig(n, table) for n, table in tables.items()}
    ids = {n: keras.Input((), dtype="int32", name=n) for n in features}
    x = keras.layers.Add()(list(kl.layers.DistributedEmbedding(features, name="tables")(ids).values()))
    head = kl.layers.SampledSoftmax(rows, 5, name="head")
    model = kl.Model(ids, head(keras.layers.Dense(dim, name="dense")(x)))
    for name, table in model.get_layer("tables").get_embedding_tables().items():
        table.assign(numbers(*table.shape) + len(name))
    head.bias.assign(np.arange(rows, dtype="float32"))
    return model


def test_models_by_the_names_of_their_tables():
    larger, model = model_of(40), model_of()
    before = larger.get_layer("head").kernel.numpy()
    found = kl.warm_start(larger, model)
    assert found == {"user": 30, "item": 31, "head": 30, "head/bias": 30}
    for name, table in model.get_layer("tables").get_embedding_tables().items():
        there = larger.get_layer("tables").get_embedding_tables()[name].numpy()
        np.testing.assert_array_equal(there[: len(table)], table.numpy())
        assert len(there) > len(table)
    head, other = larger.get_layer("head"), model.get_layer("head")
    np.testing.assert_array_equal(head.kernel.numpy()[:30], other.kernel.numpy())
    np.testing.assert_array_equal(head.kernel.numpy()[30:], before[30:])
    np.testing.assert_array_equal(head.bias.numpy(), [*range(30), *range(30, 40)])


def test_other_layers():
    theirs, dense = keras.layers.Embedding(6, 4, name="theirs"), kl.layers.SparseDense(4, 6, name="dense")
    theirs(np.array([1]))
    dense(tf.ragged.constant([[1]]))
    ours = embedding(6)
    assert kl.warm_start(ours, theirs) == {"words": 6}
    np.testing.assert_array_equal(rows_of(ours), theirs.embeddings)
    assert kl.warm_start(dense, numbers(6)) == {"dense": 6}
    assert kl.warm_start(theirs, dense) == {"theirs": 6}
    np.testing.assert_array_equal(theirs.embeddings, numbers(6))
    head, tied = kl.layers.FullSoftmax(6, name="head"), kl.layers.FullSoftmax(6, kernel=ours, name="tied")
    for layer in (head, tied):
        layer(np.zeros((1, 4), "float32"))
    assert kl.warm_start(head, theirs) == {"head": 6}
    np.testing.assert_array_equal(head.kernel.numpy(), numbers(6))
    assert kl.warm_start(kl.Sequential([ours, tied]), kl.Sequential([ours, tied])) == {
        "words": 6,
        "tied/bias": 6,
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_widths(dtype):
    """Principal components keep the inner products of rows that are nearly in fewer dimensions."""
    rng = np.random.default_rng(0)
    source = (rng.normal(size=(50, 3)) @ rng.normal(size=(3, 8))).astype("float32")
    layer = embedding(50, 3, dtype=dtype)
    with pytest.raises(ValueError, match=r"unless `project` is True. Received: rows of shape"):
        kl.warm_start(layer, source)
    assert kl.warm_start(layer, source, project=True) == {"words": 50}
    found = np.asarray(rows_of(layer), np.float32)
    lengths = np.linalg.norm(source, axis=1)
    bound = {"float32": 1e-5, "bfloat16": 2**-7}[dtype] * np.outer(lengths, lengths)
    assert (np.abs(found @ found.T - source @ source.T) <= bound).all()
    wide = embedding(50, 10)
    kl.warm_start(wide, source, project=True)
    np.testing.assert_array_equal(rows_of(wide), np.pad(source, ((0, 0), (0, 2))))


def test_training_goes_on():
    model = model_of()
    model.compile(kl.optimizers.Adagrad(0.1), loss=model.get_layer("head").loss)
    kl.warm_start(model.get_layer("head"), numbers(30))
    x = {n: np.arange(8, dtype="int32") for n in ("user", "item")}
    model.fit(x, np.arange(8), verbose=0)
    changed = np.any(model.get_layer("head").kernel.numpy() != numbers(30), axis=1)
    assert changed[:8].all()


def test_what_is_refused(tmp_path):
    layer = embedding(5)
    with pytest.raises(ValueError, match="`target` must be built"):
        kl.warm_start(kl.layers.ShardedEmbedding(5, 4), numbers(5))
    with pytest.raises(ValueError, match="`target` must be an embedding"):
        kl.warm_start(keras.layers.Dense(3), numbers(5))
    with pytest.raises(ValueError, match=r"`source` must be a layer, .* Received: ndarray of shape \(5,\)"):
        kl.warm_start(layer, np.zeros(5))
    with pytest.raises(ValueError, match=r"has none of them. Received: ids such as"):
        kl.warm_start(layer, numbers(2), ids=["a", "b"], source_ids=["c", "d"])
    with pytest.raises(ValueError, match="`ids` must be different"):
        kl.warm_start(layer, numbers(2), ids=[1, 1])
    with pytest.raises(ValueError, match=r"`ids` must be at most as many as the rows, 5"):
        kl.warm_start(layer, numbers(2), ids=range(6))
    with pytest.raises(ValueError, match="must have a table of the name of one"):
        kl.warm_start(model_of(), layer)
    with pytest.raises(ValueError, match="must be None for several tables"):
        kl.warm_start(model_of(), model_of(), ids=[1])
    (tmp_path / "a.txt").write_text("a 1 2\nb 1\n")
    with pytest.raises(ValueError, match=r"must have 2 numbers on each line.* Received: 1 on line 2"):
        kl.warm_start(layer, tmp_path / "a.txt", ids=["a"])
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match="must have a word and its numbers"):
        kl.warm_start(layer, tmp_path / "a.txt", ids=["a"])
    with pytest.raises(ValueError, match="`source_ids` must be None for a file"):
        kl.warm_start(layer, tmp_path / "a.txt", source_ids=["a"])
