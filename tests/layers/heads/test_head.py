"""What every head shares: its loss inside Keras. The head here is a plain dense softmax."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.layers.heads import head as heads


@keras.saving.register_keras_serializable(package="test")
class DenseHead(heads.Head):
    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.num_classes), name="kernel")

    def _log_probs(self, hidden):
        return tf.nn.log_softmax(tf.cast(hidden, tf.float32) @ self.kernel)

    def token_losses(self, y_true, hidden, active=None):
        safe = y_true if active is None else tf.where(active, y_true, 0)
        losses = -tf.gather(self._log_probs(hidden), safe, batch_dims=hidden.shape.rank - 1)
        return losses if active is None else tf.where(active, losses, 0.0)

    def top_k(self, hidden, k):
        self.check_k(k)
        return tf.math.top_k(self._log_probs(hidden), k)


def _model(name="head", vocab=11, mask_zero=True):
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(vocab, 6, mask_zero=mask_zero)(tokens)
    x = keras.layers.SimpleRNN(5, return_sequences=True)(x)
    head = DenseHead(vocab, name=name)
    return keras.Model(tokens, head(x)), head


@pytest.mark.parametrize("shape", [[2], [2, 1], [2, 3]])
def test_targets_that_cannot_name_each_class(shape):
    """Beyond 2**24 a float32 has not every integer: another class would be learned, and nobody told."""
    head, hidden, y = kl.layers.SampledSoftmax(2**24 + 2, 2), tf.zeros([2, 1]), tf.fill(shape, 2.0**24)
    head(hidden)
    for targets in (y, tf.RaggedTensor.from_tensor(y) if shape[1:] else y):
        with pytest.raises(
            NotImplementedError, match="`y_true` must be integers: float32 cannot hold every id"
        ):
            head.loss(targets, hidden)
    with pytest.raises(TypeError, match="`y_true` must be ids of classes, integers"):
        head.loss(tf.fill(shape, "a"), hidden)
    assert np.isfinite(float(head.loss(tf.cast(y, tf.int64), hidden)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_multi_hot_matrix_of_small_floats(dtype):
    head, hidden = kl.layers.FullSoftmax(3000), tf.ones([2, 1])
    head(hidden)
    y = tf.one_hot([[1], [2999]], 3000)[:, 0]
    np.testing.assert_allclose(head.loss(tf.cast(y, dtype), hidden), head.loss(y, hidden), rtol=1e-6)


def _data(rng, vocab=11, rows=16, steps=7):
    x = rng.integers(1, vocab, (rows, steps)).astype("int32")
    y = rng.integers(1, vocab, (rows, steps)).astype("int64")
    for row in range(rows):
        x[row, rng.integers(2, steps + 1) :] = 0
    return x, np.where(x == 0, -1, y)  # targets of padding are not valid classes, and must not matter


def _dense_twin(model, head):
    """The same model with Keras's own Dense and cross-entropy."""
    dense = keras.layers.Dense(head.num_classes, use_bias=False)
    twin = keras.Model(model.input, dense(model.layers[-2].output))
    dense.kernel.assign(head.kernel)
    return twin


