"""`SparseOutput` on more inputs than uint16 can name: everything that touches its connections."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl

CLASSES, DIM, FAN_IN = 50, 70_000, 8


@pytest.mark.full
@pytest.mark.parametrize("grow", ["random", "gradient"])
@pytest.mark.parametrize("devices", [1, 2])
def test_train_rewire_save_and_export(tmp_path, rng, devices, grow):
    x = rng.normal(size=(32, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, rng.integers(-1, CLASSES, (32, 4)))).batch(8)
    with strategy_of(devices).scope():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(DIM, activation="relu")(inputs)
        head = kl.layers.SparseOutput(CLASSES, FAN_IN, optimizer="adam", seed=2)
        model = keras.Model(inputs, head(hidden))
        model.compile("sgd", loss=head.loss)
    before = head.connections.numpy()
    assert before.dtype == np.uint32 and before.max() > 2**16
    model.fit(data, verbose=0, callbacks=[kl.callbacks.Rewire(head, fraction=0.5, every=2, grow=grow)])
    after = head.connections.numpy()
    assert np.any(after != before) and after.max() < DIM
    assert all(len(set(row)) == FAN_IN for row in after.tolist())
    assert head.in_degrees().sum() == after.size

    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.layers[-1].connections.numpy(), after)
    answers = [m.layers[-1].predictor(m, k=3)(x) for m in (model, loaded)]
    kl.export_saved_model(loaded.layers[-1].predictor(loaded, k=3), tmp_path / "export")
    served = tf.saved_model.load(tmp_path / "export")
    answers.append(served.serve(tf.constant(x)))
    for other in answers[1:]:
        np.testing.assert_array_equal(other["ids"], answers[0]["ids"])
        np.testing.assert_allclose(other["scores"], answers[0]["scores"], rtol=1e-4, atol=1e-5)
