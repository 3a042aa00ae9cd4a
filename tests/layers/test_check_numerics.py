"""`tf.debugging.enable_check_numerics`, which looks for NaN and infinities in what each op returns."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

CLASSES, DIM = 30, 8
HEADS = {
    "tree": lambda: kl.layers.HierarchicalSoftmax(CLASSES, tree=kl.trees.huffman(np.arange(CLASSES) + 1)),
    "full": lambda: kl.layers.FullSoftmax(CLASSES, label_smoothing=0.1, z_loss=1e-4),
    "sampled": lambda: kl.layers.SampledSoftmax(CLASSES, 7, seed=1),
    "fan_in": lambda: kl.layers.SparseOutput(CLASSES, 4, loss="softmax"),
}


@pytest.fixture(autouse=True)
def checked():
    tf.debugging.enable_check_numerics()
    yield
    tf.debugging.disable_check_numerics()


def _memory_of_nan():
    """Leaves NaN in the memory that is free now."""
    del [np.full(size, np.nan, "float32") for size in (1 << 8, 1 << 12, 1 << 16) for _ in range(50)][:]


@pytest.mark.full
@pytest.mark.parametrize("head", HEADS)
def test_nothing_is_found_where_nothing_is_wrong(head, rng):
    _memory_of_nan()
    tokens = keras.Input((3,), dtype="int32")
    head = HEADS[head]()
    model = kl.Model(tokens, head(kl.layers.ShardedEmbedding(CLASSES, DIM, mask_zero=True)(tokens)))
    metrics = [kl.metrics.TopKAccuracy(3), kl.metrics.Perplexity()]
    model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss, metrics=metrics)
    x = rng.integers(0, CLASSES, (8, 3)).astype("int32")
    model.fit(x, x, batch_size=4, verbose=0)
    hidden = tf.convert_to_tensor(model.predict(x, verbose=0))
    seen = x[:, :2]
    best = head.top_k(hidden, 4, exclude=seen)[1]
    with kl.stock_ops():
        np.testing.assert_array_equal(tf.function(head.top_k)(hidden, 4, exclude=seen)[1], best)


def test_a_nan_is_found():
    layer = kl.layers.ShardedEmbedding(3, 2)
    layer.build()
    with pytest.raises(tf.errors.InvalidArgumentError, match="Detected Infinity or NaN"):
        layer.table.assign(np.full((3, 2), np.nan))
