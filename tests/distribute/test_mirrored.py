"""Tables over several devices: the numbers of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.distribute.planning.placement import Placement

VOCAB, DIM, BATCH, LENGTH = 97, 8, 24, 5
STEPS = 50

OPTIMIZERS = {
    "sgd": lambda **k: kl.optimizers.SGD(0.5, **k),
    "momentum": lambda **k: kl.optimizers.SGD(0.2, momentum=0.9, **k),
    "nesterov": lambda **k: kl.optimizers.SGD(0.2, momentum=0.9, nesterov=True, **k),
    "adagrad": lambda **k: kl.optimizers.Adagrad(0.1, **k),
    "row_wise_adagrad": lambda **k: kl.optimizers.RowWiseAdagrad(0.1, **k),
    "lazy_adam": lambda **k: kl.optimizers.LazyAdam(0.01, **k),
    "ftrl": lambda **k: kl.optimizers.Ftrl(0.1, **k),
}

PLACEMENTS = {
    "replicated": lambda n: "replicated",
    "range": lambda n: "range",
    "modulo": lambda n: "modulo",
    "permutation": lambda n: "permutation",
    "columns": lambda n: "columns",
    "table": lambda n: Placement.on_device(VOCAB, n, n - 1),
    "hot": lambda n: Placement.by_modulo(VOCAB, n).with_hot_rows([0, 1, 2, 50]),
    "explicit": lambda n: Placement.explicit(np.random.default_rng(3).integers(-1, n, VOCAB), n),
}


def data(steps=STEPS, batch=BATCH):
    rng = np.random.default_rng(1)
    ids = np.minimum(rng.zipf(1.3, (steps * batch, LENGTH)) - 1, VOCAB - 1).astype("int32")
    y = rng.integers(0, 3, steps * batch)
    return tf.data.Dataset.from_tensor_slices((ids, y)).batch(batch, drop_remainder=True)


def train(devices, optimizer, placement, combiner=None, steps=STEPS, **compile_args):
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        place = placement(devices) if devices > 1 else "auto"
        x = kl.layers.ShardedEmbedding(VOCAB, DIM, combiner=combiner, placement=place)(tokens)
        x = keras.layers.Flatten()(x)
        model = keras.Model(tokens, keras.layers.Dense(3)(x))
        model.compile(
            optimizer(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compile_args
        )
    losses = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    model.fit(data(steps), epochs=1, verbose=0, shuffle=False, callbacks=[record])
    return model, losses


def state(model):
    table = model.layers[1].table
    arrays = {"table": table.numpy()}
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    arrays.update({key: slot.numpy() for key, slot in optimizer._row_slots.slots.items()})
    arrays.update({f"dense{i}": w.numpy() for i, w in enumerate(model.layers[-1].weights)})
    return arrays


def assert_same(a, b, rtol=2e-5, atol=2e-6):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=rtol, atol=atol, err_msg=key)


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name, devices):
    want, want_losses = train(1, OPTIMIZERS[name], None)
    got, losses = train(devices, OPTIMIZERS[name], PLACEMENTS["explicit"])
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    assert_same(state(got), state(want))


@pytest.mark.parametrize("combiner", [None, "sum", "mean"])
@pytest.mark.parametrize("kind", PLACEMENTS)
def test_every_placement(kind, combiner):
    want, want_losses = train(1, OPTIMIZERS["lazy_adam"], None, combiner, 10)
    got, losses = train(4, OPTIMIZERS["lazy_adam"], PLACEMENTS[kind], combiner, 10)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    assert_same(state(got), state(want))
