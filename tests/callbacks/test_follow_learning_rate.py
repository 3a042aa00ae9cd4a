import keras
import numpy as np
import pytest

import keras_largeout as kl


def _model(rate=0.1, **compiled):
    ids = keras.Input((), dtype="int32")
    own = kl.layers.ShardedEmbedding(20, 4, optimizer=kl.optimizers.Adagrad(rate), name="own")
    tables = [kl.layers.TableConfig(name, 20, 4, optimizer=o) for name, o in (("a", "sgd"), ("b", None))]
    features = {
        table.name: kl.layers.FeatureConfig(table.name, table, (None,), (None, 4)) for table in tables
    }
    several = kl.layers.DistributedEmbedding(features, name="several")
    x = [own(ids), *several(dict.fromkeys(features, ids)).values()]
    model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.concatenate(x)))
    model.compile(**{"optimizer": keras.optimizers.SGD(0.5), "loss": "mse"} | compiled)
    return model


DATA = np.arange(20), np.ones(20, "float32")


class _Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        several = self.model.get_layer("several").table_optimizers()
        layers = self.model.get_layer("own").optimizer, several["a"]
        self.seen.append([float(o.learning_rate) for o in (self.model.optimizer, *layers)])


def test_optimizers_of_layers_follow():
    model, rates, follow = _model(), _Rates(), kl.callbacks.FollowLearningRate()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 / (epoch + 1))
    model.fit(*DATA, epochs=3, verbose=0, callbacks=[schedule, follow, rates])
    np.testing.assert_allclose(
        rates.seen, [[0.5, 0.1, 0.01], [0.25, 0.05, 0.005], [0.5 / 3, 0.1 / 3, 0.01 / 3]]
    )
    model.optimizer.learning_rate = 1.0
    model.fit(*DATA, verbose=0, callbacks=[follow, rates])
    np.testing.assert_allclose(rates.seen[-1], [1.0, 0.2, 0.02])


def test_a_plateau_is_followed():
    model, rates = _model(), _Rates()
    slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=1, min_delta=100.0)
    callbacks = [kl.callbacks.FollowLearningRate(), slower, rates]
    model.fit(*DATA, epochs=3, verbose=0, callbacks=callbacks)
    np.testing.assert_allclose(rates.seen[-1], [0.05, 0.01, 0.001], rtol=1e-6)


def test_a_schedule_of_a_layer_stays():
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model = _model(rate=decay)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.25)
    model.fit(*DATA, verbose=0, callbacks=[schedule, kl.callbacks.FollowLearningRate()])
    own = model.get_layer("own").optimizer
    np.testing.assert_allclose(own.learning_rate, decay(own.iterations), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.0, keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)])
def test_there_must_be_a_rate_to_follow(rate):
    model = _model(optimizer=keras.optimizers.SGD(rate))
    with pytest.raises(ValueError, match="must be a positive number where those of layers follow it"):
        model.fit(*DATA, verbose=0, callbacks=[kl.callbacks.FollowLearningRate()])
