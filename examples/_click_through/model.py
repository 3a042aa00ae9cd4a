"""A wide and deep model on hashed strings.

Cheng et al., 2016, "Wide & Deep Learning for Recommender Systems", section 3.
"""

import keras
import tensorflow as tf

import keras_largeout as kl


class Hashed:
    """From the columns of a batch to the inputs of the model.

    Args:
        table: a `tables.Table`.
        bins: int, of the wide part, for all features together.
        deep_bins: int, of each of the 4 hashes of a feature in the deep part; None: the square root of
            `vocabulary`.
        vocabulary: int, how many categories are expected.
    """

    def __init__(self, table, bins, deep_bins, vocabulary=None):
        self.categories, self.numbers = table.categories, table.numbers
        self.wide = kl.layers.CategoryHashing(bins, hash="xxhash64", crosses=table.crosses)
        rule = {} if deep_bins else {"rule": "sqrt", "vocabulary_size": vocabulary}
        self.deep = kl.layers.CategoryHashing(deep_bins, num_hashes=4, hash="xxhash64", **rule)

    def __call__(self, columns, *target):
        strings = {name: columns[name] for name in self.categories}
        inputs = {
            "wide": tf.stack(list(self.wide(strings).values()), axis=1),
            "deep": tf.stack(list(self.deep(strings).values()), axis=1),
        }
        if self.numbers:
            inputs["numbers"] = tf.stack([columns[name] for name in self.numbers], axis=1)
        return (inputs, *(y[:, None] for y in target))


def build(hashed, crosses, dim=16, units=(64, 32), wide_rate=0.05, deep_rate=2e-3, l1=1e-6):
    """Return a compiled model from the inputs of `Hashed` to the probability of a 1, `[batch, 1]`.

    Args:
        hashed: a `Hashed`.
        crosses: int, how many crosses there are.
        dim: int, the width of the embedding.
        units: the widths of the dense layers.
        wide_rate, deep_rate: learning rates, of Ftrl and of LazyAdam.
        l1: float, what Ftrl takes for each weight that is not zero, per row.
    """
    features = len(hashed.categories)
    inputs = {
        "wide": keras.Input((features + crosses,), dtype="int64", name="wide"),
        "deep": keras.Input((features, hashed.deep.num_hashes), dtype="int64", name="deep"),
    }
    linear = kl.layers.SparseDense(
        1,
        input_dim=hashed.wide.total_bins,
        kernel_initializer="zeros",
        optimizer=kl.optimizers.Ftrl(
            wide_rate, initial_accumulator_value=1e-7, l1_regularization_strength=l1
        ),
        name="linear",
    )(inputs["wide"])
    vectors = kl.layers.ShardedEmbedding(
        hashed.deep.total_bins, dim, combiner="sum", embeddings_initializer="normal", name="vectors"
    )(inputs["deep"])
    x = keras.layers.Reshape((features * dim,))(vectors)
    if hashed.numbers:
        inputs["numbers"] = keras.Input((len(hashed.numbers),), name="numbers")
        x = keras.layers.Concatenate()([x, Numbers(name="scaled")(inputs["numbers"])])
    for i, width in enumerate(units):
        x = keras.layers.Dense(width, activation="relu", name=f"deep_{i + 1}")(x)
    score = keras.layers.Add(name="score")([linear, keras.layers.Dense(1, name="deep_score")(x)])
    model = kl.Model(inputs, keras.layers.Activation("sigmoid", name="probability")(score))
    model.compile(kl.optimizers.LazyAdam(deep_rate), "binary_crossentropy")
    return model


@keras.saving.register_keras_serializable(package="click_through")
class Numbers(keras.layers.Layer):
    """`sign(x) log(1 + |x|)`, 0 for what is missing; beside it 1 where something is missing."""

    def call(self, x):
        missing = tf.math.is_nan(x)
        known = tf.where(missing, tf.zeros_like(x), x)
        return tf.concat([tf.sign(known) * tf.math.log1p(tf.abs(known)), tf.cast(missing, x.dtype)], 1)

    def compute_output_shape(self, shape):
        return (shape[0], 2 * shape[1])
