"""`HierarchicalSoftmax` as a layer of an ordinary Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.ops.export_mode import stock_ops

VOCAB = 60
COUNTS = 1000 / np.arange(1, VOCAB + 1)


def _language_model(tree=None, vocab=VOCAB, dtype=None, name="words"):
    tokens = keras.Input((None,), dtype="int32")
    x = kl.layers.ShardedEmbedding(vocab, 8, mask_zero=True, dtype=dtype)(tokens)
    x = keras.layers.SimpleRNN(8, return_sequences=True, dtype=dtype)(x)
    counts = 1000 / np.arange(1, vocab + 1)
    head = kl.layers.HierarchicalSoftmax(vocab, counts=counts, tree=tree, dtype=dtype, name=name)
    return keras.Model(tokens, head(x)), head


def _corpus(rng, rows=32, steps=6, vocab=VOCAB):
    x = rng.integers(1, vocab, (rows, steps)).astype("int32")
    x[rng.random((rows, steps)) < 0.1] = 1
    for row in range(rows):
        x[row, rng.integers(2, steps + 1) :] = 0
    return x, np.where(x > 0, (x * 7 + 3) % (vocab - 1) + 1, -1)


def _built(rng, dim=5, **kwargs):
    head = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, **kwargs)
    head.build((None, dim))
    head.kernel_table.assign(rng.normal(size=(head.num_rows, dim)).astype("float32"))
    if head.use_bias:
        head.bias_table.assign(rng.normal(size=head.num_rows).astype("float32"))
    return head


TREES = {
    "default": None,
    "huffman": lambda counts: kl.trees.huffman(counts, arity=4),
    "balanced": lambda counts: kl.trees.balanced(len(counts), arity=3),
    "two_level": lambda counts: kl.trees.two_level(len(counts)),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("use_bias", [True, False])
def test_probabilities_sum_to_one_and_top_k_is_exact(rng, tree, use_bias):
    head = _built(rng, tree=TREES[tree], use_bias=use_bias)
    hidden = tf.constant(rng.normal(size=(7, 5)).astype("float32"))
    all_log_probs = np.stack([head.log_prob(hidden, np.full(7, c)) for c in range(VOCAB)], 1)
    np.testing.assert_allclose(np.exp(all_log_probs).sum(1), np.ones(7), rtol=1e-5)
    want = -np.sort(-all_log_probs, 1)[:, :9]
    for context in (tf.name_scope("custom"), stock_ops()):
        with context:
            scores, ids = head.top_k(hidden, 9)
        np.testing.assert_allclose(scores, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(all_log_probs, ids.numpy(), 1), scores, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("tree", TREES)
def test_untrained_head_predicts_the_frequencies(rng, tree):
    head = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, tree=TREES[tree])
    head.build((None, 5))
    log_probs = head.log_prob(np.zeros((VOCAB, 5), "float32"), np.arange(VOCAB))
    np.testing.assert_allclose(log_probs, np.log(COUNTS / COUNTS.sum()), rtol=1e-5, atol=1e-5)
    zeros = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, bias_initializer="zeros")
    zeros.build((None, 5))
    assert not np.any(zeros.bias_table.variable.numpy())


def test_any_leading_shape(rng):
    head = _built(rng)
    hidden, y = rng.normal(size=(2, 3, 4, 5)).astype("float32"), rng.integers(0, VOCAB, (2, 3, 4))
    flat = head.log_prob(hidden.reshape(-1, 5), y.reshape(-1))
    np.testing.assert_array_equal(head.log_prob(hidden, y), np.reshape(flat, (2, 3, 4)))
    assert head.top_k(hidden, 3)[0].shape == (2, 3, 4, 3)


@pytest.mark.parametrize("tree", ["default", "huffman"])
def test_learns(rng, tree):
    x, y = _corpus(rng, rows=256)
    model, head = _language_model(TREES[tree])
    model.compile(kl.optimizers.LazyAdam(0.03), loss=head.loss)
    history = model.fit(x, y, epochs=12, batch_size=32, verbose=0).history["loss"]
    assert history[-1] < 0.6 * history[0]


OPTIMIZERS = {
    "LazyAdam": lambda: kl.optimizers.LazyAdam(0.01),
    "SGD": lambda: kl.optimizers.SGD(0.1, momentum=0.9),
    "Adagrad": lambda: kl.optimizers.Adagrad(0.1),
    "RowWiseAdagrad": lambda: kl.optimizers.RowWiseAdagrad(0.1),
    "Ftrl": lambda: kl.optimizers.Ftrl(0.1),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer, how",
    [("LazyAdam", "weights"), ("LazyAdam", "unzipped"), *((name, "keras") for name in OPTIMIZERS)],
)
def test_interrupted_training_is_bit_for_bit_the_same(tmp_path, rng, optimizer, how):
    optimizer = OPTIMIZERS[optimizer]
    x, y = _corpus(rng)
    arguments = {"shuffle": False, "verbose": 0, "batch_size": 8}
    model, head = _language_model()
    model.compile(optimizer(), loss=head.loss)
    model.fit(x, y, **arguments)
    if how == "weights":
        model.save_weights(tmp_path / "m.weights.h5")
        loaded, other = _language_model(TREES["default"])
        loaded.compile(optimizer(), loss=other.loss)
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(tmp_path / "m.weights.h5")
    elif how == "unzipped":
        model.save(tmp_path / "m", zipped=False)
        loaded = keras.models.load_model(tmp_path / "m")
    else:
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
    losses = [m.fit(x, y, epochs=2, **arguments).history["loss"] for m in (model, loaded)]
    assert losses[0] == losses[1]
    for a, b in zip(model.weights, loaded.weights):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)


def test_tree_travels_with_the_weights_not_with_the_config(tmp_path, rng):
    model, head = _language_model(TREES["huffman"])
    assert len(model.to_json()) < 8000 and "class_row" not in model.to_json()
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras").layers[-1]
    for name, array in head.tree.arrays().items():
        np.testing.assert_array_equal(loaded.tree.arrays()[name], array)
    np.testing.assert_array_equal(loaded._tree.variables[-1].numpy(), head.tree.row_child)


def test_weights_of_another_tree_are_refused(tmp_path):
    small, _ = _language_model(TREES["huffman"])
    small.save_weights(tmp_path / "m.weights.h5")
    other, head = _language_model(TREES["balanced"])
    before = head.kernel_table.numpy()
    with pytest.raises(ValueError, match=r"the layer 'words': The file must have a tree of 60 classes"):
        other.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(head.kernel_table.numpy(), before)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_dtype_policies(rng, policy):
    x, y = _corpus(rng)
    model, head = _language_model(dtype=policy)
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
    history = model.fit(x, y, epochs=3, verbose=0, batch_size=8).history["loss"]
    assert np.all(np.isfinite(history)) and history[-1] < history[0]


def test_clone_summary_and_get_weights(rng):
    model, head = _language_model(TREES["huffman"])
    clone = keras.models.clone_model(model)
    clone.summary(print_fn=lambda *args, **kwargs: None)
    clone.set_weights(model.get_weights())
    hidden, y = rng.normal(size=(3, 8)).astype("float32"), [1, 5, 59]
    np.testing.assert_array_equal(clone.layers[-1].log_prob(hidden, y), head.log_prob(hidden, y))
    config = head.get_config()
    config["tree"] = {"num_nodes": config["tree"]["num_nodes"], "digest": "unknown"}
    treeless = kl.layers.HierarchicalSoftmax.from_config(config)
    treeless.build((None, 8))
    with pytest.raises(ValueError, match=r"has no tree yet: load its weights first"):
        treeless.log_prob(hidden, y)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_very_few_classes(num_classes):
    head = kl.layers.HierarchicalSoftmax(num_classes)
    head.build((None, 3))
    log_probs = [head.log_prob(np.ones((2, 3), "float32"), [c, c]) for c in range(num_classes)]
    np.testing.assert_allclose(np.exp(log_probs).sum(0), 1, rtol=1e-6)
    assert head.top_k(np.ones((2, 3), "float32"), num_classes)[1].shape == (2, num_classes)


def test_sequential_and_subclassed_models(rng):
    x = rng.normal(size=(16, 8)).astype("float32")
    y = rng.integers(0, VOCAB, 16)
    head = kl.layers.HierarchicalSoftmax(VOCAB)
    model = keras.Sequential([keras.layers.Dense(8), head])
    model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    model.fit(x, y, verbose=0)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.head = keras.layers.Dense(8), kl.layers.HierarchicalSoftmax(VOCAB)

        def call(self, inputs):
            return self.head(self.dense(inputs))

    model = Model()
    model.compile(kl.optimizers.SGD(0.1), loss=model.head.loss)
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, verbose=0, epochs=5)
    assert model.evaluate(x, y, verbose=0) < before


def test_empty_batch_and_nan(rng):
    head = _built(rng)
    assert float(head.loss(np.zeros([0], "int32"), np.zeros([0, 5], "float32"))) == 0
    nan = np.full((1, 5), np.nan, "float32")
    assert np.isnan(head.log_prob(nan, [3])).all()
    assert head.top_k(nan, 2)[0].shape == (1, 2)


def test_nan_gradients_propagate(rng):
    model, head = _language_model()
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
    x, y = _corpus(rng, rows=4)
    weights = np.where(np.arange(4) == 0, np.nan, 1.0).astype("float32")
    model.train_on_batch(x, y, sample_weight=weights)
    assert np.isnan(head.kernel_table.numpy()).any()


def test_bad_input_names_argument_rule_and_value(rng):
    head = _built(rng)
    before = head.kernel_table.numpy()
    hidden = np.zeros((2, 5), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError, match="60"):
        head.log_prob(hidden, [3, 60])
    with pytest.raises(tf.errors.InvalidArgumentError, match="-1"):
        head.log_prob(hidden, [-1, 3])
    with pytest.raises(ValueError, match=r"`hidden` must have the length of the head's rows, 5"):
        head.log_prob(np.zeros((2, 4), "float32"), [1, 2])
    with pytest.raises(ValueError, match=r"`y_true` must have the shape of the hidden vectors"):
        head.log_prob(hidden, [1, 2, 3])
    with pytest.raises(ValueError, match=r"`k` must be an integer in 1 .. num_classes=60. Received: k=61"):
        head.top_k(hidden, 61)
    np.testing.assert_array_equal(head.kernel_table.numpy(), before)
    with pytest.raises(ValueError, match=r"`counts` .*"):
        kl.layers.HierarchicalSoftmax(3, counts=[1, -1, 2])
    with pytest.raises(ValueError, match=r"`counts` must have the shape \(num_classes,\) = \(3,\)"):
        kl.layers.HierarchicalSoftmax(3, counts=[1, 2])
    with pytest.raises(ValueError, match=r"`tree` must have num_classes=3 classes. Received: a tree of 4"):
        kl.layers.HierarchicalSoftmax(3, tree=kl.trees.balanced(4))
    with pytest.raises(ValueError, match=r"`tree` must be a trees.Tree or a function"):
        kl.layers.HierarchicalSoftmax(3, tree="huffman")
    with pytest.raises(ValueError, match=r"`inputs` must be hidden vectors of a known length"):
        kl.layers.HierarchicalSoftmax(3).build((None, None))


@pytest.mark.parametrize("tree", [None, kl.trees.huffman, kl.trees.balanced(3)])
def test_counts_of_zero_are_worth_one_warning(tree):
    with pytest.warns(UserWarning, match="`counts` of 0 are taken as 1, ") as seen:
        head = kl.layers.HierarchicalSoftmax(3, counts=[1, 0, 2], tree=tree)
        head.build((None, 2))
    assert len(seen) == 1
    want = kl.layers.HierarchicalSoftmax(3, counts=[1, 1, 2], tree=tree)
    want.build((None, 2))
    np.testing.assert_array_equal(head.bias_table.numpy(), want.bias_table.numpy())


def test_a_step_that_fails_changes_nothing(rng, on_cpu):
    model, head = _language_model()
    optimizer = kl.optimizers.LazyAdam(0.01, clipnorm=1.0)
    model.compile(optimizer, loss=head.loss)
    x, y = _corpus(rng, rows=4)
    model.train_on_batch(x, y)
    before = [w.numpy() for w in [*model.weights, *optimizer.variables]]
    for bad_x, bad_y in ((x, np.full_like(y, VOCAB)), (np.where(x > 0, VOCAB, 0), y)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(VOCAB)):
            model.train_on_batch(bad_x, bad_y)
    for a, b in zip(before, [*model.weights, *optimizer.variables]):
        np.testing.assert_array_equal(a, b.numpy(), err_msg=b.path)


def test_a_frozen_head_can_be_unfrozen(rng):
    x, y = rng.normal(size=(8, 5)).astype("float32"), rng.integers(0, VOCAB, 8)
    head = kl.layers.HierarchicalSoftmax(VOCAB, trainable=False)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5), head])
    assert len(model.trainable_variables) == 2
    head.trainable = True
    assert len(model.trainable_variables) == 4
    model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    before = head.kernel_table.numpy()
    model.fit(x, y, verbose=0)
    assert (head.kernel_table.numpy() != before).any()
    assert head.predictor(model, k=np.int64(3)).predict(x, verbose=0)["ids"].shape == (8, 3)


def test_keras_export_and_checkpoints_after_training(rng, tmp_path):
    model, head = _language_model()
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
    x, y = _corpus(rng, rows=8)
    model.fit(x, y, verbose=0)
    model.export(tmp_path / "export", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "export"))
    np.testing.assert_allclose(loaded.serve(x), model.predict(x, verbose=0), atol=1e-5)
    kernel = head.kernel_table.numpy()
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(str(tmp_path / "checkpoint"))
    head.kernel_table.assign(np.zeros_like(kernel))
    checkpoint.restore(path)
    np.testing.assert_array_equal(head.kernel_table.numpy(), kernel)


def test_weights_that_do_not_fit_change_nothing(rng):
    with_bias, without = _built(rng), _built(rng, use_bias=False)
    before = with_bias.kernel_table.numpy()
    for source, target in ((without, with_bias), (with_bias, without)):
        store = {}
        source.save_own_variables(store)
        with pytest.raises(ValueError, match="bias"):
            target.load_own_variables(store)
    np.testing.assert_array_equal(with_bias.kernel_table.numpy(), before)


def test_set_weights_brings_the_tree(rng):
    head = _built(rng, tree=TREES["huffman"])
    config = head.get_config()
    config["tree"]["digest"] = "unknown"
    other = kl.layers.HierarchicalSoftmax.from_config(config)
    other.build((None, 5))
    other.set_weights(head.get_weights())
    hidden = rng.normal(size=(3, 5)).astype("float32")
    np.testing.assert_array_equal(other.log_prob(hidden, [1, 2, 3]), head.log_prob(hidden, [1, 2, 3]))


def test_targets_and_weights_of_changing_rank(rng):
    model, head = _language_model()
    model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    x, y = _corpus(rng, rows=8)
    y, w = np.maximum(y, 0), rng.random(8).astype("float32")
    want = model.evaluate(x, y, sample_weight=np.repeat(w[:, None], 6, 1), verbose=0)
    for y_variant in (y, y[..., None]):
        for w_variant in (w, w[:, None], np.repeat(w[:, None], 6, 1)):
            got = model.evaluate(x, y_variant, sample_weight=w_variant, verbose=0)
            np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(ValueError, match=r"`sample_weight` must have the shape of `y_true`"):
        head.loss(y, np.zeros((8, 6, 8), "float32"), sample_weight=np.zeros((8, 6, 2)))
