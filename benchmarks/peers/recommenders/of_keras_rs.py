"""keras_rs.layers.DistributedEmbedding in the models of `of_keras`: Keras's layers, on CPUs."""

import keras_rs

from benchmarks.peers.recommenders import of_keras as models


def _distributed(names, rows, config, batch):
    features = {}
    for name, size in zip(names, rows):
        table = keras_rs.layers.TableConfig(
            name, size, config["dim"], optimizer=config["optimizer"], combiner="sum"
        )
        features[name] = keras_rs.layers.FeatureConfig(name, table, (batch,), (batch, config["dim"]))
    return keras_rs.layers.DistributedEmbedding(features)


def two_tower(config, data):
    batch = models.load(data, "user").shape[1]
    layer = _distributed(models.SIDES, [config["rows"]] * 2, config, batch)
    return models.two_tower(config, data, layer)


def ranking(config, data):
    return models.ranking(config, data, _of_features(config, models.load(data, "numbers").shape[1]))


def build(config, data):
    batch = models.load(data, "numbers").shape[1]
    return models.build(config, data, lambda: _of_features(config, batch))


def _of_features(config, batch):
    return _distributed(models.names(config), config["rows"], config, batch)
