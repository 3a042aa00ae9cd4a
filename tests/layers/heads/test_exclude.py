"""Top-k without the classes that are excluded: every head, every form of ids, models and exports."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _mirrored import cut_below_the_root
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.ops.export_mode import stock_ops
from keras_largeout.ops.tree_softmax import stock_top_k

CLASSES, DIM, K = 40, 6, 4

HEADS = {
    "tree": lambda: kl.layers.HierarchicalSoftmax(CLASSES, counts=np.arange(CLASSES, 0, -1)),
    "softmax over connections": lambda: kl.layers.SparseOutput(CLASSES, 3, loss="softmax", seed=1),
    "labels": lambda: kl.layers.SparseOutput(CLASSES, 3, seed=1),
    "all classes": lambda: kl.layers.FullSoftmax(CLASSES),
    "ranking": lambda: kl.layers.SampledSoftmax(CLASSES, 4, "uniform", loss="bpr", temperature=0.5),
}


@pytest.fixture(params=HEADS)
def head(request):
    head = HEADS[request.param]()
    head.build((None, DIM))
    for i, variable in enumerate(head.trainable_variables):
        variable.assign(np.random.default_rng(i).normal(size=variable.shape))
    return head


def expected(head, hidden, excluded, k=K):
    """Of all classes in the order of their scores, the first that are not excluded."""
    hidden = np.asarray(hidden).reshape(-1, DIM)
    scores, ids = (part.numpy() for part in head.top_k(hidden, CLASSES))
    kept = [
        [j for j in range(CLASSES) if row[j] not in out][:k] for row, out in zip(ids, excluded, strict=True)
    ]
    return np.take_along_axis(scores, np.array(kept), 1), np.take_along_axis(ids, np.array(kept), 1)


def lists(rng, head, hidden):
    """For each token some of its best classes, some others, one twice; for one token none."""
    best = head.top_k(hidden, 6)[1].numpy().reshape(-1, 6)
    found = [sorted({*row[::2].tolist(), *rng.integers(0, CLASSES, 3).tolist()}) for row in best]
    return [[], [*found[1], found[1][0]], *found[2:]]


def padded(found):
    return tf.ragged.constant(found, dtype=tf.int64).to_tensor(-1)


def sparse(found):
    pairs = [(row, at, label) for row, labels in enumerate(found) for at, label in enumerate(labels)]
    pairs = np.array(pairs, np.int64)
    return tf.SparseTensor(pairs[:, :2], pairs[:, 2], [len(found), max(map(len, found))])


FORMS = {
    "padded": padded,
    "numpy, int32": lambda found: padded(found).numpy().astype("int32"),
    "numpy, uint8": lambda found: tf.ragged.constant(found).to_tensor(255).numpy().astype("uint8"),
    "ragged": lambda found: tf.ragged.constant(found, dtype=tf.int32),
    "sparse": sparse,
}


def traced(head, ids):
    """`head.top_k` as a graph that knows of the ids only what the spec says."""
    search = tf.function(lambda hidden, exclude: head.top_k(hidden, K, exclude), autograph=False)
    return search.get_concrete_function(tf.TensorSpec([None, DIM]), ids)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms(head, rng, form, graph):
    hidden = rng.normal(size=(5, DIM)).astype("float32")
    found = lists(rng, head, hidden)
    exclude = FORMS[form](found)
    if graph:  # nothing is known of the number of ids
        spec = tf.type_spec_from_value(exclude)
        if isinstance(spec, tf.TensorSpec):
            spec = tf.TensorSpec([None, None], spec.dtype)
        scores, ids = traced(head, spec)(
            tf.constant(hidden), tf.convert_to_tensor(exclude) if form[:5] == "numpy" else exclude
        )
    else:
        scores, ids = head.top_k(hidden, K, exclude)
    want = expected(head, hidden, found)
    np.testing.assert_array_equal(ids, want[1])
    np.testing.assert_allclose(scores, want[0], rtol=1e-6)
    assert scores.shape == ids.shape == (5, K)


def test_axes_of_time_have_one_list(head, rng):
    hidden = rng.normal(size=(3, 2, DIM)).astype("float32")
    rows = [[3, 5], [], [1, 0]]
    _, ids = head.top_k(hidden, K, padded(rows))
    want = expected(head, hidden, [row for row in rows for _ in range(2)])[1]
    np.testing.assert_array_equal(ids, want.reshape(3, 2, K))
    each = rng.integers(0, CLASSES, (3, 2, 5))
    _, ids = head.top_k(hidden, K, each)
    np.testing.assert_array_equal(ids, expected(head, hidden, each.reshape(6, 5))[1].reshape(3, 2, K))


def test_nothing_and_nobody(head, rng):
    hidden = rng.normal(size=(3, DIM)).astype("float32")
    for nothing in (
        np.zeros((3, 0), int),
        np.full((3, 2), -1),
        np.full((3, 1), CLASSES),
        np.full((3, 1), 2**40),
    ):
        for got, want in zip(head.top_k(hidden, K, nothing), head.top_k(hidden, K)):
            np.testing.assert_array_equal(got, want)
    assert head.top_k(hidden[:0], K, np.zeros((0, 3), int))[1].shape == (0, K)
    assert head.top_k(hidden[:0], K, np.zeros((0, CLASSES), int))[1].shape == (0, K)


@pytest.mark.full
@pytest.mark.parametrize("width", [CLASSES, 2 * CLASSES])
def test_who_has_too_few_left_does_not_stop_the_others(head, rng, width):
    hidden = rng.normal(size=(4, DIM)).astype("float32")
    exclude = np.full((4, width), -1)
    for row, left in enumerate((K, K - 1, 0, CLASSES)):
        exclude[row, width - CLASSES : width - left] = rng.permutation(CLASSES)[: CLASSES - left]
    for search in (head.top_k, tf.function(head.top_k)):
        scores, ids = (part.numpy() for part in search(hidden, K, exclude))
        for row in (0, 3):
            want = expected(head, hidden[row], exclude[row : row + 1])
            np.testing.assert_array_equal(ids[row], want[1][0])
            np.testing.assert_allclose(scores[row], want[0][0], rtol=1e-5)
        assert ids[1, : K - 1].tolist() == expected(head, hidden[1], exclude[1:2], K - 1)[1][0].tolist()
        assert ids[1, -1] == -1 and scores[1, -1] == -np.inf
        assert np.all(ids[2] == -1) and np.all(scores[2] == -np.inf)
    metric = kl.metrics.RecallAtK(K)
    metric.update_state(np.array([[0, -1]] * 4), ids)
    assert 0 <= float(metric.result()) <= 0.5


def test_a_search_costs_what_is_excluded_not_how_wide_it_is_padded(monkeypatch, rng):
    """Few tokens with many ids are searched apart; heads that score all classes mask them."""
    hidden = rng.normal(size=(16, DIM)).astype("float32")
    exclude = np.full((16, 600), -1)
    exclude[:, ::300] = rng.integers(0, 1000, (16, 2))
    exclude[5] = rng.permutation(1000)[:600]
    tree = kl.layers.HierarchicalSoftmax(1000, counts=np.arange(1000, 0, -1))
    for head in (tree, kl.layers.FullSoftmax(1000)):
        head.build((None, DIM))
        searched, search = [], head.best_classes

        def noting(hidden, k, *more, searched=searched, search=search):
            searched.append((hidden.shape[0], int(k)))
            return search(hidden, k, *more)

        want = head.top_k(hidden, 1000)[1].numpy()
        monkeypatch.setattr(head, "best_classes", noting)
        ids = head.top_k(hidden, K, exclude)[1].numpy()
        assert searched == ([(15, K + 2), (1, K + 600)] if head is tree else [(16, K)])
        for row in range(16):
            assert ids[row].tolist() == [j for j in want[row] if j not in exclude[row]][:K]


def test_refusals(head):
    hidden = np.zeros((3, 2, DIM), "float32")
    for bad in (np.zeros((3, 2, 1)), np.zeros((4, 2), int), np.zeros(3, int), np.zeros((3, 2, 1, 1), int)):
        with pytest.raises(ValueError, match=r"`exclude` must be class ids .* for tokens of shape \(3, 2\)"):
            head.top_k(hidden, K, bad)


@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_predictor_and_export(rng, tmp_path, form):
    """The items of the history are those that are excluded; or others, by their own input."""
    history = keras.Input((3,), dtype="int32", name="history")
    x = keras.layers.Flatten()(kl.layers.ShardedEmbedding(CLASSES, 2)(history))
    head = kl.layers.HierarchicalSoftmax(CLASSES, counts=np.arange(CLASSES, 0, -1))
    model = kl.Model(history, head(x))
    items = rng.integers(0, CLASSES, (4, 3)).astype("int32")
    hidden = model.predict(items, verbose=0)

    def truth(excluded):
        return expected(head, hidden, excluded)[1]

    own = head.predictor(model, k=K, exclude=history)
    np.testing.assert_array_equal(own.predict(items, verbose=0)["ids"], truth(items))
    seen = keras.Input((None,), dtype="int32", ragged=form == "ragged", name="seen")
    other = head.predictor(model, k=K, exclude=seen)
    rows = truth([[]] * 4)[:, [0, 2]].tolist()
    rows[1] = []
    ids = tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)
    ids = ids if form == "ragged" else ids.to_tensor(-1)
    items = tf.constant(items)
    found = other([items, ids])["ids"]
    np.testing.assert_array_equal(found, truth(rows))
    if form == "ragged":  # an export takes dense inputs only
        return
    path = str(tmp_path / "other.keras")
    other.save(path)
    np.testing.assert_array_equal(keras.models.load_model(path)([items, ids])["ids"], found)
    kl.export_saved_model(other, str(tmp_path / "export"))
    served = tf.saved_model.load(str(tmp_path / "export"))
    names = {op.type for op in served.signatures["serving_default"].graph.get_operations()}
    assert not [name for name in names if name.startswith("Largeout")]
    np.testing.assert_array_equal(served.serve(items, ids)["ids"], found)


def test_subclassed_models_take_the_layer(rng):
    class Recommender(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = HEADS["tree"]()
            self.best = kl.layers.TopK(self.head, K)

        def call(self, inputs):
            return self.best(self.head(inputs["hidden"]), exclude=inputs["seen"])

    model = Recommender()
    inputs = {
        "hidden": tf.constant(rng.normal(size=(3, DIM)), tf.float32),
        "seen": tf.constant([[1], [2], [3]]),
    }
    got = model(inputs)["ids"]
    np.testing.assert_array_equal(got, expected(model.head, inputs["hidden"], [[1], [2], [3]])[1])
    with pytest.raises(ValueError, match="`exclude` must be None for a model whose tensors are not known"):
        model.head.predictor(model, exclude=keras.Input((2,)))


def test_searches_of_exports_take_any_number(rng, monkeypatch):
    """The stock searches, with a number of ids that is not known; large trees search in waves."""
    head = kl.layers.HierarchicalSoftmax(CLASSES, tree=kl.trees.balanced(CLASSES, arity=3))
    head.build((None, DIM))
    head.kernel_table.assign(rng.normal(size=head.kernel_table.shape))
    hidden = rng.normal(size=(5, DIM)).astype("float32")
    found = lists(rng, head, hidden)
    for classes in (CLASSES, 1):
        monkeypatch.setattr(stock_top_k, "_DENSE_CLASSES", classes)
        with stock_ops():
            search = traced(head, tf.TensorSpec([None, None], tf.int64))
        got = search(tf.constant(hidden), padded(found))
        np.testing.assert_array_equal(got[1], expected(head, hidden, found)[1])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", ["tree", "softmax over connections", "labels", "all classes"])
def test_over_devices(rng, kind, graph):
    with strategy_of(3).scope():
        head = HEADS[kind]()
        if kind == "tree":
            head = kl.layers.HierarchicalSoftmax(CLASSES, tree=kl.trees.balanced(CLASSES, arity=4))
            cut_below_the_root(head, 3)
        head.build((None, DIM))
    assert len((head.kernel_table if kind == "tree" else head.kernel).shards) >= 3
    hidden = rng.normal(size=(5, DIM)).astype("float32")
    found = lists(rng, head, hidden)
    search = functools.partial(head.top_k, k=K)
    if graph:  # the number of ids is not known
        search = traced(head, tf.TensorSpec([None, None], tf.int64))
    scores, ids = search(tf.constant(hidden), exclude=padded(found))
    want = expected(head, hidden, found)
    np.testing.assert_array_equal(ids, want[1])
    np.testing.assert_allclose(scores, want[0], rtol=1e-5)


def test_the_last_step_is_the_last_that_is_not_padding():
    """With `exclude` beside the hidden vectors Keras hands no mask to a layer: `TopK` must find it."""
    ids, seen = (keras.Input((None,), dtype="int32", name=name) for name in ("ids", "seen"))
    head = kl.layers.HierarchicalSoftmax(CLASSES, kernel_initializer="normal")
    model = kl.Model({"ids": ids}, head(kl.layers.ShardedEmbedding(CLASSES, DIM, mask_zero=True)(ids)))
    table = model.layers[1].trainable_variables[0]
    table.assign(np.random.default_rng(0).normal(size=table.shape))
    x, out = np.array([[3, 5, 0, 0], [4, 1, 7, 2]]), np.array([[3, 5, -1], [4, -1, -1]])
    for exclude, inputs in ((seen, {"ids": x, "seen": out}), (ids, {"ids": x})):
        predictor = head.predictor(model, k=K, position="last", exclude=exclude)
        want = head.top_k(tf.gather(table, [5, 2]), K, inputs[exclude.name])[1]
        np.testing.assert_array_equal(predictor(inputs)["ids"], want)
        np.testing.assert_array_equal(predictor.predict(inputs, verbose=0)["ids"], want)


@pytest.mark.full
@pytest.mark.parametrize("is_exported", [False, True])
def test_a_predictor_of_the_scores_of_all_classes(head, rng, is_exported, tmp_path):
    """They are those of `top_k` in the order of the ids; -inf of what is excluded, of one row all."""
    inputs, seen = keras.Input((DIM,), name="x"), keras.Input((CLASSES,), dtype="int32", name="seen")
    model = keras.Model(inputs, head(inputs))
    x = rng.normal(size=(3, DIM)).astype("float32")
    out = np.full((3, CLASSES), -1, "int32")
    out[1, 2:4], out[2] = (5, 0), rng.permutation(CLASSES)
    scores, ids = (part.numpy() for part in head.top_k(x, CLASSES))
    want = np.take_along_axis(scores, np.argsort(ids, axis=1), axis=1)
    want[1, [0, 5]] = want[2] = -np.inf
    predictor = head.predictor(model, k=None, exclude=seen)
    assert predictor.output_shape == (None, CLASSES)
    if is_exported:
        kl.export_saved_model(predictor, tmp_path / "export")
        served = tf.saved_model.load(tmp_path / "export")
        got = served.serve({"x": x, "seen": out})["output_0"]
    else:
        predictor.save(tmp_path / "predictor.keras")
        got = keras.models.load_model(tmp_path / "predictor.keras").predict([x, out], verbose=0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
