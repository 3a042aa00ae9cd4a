"""`SparseOutput` inside Keras: losses against dense NumPy, predictions, connections, arguments."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _sparse_output import CLASSES, DIM, FAN_IN, LOSSES, ROWS, head_of, labels_of, model_of, padded

import keras_largeout as kl
from keras_largeout.layers import SparseOutput
from keras_largeout.ops import export_mode
from keras_largeout.ops.fan_in import stock as stock_fan_in
from keras_largeout.ops.fan_in.reference import fan_in_logits_reference, fan_in_loss_reference


def _pairs(labels):
    return np.array([(row, label) for row, ls in enumerate(labels) for label in sorted(set(ls))], np.int64)


FORMS = {
    "padded": padded,
    "numpy": lambda labels: padded(labels).numpy().astype("int32"),
    "floats": lambda labels: padded(labels).numpy().astype("float32"),
    "ragged": lambda labels: tf.ragged.constant(labels, dtype=tf.int32),
    "sparse": lambda labels: tf.ragged.constant(labels, dtype=tf.int64).to_sparse(),
    "multi_hot": lambda labels: tf.SparseTensor(
        _pairs(labels), tf.ones(len(_pairs(labels)), tf.int32), [len(labels), CLASSES]
    ),
}


def _expected(head, hidden, labels, weights=None, loss=None):
    splits = np.concatenate([[0], np.cumsum([len(ls) for ls in labels])])
    flat = np.array([label for ls in labels for label in ls], np.int64)
    losses, *_ = fan_in_loss_reference(
        hidden,
        flat,
        splits,
        head.kernel.numpy().astype(np.float32),
        head.connections.numpy(),
        bias=None if head.bias is None else head.bias.numpy(),
        label_weights=None if weights is None else weights[flat],
        loss=loss or head.loss_kind,
    )
    return losses


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("form", FORMS)
def test_losses_for_every_form_of_targets(rng, loss, form):
    head, hidden, labels = head_of(loss=loss), rng.normal(size=(ROWS, DIM)).astype("float32"), labels_of(rng)
    got = head.make_loss(reduction=None)(FORMS[form](labels), hidden)
    np.testing.assert_allclose(got, _expected(head, hidden, labels), rtol=2e-5)


@pytest.mark.parametrize("graph", [False, True])
def test_sample_weights_masks_and_time_steps(rng, graph):
    head, hidden = head_of(), rng.normal(size=(4, 3, DIM)).astype("float32")
    labels = labels_of(rng)
    weight = rng.random((4, 3)).astype("float32")
    weight[0, 1] = 0
    y = tf.reshape(padded(labels), [4, 3, -1]).numpy()
    y[0, 1] = CLASSES + 7  # of weight 0: not looked at
    loss = head.loss
    call = tf.function(loss.__call__) if graph else loss.__call__
    want = _expected(head, hidden.reshape(-1, DIM), labels) * weight.ravel()
    np.testing.assert_allclose(call(y, tf.constant(hidden), weight), want.mean(), rtol=1e-5)


def test_one_label_a_position(rng):
    head, hidden = head_of(loss="softmax", use_bias=False), rng.normal(size=(4, 3, DIM)).astype("float32")
    y = rng.integers(0, CLASSES, (4, 3))
    want = _expected(head, hidden.reshape(-1, DIM), y.reshape(-1, 1).tolist()).reshape(4, 3)
    for form in (y, y[..., None], y.astype("int32")):
        np.testing.assert_allclose(head.make_loss(reduction=None)(form, hidden), want, rtol=1e-5)
    np.testing.assert_allclose(head.log_prob(hidden, y), -want, rtol=1e-5)


def test_weights_of_labels(rng):
    weights = rng.uniform(0.5, 3, CLASSES).astype("float32")
    head, hidden = head_of(label_weights=weights), rng.normal(size=(ROWS, DIM)).astype("float32")
    labels = labels_of(rng)
    want = _expected(head, hidden, labels, weights)
    loss = head.make_loss(reduction=None)
    np.testing.assert_allclose(loss(padded(labels), hidden), want, rtol=1e-5)
    # A multi-hot matrix brings weights of its own.
    pairs = _pairs(labels)
    values = tf.constant(weights[pairs[:, 1]])
    plain = head_of()
    matrix = tf.SparseTensor(pairs, values, [ROWS, 1000])
    np.testing.assert_allclose(plain.make_loss(reduction=None)(matrix, hidden), want, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_frozen_head_has_no_gradient_of_its_weights(rng, loss):
    found = {}
    labels, hidden = padded(labels_of(rng)), tf.constant(rng.normal(size=(ROWS, DIM)).astype("float32"))
    for trainable in (True, False):
        head = head_of(loss=loss, trainable=trainable)
        sources = [hidden, head.kernel.shards[0].value, head.bias.shards[0].value]

        @tf.function
        def step(head=head, sources=sources):
            with tf.GradientTape() as tape:
                tape.watch(sources[0])
                losses = head.make_loss(reduction="sum")(labels, sources[0])
            return losses, tape.gradient(losses, sources)

        found[trainable] = step()
        attributes = {
            op.get_attr("weight_gradient")
            for op in step.get_concrete_function().graph.get_operations()
            if op.type == "Largeout>FanInLossGrad"
        }
        assert attributes == {trainable}
    (losses, gradients), (frozen_losses, frozen) = found[True], found[False]
    np.testing.assert_array_equal(losses, frozen_losses)
    np.testing.assert_array_equal(gradients[0], frozen[0])
    assert gradients[1].shape == (CLASSES, FAN_IN) and frozen[1:] == [None, None]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("export", [False, True])
def test_top_k(rng, loss, export):
    head, hidden = head_of(loss=loss), rng.normal(size=(2, 3, DIM)).astype("float32")
    logits = fan_in_logits_reference(
        hidden.reshape(-1, DIM), head.kernel.numpy(), head.connections.numpy(), head.bias.numpy()
    ).reshape(2, 3, -1)
    want = {
        "squared_hinge": logits,
        "binary_crossentropy": -np.logaddexp(0, -logits),
        "softmax": logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True),
    }[loss]
    with export_mode.stock_ops() if export else tf.name_scope("custom"):
        scores, ids = head.top_k(hidden, 7)
    order = np.argsort(-want, axis=-1, kind="stable")[..., :7]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(scores, np.take_along_axis(want, order, -1), rtol=1e-4, atol=1e-6)
    if loss != "squared_hinge":
        np.testing.assert_allclose(head.log_prob(hidden, ids[..., 2]), scores[..., 2], rtol=1e-4, atol=1e-6)


def test_predictor_and_export(tmp_path, rng):
    head = head_of(loss="softmax")
    model = model_of(head)
    serving = head.predictor(model, k=3)
    x = rng.normal(size=(5, 6)).astype("float32")
    want = serving.predict(x, verbose=0)
    kl.export_saved_model(serving, tmp_path / "export")
    served = tf.saved_model.load(tmp_path / "export")
    got = served.serve(tf.constant(x))
    np.testing.assert_array_equal(got["ids"], want["ids"])
    np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5)


def test_stock_top_k_in_several_chunks(rng, monkeypatch):
    head, hidden = head_of(), rng.normal(size=(3, DIM)).astype("float32")
    want = head.top_k(hidden, 6)
    monkeypatch.setattr(stock_fan_in, "_VALUES", 4 * FAN_IN * 3)
    with export_mode.stock_ops():
        scores, ids = head.top_k(hidden, 6)
    np.testing.assert_array_equal(ids, want[1])
    np.testing.assert_allclose(scores, want[0], rtol=1e-5)


def test_first_connections():
    head = head_of(fan_in=FAN_IN)
    connections = head.connections.numpy()
    assert connections.shape == (CLASSES, FAN_IN) and connections.dtype == np.uint16
    assert all(len(set(row)) == FAN_IN for row in connections.tolist()) and connections.max() < DIM
    again = SparseOutput.from_config(head.get_config())
    again.build((None, DIM))
    np.testing.assert_array_equal(again.connections.numpy(), connections)
    other = head_of(seed=4)
    assert np.any(other.connections.numpy() != connections)
    assert head.in_degrees().tolist() == np.bincount(connections.ravel(), minlength=DIM).tolist()
    wide = SparseOutput(3, 2)
    wide.build((None, 2**16 + 1))
    assert wide.connections.numpy().dtype == np.uint32
    full = SparseOutput(4, 6)
    full.build((None, 6))
    assert np.sort(full.connections.numpy(), axis=1).tolist() == [list(range(6))] * 4


def test_targets_out_of_range(rng):
    head, hidden = head_of(), rng.normal(size=(2, DIM)).astype("float32")
    for bad in (CLASSES, -2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
            head.loss(np.array([[1, 2], [3, bad]]), hidden)
    for shape in ([3, 1], [2, 1, 1]):
        with pytest.raises(ValueError, match="`y_true` must be label ids"):
            head.loss(np.zeros(shape, "int32"), hidden)
    with pytest.raises(ValueError, match="`y_true` must be label ids"):
        head.loss(tf.ragged.constant([[[1]], [[2]]]), hidden)


def test_an_empty_batch():
    head = head_of()
    for y in (tf.zeros([0, 3], tf.int32), tf.zeros([0], tf.int32)):
        assert float(head.loss(y, tf.zeros([0, DIM]))) == 0
    assert head.top_k(tf.zeros([0, DIM]), 2)[1].shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "`num_classes` must be a positive integer"),
        ({"fan_in": 0}, "`fan_in` must be a positive integer"),
        ({"loss": "hinge"}, "`loss` must be one of"),
        ({"optimizer": "rmsprop"}, "`optimizer` must be one of keras.Adagrad"),
        ({"optimizer": keras.optimizers.SGD(momentum=0.9)}, "`momentum` of an `optimizer`"),
        ({"optimizer": keras.optimizers.Adam(clipnorm=1.0)}, "`clipnorm` of an `optimizer`"),
        ({"optimizer": "adam", "dtype": "mixed_float16"}, "`optimizer` must be None under mixed_float16"),
        ({"label_weights": [1.0, 2.0]}, "`label_weights` must be num_classes=29"),
        ({"label_weights": -np.ones(CLASSES)}, "`label_weights` must be num_classes=29"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SparseOutput(**{"num_classes": CLASSES, **arguments})


def test_wrong_shapes_and_too_early():
    head = SparseOutput(CLASSES, fan_in=DIM + 1)
    with pytest.raises(ValueError, match=r"`fan_in` must be at most the width of the inputs, 17. Received"):
        head.build((None, DIM))
    with pytest.raises(ValueError, match="has no weights yet"):
        head.top_k(tf.zeros([1, DIM]), 1)
    with pytest.raises(ValueError, match="has no connections yet"):
        head.rewire(1)
    with pytest.raises(ValueError, match="`hidden` must have the length of the head's rows, 17"):
        head_of().top_k(tf.zeros([1, DIM + 1]), 1)
    with pytest.raises(ValueError, match="`loss` must be softmax or binary_crossentropy"):
        head_of().log_prob(tf.zeros([1, DIM]), [1])


def test_integers_of_unknown_width_are_not_guessed(rng):
    head, hidden = head_of(), tf.constant(rng.normal(size=(ROWS, DIM)), tf.float32)
    matrix = FORMS["multi_hot"](labels_of(rng))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int32)])
    def loss(y):
        return head.loss(y, hidden)

    with pytest.raises(tf.errors.InvalidArgumentError, match="`y_true` must have a static width"):
        loss(matrix)
    assert np.isfinite(loss(tf.cast(FORMS["sparse"](labels_of(rng)), tf.int32)))