@pytest.mark.parametrize("weights", [None, "batch", "token"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_loss_is_keras_crossentropy(rng, weights, reduction):
    model, head = _model()
    x, y = _data(rng)
    sample_weight = {"batch": rng.random(16), "token": rng.random((16, 7)), None: None}[weights]
    twin = _dense_twin(model, head)
    model.compile("sgd", loss=head.make_loss(reduction=reduction))
    twin.compile(
        "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    )
    got = model.evaluate(x, y, sample_weight=sample_weight, verbose=0, batch_size=16)
    if weights == "batch":  # Keras's own loss takes a weight per position here
        sample_weight = np.repeat(sample_weight[:, None], 7, 1)
    want = twin.evaluate(x, np.maximum(y, 0), sample_weight=sample_weight, verbose=0, batch_size=16)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_zero_weight_positions_are_not_looked_at(rng):
    model, head = _model(mask_zero=False)
    x, y = _data(rng)
    model.compile("sgd", loss=head.loss)
    assert np.isfinite(model.evaluate(x, y, sample_weight=(x != 0).astype("float32"), verbose=0))


def test_trailing_axis_and_float_targets(rng):
    _, head = _model()
    hidden, y = tf.random.normal([4, 3, 5]), rng.integers(0, 11, (4, 3))
    want = head.loss(y, hidden)
    for variant in (y[..., None], y.astype("float32"), y.astype("int32")):
        np.testing.assert_allclose(head.loss(variant, hidden), want)


def test_save_load_and_train_on(tmp_path, rng):
    x, y = _data(rng)
    model, head = _model()
    model.compile(keras.optimizers.Adam(0.01), loss=head.loss)
    model.fit(x, y, shuffle=False, verbose=0, batch_size=4)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for m in (model, loaded):
        m.history_ = m.fit(x, y, shuffle=False, verbose=0, batch_size=4, epochs=2).history["loss"]
    assert model.history_ == loaded.history_
    assert loaded.loss.resolve_head() is loaded.layers[-1]
    assert model.loss.resolve_head() is head  # the old model keeps its own
    for a, b in zip(model.weights, loaded.weights):
        np.testing.assert_array_equal(a, b)


def test_a_clone_is_not_trained_by_the_loss_of_its_original(rng):
    x, y = _data(rng)
    model, head = _model()
    clone = keras.models.clone_model(model)
    clone.compile("sgd", loss=head.loss)
    with pytest.raises(ValueError, match=r"would train the head .* of another model.*get_layer"):
        clone.fit(x, y, verbose=0)
    before = [w.numpy() for w in head.weights]
    clone.compile("sgd", loss=clone.get_layer(head.name).loss)
    clone.fit(x, y, verbose=0)
    for old, new in zip(before, head.weights):
        np.testing.assert_array_equal(old, new)


@keras.saving.register_keras_serializable(package="test")
class Doubled(keras.losses.Loss):
    """A loss that has another one inside."""

    def __init__(self, inside, name=None, reduction=None):
        super().__init__(reduction=None)
        self.inside = inside

    def __call__(self, y_true, y_pred, sample_weight=None):
        return 2 * self.inside(y_true, y_pred, sample_weight)

    def get_config(self):
        return {"inside": keras.saving.serialize_keras_object(self.inside)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["inside"]))


BEHIND = {  # layers behind the head, whose results do not know that they are hidden vectors
    "slice": lambda head, x: head(x)[:, 1:],
    "float32": lambda head, x: keras.layers.Activation("linear", dtype="float32")(head(x)),
    "TimeDistributed": lambda head, x: keras.layers.TimeDistributed(head)(x),
}


def _head_in_the_midst(behind, base, vocab=11, dim=5):
    tokens = keras.Input((4,), dtype="int32")
    head = DenseHead(vocab, name="head")
    outputs = BEHIND[behind](head, keras.layers.Embedding(vocab, dim)(tokens))
    return base(tokens, outputs), head


@pytest.mark.full
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("base", [kl.Model, keras.Model])
@pytest.mark.parametrize("behind", BEHIND)
def test_each_of_several_loaded_models_trains_its_own_head(tmp_path, rng, behind, base, wrapped):
    x = rng.integers(0, 11, (8, 4))
    y = x[:, 1:] if behind == "slice" else x
    want = []
    for name, dim in (("a", 5), ("b", 6)):
        model, head = _head_in_the_midst(behind, base, dim=dim)
        model.compile("sgd", Doubled(head.loss) if wrapped else head.loss)
        want.append(model.evaluate(x, y, verbose=0))
        model.save(tmp_path / f"{name}.keras")
    a, b, again = (keras.models.load_model(tmp_path / f"{name}.keras") for name in "aba")
    np.testing.assert_allclose([m.evaluate(x, y, verbose=0) for m in (a, b, again)], [*want, want[0]])
    before = [m.get_weights() for m in (a, b)]
    again.fit(x, y, verbose=0)
    for model, values in zip((a, b), before):
        for value, weight in zip(values, model.get_weights()):
            np.testing.assert_array_equal(value, weight)
    for value, weight in zip(before[0], again.get_weights()):
        assert np.abs(value - weight).max() > 0


@pytest.mark.parametrize("base", [kl.Model, keras.Model])
def test_a_clone_whose_output_does_not_know_its_head(tmp_path, rng, base):
    x = rng.integers(0, 11, (8, 4))
    model, head = _head_in_the_midst("slice", base)
    model.compile("sgd", head.loss)
    clone = keras.models.clone_model(model)
    clone.compile("sgd", head.loss)
    with pytest.raises(ValueError, match=r"would train the head 'head' of another model.*get_layer"):
        clone.fit(x, x[:, 1:], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone.compile("sgd", loaded.loss)  # which belongs to no head of its own
    clone.set_weights([np.zeros_like(weight) for weight in clone.get_weights()])
    for _ in range(2):
        np.testing.assert_allclose(clone.evaluate(x, x[:, 1:], verbose=0), np.log(11), rtol=1e-6)
        assert loaded.evaluate(x, x[:, 1:], verbose=0) == model.evaluate(x, x[:, 1:], verbose=0)


def test_a_loss_that_cannot_know_its_head(rng):
    name, hidden, y = "one_of_two", tf.random.normal([4, 5]), rng.integers(0, 11, 4)
    heads_there = [DenseHead(11, name=name) for _ in range(2)]
    outputs = [head(hidden) for head in heads_there]
    loss = keras.losses.deserialize(keras.losses.serialize(heads_there[0].loss))
    for head, output in zip(heads_there, outputs):
        assert loss(y, output) == head.loss(y, output)
        with pytest.raises(ValueError, match=r"'one_of_two', and there are 2.*`loss=head\.loss`"):
            loss(y, output[:])
        assert head.loss(y, output[:]) == head.loss(y, output)


def test_two_heads_on_the_same_vectors(rng):
    x, y = _data(rng)
    model, _ = _model()
    hidden = model.layers[-2].output
    first, second = DenseHead(11, name="first"), DenseHead(11, name="second")
    both = keras.Model(model.input, [first(hidden), second(hidden)])
    both.compile("sgd", loss=[first.loss, second.loss])
    assert np.isfinite(both.fit(x, [y, y], verbose=0).history["loss"][0])


def test_loss_without_its_head():
    loss = heads.HeadLoss("nobody")
    with pytest.raises(ValueError, match=r"a head named 'nobody', and no such layer exists"):
        loss(np.zeros([2]), np.zeros([2, 3]))


@pytest.mark.parametrize("position", ["all", "last"])
def test_predictor(tmp_path, rng, position):
    x, _ = _data(rng)
    model, head = _model()
    serving = head.predictor(model, k=3, position=position)
    out = serving.predict(x, verbose=0)
    hidden = model.predict(x, verbose=0)
    if position == "last":
        hidden = hidden[np.arange(16), (x != 0).sum(1) - 1]
    scores, ids = head.top_k(tf.constant(hidden), 3)
    np.testing.assert_allclose(out["scores"], scores, rtol=1e-5)
    np.testing.assert_array_equal(out["ids"], ids)
    serving.save(tmp_path / "p.keras")
    again = keras.models.load_model(tmp_path / "p.keras").predict(x, verbose=0)
    np.testing.assert_array_equal(again["ids"], out["ids"])


@pytest.mark.parametrize(
    "copied", [keras.models.clone_model, lambda model: keras.models.model_from_json(model.to_json())]
)
def test_a_copy_of_a_predictor_has_one_head(rng, copied):
    x, _ = _data(rng)
    model, head = _model()
    serving = head.predictor(model, k=3)
    again = copied(serving)
    assert again.layers[-1].head is again.get_layer(head.name)
    again.set_weights(serving.get_weights())
    np.testing.assert_array_equal(again.predict(x, verbose=0)["ids"], serving.predict(x, verbose=0)["ids"])


@keras.saving.register_keras_serializable(package="test")
class Subclassed(keras.Model):
    """Two outputs, one of them a head's."""

    def __init__(self, several=True, **kwargs):
        super().__init__(**kwargs)
        self.several = several
        self.words = keras.layers.Embedding(11, 6, mask_zero=True)
        self.other, self.head = keras.layers.Dense(1), DenseHead(11, name="inside")

    def call(self, tokens):
        x = self.words(tokens)
        return {"other": self.other(x), "next": self.head(x)} if self.several else self.head(x)

    def get_config(self):
        return {"several": self.several, "name": self.name}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("position", ["all", "last"])
def test_predictor_of_a_subclassed_model(tmp_path, rng, position, several):
    x, _ = _data(rng)
    model = Subclassed(several)
    serving = model.head.predictor(model, k=3, position=position)  # before anything is built
    out = serving.predict(x, verbose=0)
    hidden = model.predict(x, verbose=0)
    hidden = hidden["next"] if several else hidden
    if position == "last":
        hidden = hidden[np.arange(16), (x != 0).sum(1) - 1]
    scores, ids = model.head.top_k(tf.constant(hidden), 3)
    np.testing.assert_allclose(out["scores"], scores, rtol=1e-5)
    np.testing.assert_array_equal(out["ids"], ids)
    serving.save(tmp_path / "p.keras")
    again = keras.models.load_model(tmp_path / "p.keras").predict(x, verbose=0)
    np.testing.assert_array_equal(again["ids"], out["ids"])
    spec = tf.TensorSpec([None, x.shape[1]], tf.int32, name="tokens")
    kl.export_saved_model(serving, tmp_path / "export", input_signature=spec)
    served = tf.saved_model.load(tmp_path / "export")
    np.testing.assert_array_equal(served.serve(x)["ids"], out["ids"])


def test_predictor_of_a_model_with_several_outputs(rng):
    x, _ = _data(rng)
    model, first = _model()
    hidden, second = model.layers[-2].output, DenseHead(11, name="second")
    both = keras.Model(
        model.input, {"a": keras.layers.Dense(2)(hidden), "b": first(hidden), "c": second(hidden)}
    )
    for head in (first, second):
        want = head.top_k(tf.constant(both.predict(x, verbose=0)["b"]), 2)[1]
        np.testing.assert_array_equal(head.predictor(both, k=2).predict(x, verbose=0)["ids"], want)
    with pytest.raises(
        ValueError, match=r"`model` must be one of which an output is that of the head 'third'"
    ):
        DenseHead(11, name="third").predictor(both)
    with pytest.raises(
        ValueError, match=r"`model` must be one of which an output is that of the head 'third'"
    ):
        DenseHead(11, name="third").predictor(Subclassed())
    outer = keras.Sequential([keras.Input((7,), dtype="int32"), model])  # a model in a model
    assert first.predictor(outer, k=2).predict(x, verbose=0)["ids"].shape == (16, 7, 2)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`num_classes` must be a positive .* num_classes=0"):
        DenseHead(0)
    _, head = _model()
    for k in (0, 12, 1.5, True):
        with pytest.raises(ValueError, match=r"`k` must be an integer in 1 .. num_classes=11"):
            head.top_k(tf.zeros([1, 5]), k)
    with pytest.raises(ValueError, match=r'`position` must be "all" or "last"'):
        kl.layers.TopK(head, 1, position="first")


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("what", ["lookup", "loss", "log_prob", "top_k"])
def test_forward_mode_is_refused(what, in_graph):
    head, rows = kl.layers.FullSoftmax(9), kl.layers.ShardedEmbedding(9, 4)
    classes, x = tf.range(3), tf.ones((3, 4))
    head(x), rows(classes)
    function, source = {
        "lookup": (lambda: rows(classes), rows.trainable_variables[0].value),
        "loss": (lambda: head.loss(classes, head(x)), x),
        "log_prob": (lambda: head.log_prob(x, classes), x),
        "top_k": (lambda: head.top_k(x, 2)[0], x),
    }[what]
    refused = pytest.raises(NotImplementedError, match=r"`tf\.autodiff\.ForwardAccumulator` must not meet")
    with tf.autodiff.ForwardAccumulator(source, tf.ones_like(source)), refused:
        (tf.function(function) if in_graph else function)()
