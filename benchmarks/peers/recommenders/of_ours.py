"""keras_largeout in the models of `of_keras`."""

import keras

import keras_largeout as kl
from benchmarks.peers.recommenders import of_keras as models

OPTIMIZERS = {
    "adagrad": lambda lr: kl.optimizers.Adagrad(lr, initial_accumulator_value=0.1, epsilon=1e-7),
    "adam": lambda lr: kl.optimizers.LazyAdam(lr, epsilon=1e-7),
}
UNIFORM = "uniform"  # the first values of `keras.layers.Embedding`


def _sharded(config):
    return models.of_each(
        lambda name: kl.layers.ShardedEmbedding(config["rows"], config["dim"], UNIFORM, name=f"{name}_table")
    )


def _distributed(names, rows, dim, stacking):
    tables = {n: kl.layers.TableConfig(n, size, dim, UNIFORM) for n, size in zip(names, rows)}
    features = {n: kl.layers.FeatureConfig(n, table) for n, table in tables.items()}
    return kl.layers.DistributedEmbedding(features, table_stacking=stacking)


def two_tower(config, data):
    return models.two_tower(config, data, _sharded(config), OPTIMIZERS)


def two_tower_stacked(config, data, stacking="auto"):
    layer = _distributed(models.SIDES, [config["rows"]] * 2, config["dim"], stacking)
    return models.two_tower(config, data, layer, OPTIMIZERS)


def two_tower_separate(config, data):
    return two_tower_stacked(config, data, None)


def _of_features(config, stacking):
    return _distributed(models.names(config), config["rows"], config["dim"], stacking)


def ranking_stacked(config, data, stacking="auto"):
    return models.ranking(config, data, lambda inputs: _of_features(config, stacking)(inputs), OPTIMIZERS)


def ranking_separate(config, data):
    return ranking_stacked(config, data, None)


def build_stacked(config, data, stacking="auto"):
    return models.build(config, data, lambda: _of_features(config, stacking), OPTIMIZERS)


def build_separate(config, data):
    return build_stacked(config, data, None)


def saved(config, data):
    """Trains, saves, and trains on."""
    model = _ranking_model(config)
    step = models.trained(model, models.ranking_data(config, data), config)
    step.run(0)
    model.save(config["path"])
    return step


def loaded(config, data):
    """Load what `saved` has saved, and train."""
    model = keras.models.load_model(config["path"])
    return models.trained(model, models.ranking_data(config, data), config)


def _ranking_model(config):
    return models.ranking_model(config, _of_features(config, "auto"), OPTIMIZERS)
