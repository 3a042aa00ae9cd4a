"""Small models that end in a softmax head, for its tests."""

import keras
import numpy as np
import tensorflow as tf
from _tables import strategy_of
from _training import assert_same, fit

import keras_largeout as kl

CLASSES, DIM, LENGTH = 30, 6, 4


def built(head, rng, dim=DIM):
    """The head with random weights: a kernel that matters, and biases."""
    head.build((None, dim))
    for table in tables_of(head):
        table.assign(rng.normal(size=table.shape).astype("float32"))
    return head


def tables_of(head):
    """The kernel and, where there are any, the biases."""
    is_tree = isinstance(head, kl.layers.HierarchicalSoftmax)
    tables = (head.kernel_table, head.bias_table) if is_tree else (head.kernel, head.bias)
    return [table for table in tables if table is not None]


def model_of(head, mask_zero=False, seed=7, **compile_args):
    """A compiled language model; its embedding is "words", its dense layer "small"."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((LENGTH,), dtype="int32", name="ids")
    x = kl.layers.ShardedEmbedding(CLASSES, DIM, mask_zero=mask_zero, name="words")(ids)
    x = keras.layers.Dense(DIM, activation="tanh", name="small")(x)
    head = head() if not isinstance(head, keras.layers.Layer) else head
    model = kl.Model(ids, head(x))
    built(head, np.random.default_rng(seed))
    compile_args.setdefault("optimizer", kl.optimizers.LazyAdam(0.01))
    model.compile(loss=compile_args.pop("loss", head.loss), **compile_args)
    return model, head


def data(rng, rows=12):
    """Ids with padding at the end, the targets of all of them, and weights."""
    ids = rng.integers(1, CLASSES, (rows, LENGTH)).astype("int32")
    ids[::3, -1:] = 0
    return ids, rng.integers(0, CLASSES, ids.shape), rng.random(ids.shape).astype("float32")


def log_softmax(head, hidden):
    """log p of all classes, of a built head: in float64, of a tree by its own `log_prob`s."""
    if isinstance(head, kl.layers.HierarchicalSoftmax):
        return head.log_probs(hidden).numpy()
    kernel = head.kernel.numpy().astype(np.float64)
    logits = np.asarray(hidden).astype(np.float64) @ kernel.T / head.temperature
    logits = logits if head.bias is None else logits + head.bias.numpy()
    high = logits.max(axis=-1, keepdims=True)
    return logits - high - np.log(np.exp(logits - high).sum(axis=-1, keepdims=True))


def loss_and_gradients(model, x, y, training=True, weight=None):
    """Of one batch: the loss, and the gradients by path."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, tf.constant(y), model(x, training=training), weight, training=training)
    variables = model.trainable_variables
    return loss, dict(zip([v.path for v in variables], tape.gradient(loss, [v.value for v in variables])))


def assert_two_devices_are_like_one(rng, make, optimizer=lambda: kl.optimizers.LazyAdam(0.01), **options):
    """Two devices train the weights, and give the losses, of one.

    A mask (with `mask_zero`), weights, tokens without a target, and in evaluation a last batch that does not
    divide. `make` and `optimizer` are called once for each; `options`: those of `model_of`.
    """
    x, y, weight = data(rng, rows=16)
    y[3] = -1
    found = []
    for devices in (1, 2):
        with strategy_of(devices).scope():
            model, head = model_of(make, optimizer=optimizer(), **options)
        losses = fit(model, (x, y, weight), batch=8, epochs=2)
        losses.append(model.evaluate(x[:13], y[:13], batch_size=8, verbose=0))
        arrays = {table.name: table.numpy() for table in tables_of(head)}
        found.append({**arrays, "losses": np.array(losses)})
    assert_same(found[1], found[0])
