"""The two models of the ranking example, DCN-v2 and DLRM, over one `DistributedEmbedding`."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

import keras_largeout as kl

NAMES = {"dcn": "DCN-v2", "dlrm": "DLRM"}


class Feature(NamedTuple):
    """A categorical feature, and the table of its own.

    Attributes:
        name: str.
        rows: int, of the table; ids are `0 .. rows - 1`.
        ids: int, how many ids an example has at most. Where it is more than 1, id 0 is padding.
    """

    name: str
    rows: int
    ids: int = 1


def build(kind, features, dense, dim=16, learning_rate=0.02, stacking="auto"):
    """Return a compiled model from a dict of inputs to the probability of a click, `[batch, 1]`.

    Args:
        kind: "dcn" or "dlrm".
        features: list of `Feature`.
        dense: int, number of dense features. Their input is called "dense".
        dim: int, width of all tables.
        learning_rate: float, of the tables.
        stacking: `table_stacking` of the layer.

    Raises:
        ValueError: another kind.
    """
    if kind not in NAMES:
        raise ValueError(f"`kind` must be one of {tuple(NAMES)}. Received: kind={kind!r}")
    values = keras.Input((dense,), name="dense")
    ids = {f.name: keras.Input((f.ids,) if f.ids > 1 else (), dtype="int32", name=f.name) for f in features}
    vectors = embedding(features, dim, learning_rate, stacking)(ids)
    vectors = [vectors[f.name] for f in features]
    last = dcn(values, vectors) if kind == "dcn" else dlrm(values, vectors, dim)
    clicked = keras.layers.Dense(1, activation="sigmoid", name="click")(last)
    model = kl.Model({"dense": values, **ids}, clicked, name=kind)
    model.compile("adam", loss="binary_crossentropy")  # of the dense layers: the tables have their own
    return model


def embedding(features, dim, learning_rate, stacking="auto"):
    """Return one layer for all features. Each table is updated in the backward pass, by a row-wise Adagrad.

    The first values of a table are in +-1 / sqrt(rows), as in DLRM: a row that is never seen says little.
    The gradient of a mean over a batch is small. So are the constants that Adagrad adds to its square.
    """
    optimizer = kl.optimizers.RowWiseAdagrad(learning_rate, initial_accumulator_value=0.0, epsilon=1e-16)
    configs = {}
    for feature in features:
        bound = feature.rows**-0.5
        table = kl.layers.TableConfig(
            feature.name,
            feature.rows,
            dim,
            initializer=keras.initializers.RandomUniform(-bound, bound),
            optimizer=optimizer,
            combiner="mean",
            mask_zero=feature.ids > 1,
        )
        configs[feature.name] = kl.layers.FeatureConfig(feature.name, table)
    return kl.layers.DistributedEmbedding(configs, table_stacking=stacking, name="tables")


def dcn(values, vectors, layers=2, rank=32, units=(128, 64)):
    """Return cross layers and a deep tower side by side (Wang et al., 2021, "DCN V2", figure 1 b)."""
    first = keras.layers.Concatenate(name="first")([values, *vectors])
    crossed = deep = first
    for i in range(layers):
        crossed = LowRankCross(rank, name=f"cross_{i + 1}")([first, crossed])
    for i, width in enumerate(units):
        deep = keras.layers.Dense(width, activation="relu", name=f"deep_{i + 1}")(deep)
    return keras.layers.Concatenate(name="both")([crossed, deep])


def dlrm(values, vectors, dim, bottom=(64,), top=(128, 64)):
    """Return dot products of all pairs of features (Naumov et al., 2019, "Deep Learning Recommendation
    Model").
    """
    below = values
    for i, width in enumerate((*bottom, dim)):
        below = keras.layers.Dense(width, activation="relu", name=f"bottom_{i + 1}")(below)
    pairs = PairwiseDots(name="pairs")([below, *vectors])
    x = keras.layers.Concatenate(name="top_0")([below, pairs])
    for i, width in enumerate(top):
        x = keras.layers.Dense(width, activation="relu", name=f"top_{i + 1}")(x)
    return x


@keras.saving.register_keras_serializable(package="ranking")
class LowRankCross(keras.layers.Layer):
    """`first * (U V^T x + b) + x` (Wang et al., 2021, equation 3). Inputs: `[first, x]`, of one shape.

    Args:
        rank: int, columns of U and of V.
    """

    def __init__(self, rank, **kwargs):
        super().__init__(**kwargs)
        self.rank = rank

    def build(self, shapes):
        width = shapes[0][-1]
        self.down = keras.layers.Dense(self.rank, use_bias=False, name="down")
        self.up = keras.layers.Dense(width, name="up")
        self.down.build((None, width))
        self.up.build((None, self.rank))

    def call(self, inputs):
        first, x = inputs
        return first * self.up(self.down(x)) + x

    def compute_output_shape(self, shapes):
        return shapes[0]

    def get_config(self):
        return {**super().get_config(), "rank": self.rank}


@keras.saving.register_keras_serializable(package="ranking")
class PairwiseDots(keras.layers.Layer):
    """The dot product of each two of n inputs `[batch, dim]`: `[batch, n (n - 1) / 2]`."""

    def build(self, shapes):
        rows, columns = np.tril_indices(len(shapes), -1)
        self.places = rows * len(shapes) + columns

    def call(self, inputs):
        x = ops.stack(inputs, axis=1)
        dots = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.take(ops.reshape(dots, (-1, len(inputs) ** 2)), self.places, axis=1)

    def compute_output_shape(self, shapes):
        return (shapes[0][0], len(shapes) * (len(shapes) - 1) // 2)
