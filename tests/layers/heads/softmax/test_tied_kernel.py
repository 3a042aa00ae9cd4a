"""A head whose kernel is the table of an embedding: one variable, one gradient, one place in a file."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import assert_same, fit
from layers.heads.softmax._models import CLASSES, DIM, LENGTH, data, loss_and_gradients

import keras_largeout as kl

HEADS = {
    "full": lambda kernel, **options: kl.layers.FullSoftmax(CLASSES, kernel=kernel, name="head", **options),
    "sampled": lambda kernel, **options: kl.layers.SampledSoftmax(
        CLASSES, 7, seed=3, kernel=kernel, name="head", **options
    ),
}


EMBEDDINGS = {
    "ours": lambda placement: functools.partial(kl.layers.ShardedEmbedding, placement=placement),
    "keras": lambda placement: keras.layers.Embedding,
    "reversible": lambda placement: keras.layers.ReversibleEmbedding,
}


@pytest.fixture(params=HEADS)
def kind(request):
    return request.param


@pytest.fixture(params=EMBEDDINGS)
def words(request):
    if not hasattr(keras.layers, "ReversibleEmbedding") and request.param == "reversible":
        pytest.skip("a layer of Keras 3.13 and newer")
    return request.param


def model_of(
    kind, placement="auto", optimizer=None, by_name=False, trainable=(True, True), words="ours", **options
):
    """`trainable`: the embedding, the head. `words`: one of `EMBEDDINGS`."""
    keras.utils.set_random_seed(7)
    ids = keras.Input((LENGTH,), dtype="int32")
    words = EMBEDDINGS[words](placement)(
        CLASSES, DIM, name="words", embeddings_initializer="normal", trainable=trainable[0]
    )
    x = keras.layers.Dense(DIM, activation="tanh", name="small")(words(ids))
    head = HEADS[kind]("words" if by_name else words, trainable=trainable[1], **options)
    model = kl.Model(ids, head(x))
    model.compile(optimizer or kl.optimizers.LazyAdam(0.01), loss=head.loss)
    return model


def parts(model):
    return model.get_layer("words"), model.get_layer("head")


def table_of(words):
    return words.table if hasattr(words, "table") else words.embeddings


def arrays(model):
    words, head = parts(model)
    bias = {} if head.bias is None else {"bias": head.bias.numpy()}
    return {"table": table_of(words).numpy(), "small": model.get_layer("small").kernel.numpy(), **bias}


def test_one_variable(kind):
    model = model_of(kind, by_name=kind == "full")
    words, head = parts(model)
    assert head.kernel is words.table
    paths = [w.path for w in model.trainable_weights]
    assert sorted(paths) == ["head/bias", "small/bias", "small/kernel", "words/embeddings"]
    assert [w.path for w in head.weights if w.trainable] == ["head/bias"]
    x, y, _ = data(np.random.default_rng(0))
    model.train_on_batch(x, y)
    shapes = [slot.numpy().shape for slot in model.optimizer._row_slots.slots.values()]
    assert sorted(shapes) == 2 * [(CLASSES,)] + 2 * [(CLASSES, DIM)]  # the two moments of LazyAdam


class ByHand(keras.Model):
    """The same model with one matrix."""

    def __init__(self, model):
        super().__init__()
        words, head = parts(model)
        small = model.get_layer("small")
        values = [table_of(words).numpy(), head.bias.numpy(), small.kernel.numpy(), small.bias.numpy()]
        self.parameters_ = [tf.Variable(value) for value in values]

    def loss_and_gradients(self, x, y):
        with tf.GradientTape() as tape:
            table, bias, kernel, small_bias = self.parameters_
            hidden = tf.tanh(tf.gather(table, x) @ kernel + small_bias)
            logits = tf.einsum("btd,cd->btc", hidden, table) + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, self.parameters_)]


@pytest.mark.parametrize("training", [False, True])
def test_one_gradient_of_both_ends(training, words):
    model = model_of("full", words=words)
    x, y, _ = data(np.random.default_rng(0))
    want, gradients = ByHand(model).loss_and_gradients(x, y)
    got, found = loss_and_gradients(model, x, y, training)
    assert float(got) == pytest.approx(float(want), rel=1e-5)
    names = ("words/embeddings", "head/bias", "small/kernel", "small/bias")
    for name, gradient in zip(names, gradients):
        np.testing.assert_allclose(tf.convert_to_tensor(found[name]), gradient, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("package", [keras, kl], ids=["keras", "ours"])
def test_training_is_that_of_one_matrix(words, package):
    model = model_of("full", optimizer=package.optimizers.SGD(0.5, momentum=0.9), words=words)
    x, y, _ = data(np.random.default_rng(0), rows=36)
    hand, sgd = ByHand(model), keras.optimizers.SGD(0.5, momentum=0.9)
    for start in range(0, 36, 12):
        _, gradients = hand.loss_and_gradients(x[start : start + 12], y[start : start + 12])
        sgd.apply(gradients, hand.parameters_) if sgd.built else sgd.apply_gradients(
            zip(gradients, hand.parameters_)
        )
    fit(model, (x, y), batch=12)
    table, bias, small, _ = hand.parameters_
    assert_same(arrays(model), {"table": table.numpy(), "small": small.numpy(), "bias": bias.numpy()})


def test_a_sampled_head_has_no_dense_gradient(words):
    model = model_of("sampled", words=words)
    x, y, _ = data(np.random.default_rng(0), rows=1)
    before = arrays(model)["table"]
    _, gradients = loss_and_gradients(model, x, y)
    gradient = gradients["words/embeddings"]
    assert isinstance(gradient, tf.IndexedSlices)
    assert len(np.unique(gradient.indices)) < CLASSES and {*x.ravel(), *y.ravel()} <= {
        *gradient.indices.numpy()
    }
    model.train_on_batch(x, y)
    changed = np.flatnonzero((before != arrays(model)["table"]).any(axis=1))
    assert len(changed) < CLASSES


@pytest.mark.parametrize("frozen", ["head", "words", "both"])
def test_frozen(kind, frozen, words):
    """A frozen head gives the table no gradient; a frozen embedding keeps it still."""
    optimizer = kl.optimizers.SGD(0.1)
    model = model_of(kind, trainable=(frozen == "head", frozen == "words"), words=words, optimizer=optimizer)
    x, y, _ = data(np.random.default_rng(0), rows=1)
    x[:] = 3
    before = arrays(model)
    model.train_on_batch(x, y)
    after = arrays(model)
    rows = np.flatnonzero((before["table"] != after["table"]).any(axis=1)).tolist()
    assert rows == ([3] if frozen == "head" else [])
    assert (before["bias"] != after["bias"]).any() == (frozen == "words")
    assert (before["small"] != after["small"]).any()


@pytest.mark.full
def test_saved_once(kind, words, tmp_path):
    model = model_of(kind, words=words)
    other = model_of(kind, by_name=True, words=words)
    words, head = parts(model)
    x, y, _ = data(np.random.default_rng(0), rows=24)
    fit(model, (x, y), batch=12)
    store = {}
    head.save_own_variables(store)
    assert any("bias" in key for key in store)
    assert not any("kernel" in key or "embeddings" in key for key in store)
    assert head.get_config()["kernel"] == "words"
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert_shared(loaded, model)
    assert fit(loaded, (x, y), batch=12) == fit(model, (x, y), batch=12)
    assert_same(arrays(loaded), arrays(model), rtol=0, atol=0)
    hidden = tf.ones([1, DIM])
    np.testing.assert_array_equal(parts(loaded)[1].log_probs(hidden), head.log_probs(hidden))
    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")
    assert_same(arrays(other), arrays(model), rtol=0, atol=0)


def assert_shared(model, other):
    """The head of `model` has the table of its embedding, which `other` has not."""
    (words, head), (others, _) = parts(model), parts(other)
    (weight,) = head.kernel.shards
    assert weight is words.trainable_weights[0] is not others.trainable_weights[0]
    assert [w.path for w in head.trainable_weights] == ["head/bias"]


@pytest.mark.full
@pytest.mark.parametrize("how", ["clone", "json"])
def test_copies_have_a_table_of_their_own(kind, how, words):
    model = model_of(kind, words=words)
    make = {
        "clone": keras.models.clone_model,
        "json": lambda model: keras.models.model_from_json(model.to_json()),
    }[how]
    copy = make(model)
    assert_shared(copy, model)
    copy.set_weights(model.get_weights())
    copy.compile(kl.optimizers.LazyAdam(0.01), parts(copy)[1].loss)
    before = arrays(model)
    x, y, _ = data(np.random.default_rng(0))
    copy.train_on_batch(x, y)
    assert_same(arrays(model), before, rtol=0, atol=0)
    assert (arrays(copy)["table"] != before["table"]).any()
    model.train_on_batch(x, y)
    assert_same(arrays(model), arrays(copy), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["file", "json"])
def test_a_copy_whose_head_comes_before_its_embedding(kind, how, words, tmp_path):
    """Of layers of one depth the config has first the one that was called first."""
    table = EMBEDDINGS[words]("auto")(CLASSES, DIM, name="words")
    users, items = keras.Input((DIM,)), keras.Input((), dtype="int32")
    model = kl.Model([users, items], [HEADS[kind](table)(users), table(items)])
    assert [layer.name for layer in model.layers][2:] == ["head", "words"]
    if how == "file":
        model.save(tmp_path / "m.keras")
        assert_shared(keras.models.load_model(tmp_path / "m.keras"), model)
    else:
        assert_shared(keras.models.model_from_json(model.to_json()), model)


def test_what_does_not_fit(kind):
    make = HEADS[kind]
    with pytest.raises(ValueError, match=rf"`kernel` must have a row for each .*={CLASSES} .* input_dim=31"):
        make(kl.layers.ShardedEmbedding(31, DIM))
    with pytest.raises(
        ValueError, match=r"`kernel` must be as wide as the hidden vectors, 6. .* output_dim=5"
    ):
        make(kl.layers.ShardedEmbedding(CLASSES, 5)).build((None, DIM))
    with pytest.raises(
        ValueError, match=r"`kernel` must be an embedding that exists. Received: the name 'nobody'"
    ):
        make("nobody").build((None, DIM))
    named = kl.layers.ShardedEmbedding(31, DIM, name="of_31")
    with pytest.raises(ValueError, match=r"`kernel` must have a row for each .* 'of_31' with input_dim=31"):
        make(named.name).build((None, DIM))
    with pytest.raises(ValueError, match=r"must have a row for each .* 'of_keras' with input_dim=31"):
        make(keras.layers.Embedding(31, DIM, name="of_keras"))
    lora = keras.layers.Embedding(CLASSES, DIM, lora_rank=2, name="lora")
    with pytest.raises(ValueError, match=r"weights are one matrix .* Received: 'lora', whose .* computed"):
        make(lora).build((None, DIM))
    half = keras.layers.Embedding(CLASSES, DIM, dtype="float16", name="half")
    with pytest.raises(ValueError, match=r"float32 or bfloat16\. Received: 'half', whose .* are float16"):
        make(half).build((None, DIM))
    for other in (tf.zeros([CLASSES, DIM]), 7, [named], keras.layers.Dense(DIM)):
        with pytest.raises(ValueError, match=r"`kernel` must be a ShardedEmbedding or a keras\.layers"):
            make(other)
    with pytest.raises(ValueError, match="`kernel_constraint` must be None where the kernel is a table"):
        make(named.name, kernel_constraint="non_neg")


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, placement, words",
    [
        ("full", "range", "ours"),
        ("sampled", "range", "ours"),
        ("full", "replicated", "ours"),
        ("full", None, "keras"),
        ("sampled", None, "keras"),
    ],
    indirect=["kind"],
)
def test_several_devices_have_the_numbers_of_one(kind, placement, words):
    x, y, weight = data(np.random.default_rng(0), rows=24)
    found = []
    for devices in (1, 2):
        with strategy_of(devices).scope():
            model = model_of(kind, placement=placement if devices > 1 else "auto", words=words)
        losses = fit(model, (x, y, weight), batch=12)
        found.append({**arrays(model), "losses": np.array(losses)})
        evaluated = model.evaluate(x, y, batch_size=12, verbose=0)
        found[-1] |= {
            "evaluated": np.array(evaluated),
            "best": parts(model)[1].top_k(tf.eye(DIM), 4)[1].numpy(),
        }
    assert parts(model)[1].kernel.is_whole == (placement != "range")
    assert_same(found[1], found[0])


@pytest.mark.full
@pytest.mark.parametrize("placement", ["permutation", "modulo"])
def test_placements_that_mix_classes(placement):
    with (
        strategy_of(3).scope(),
        pytest.raises(
            ValueError, match=r"`kernel` of a head must be cut .*ranges.* 'words' with .*" + placement
        ),
    ):
        model_of("full", placement)
    x, y, _ = data(np.random.default_rng(0))
    one = [fit(model_of("sampled", placing), (x, y), batch=12) for placing in (placement, "auto")]
    assert one[0] == one[1]  # on one device it is all the same
