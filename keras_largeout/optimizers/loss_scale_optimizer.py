from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_largeout.optimizers.row_saving import SavedWithoutRows
from keras_largeout.replicas.cross_replica import sums_of_replicas


@keras.saving.register_keras_serializable(package="keras_largeout")
class LossScaleOptimizer(SavedWithoutRows, keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` for models with tables.

    It looks for infinities and NaN in the rows that a sparse gradient lists (Keras's own makes a dense copy
    of the gradient first, of the size of the table), and on all replicas (Keras's own: on the first).

    Takes the arguments of `keras.optimizers.LossScaleOptimizer`. Under the policy mixed_float16 `compile`
    makes Keras's own, and a model with a table replaces it by this one.

    Raises:
        ValueError: an argument that Keras refuses.

    Example:

    ```python
    keras.config.set_dtype_policy("mixed_float16")
    inner = keras_largeout.optimizers.LazyAdam(1e-3)
    model.compile(keras_largeout.optimizers.LossScaleOptimizer(inner), loss=head.loss)
    ```

    References:
        - [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740), section 3.2 (loss scaling).
    """

    def check_finite(self, grads: Sequence) -> tf.Tensor:
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads if g is not None]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])
        (bad,) = sums_of_replicas([1.0 - tf.cast(finite, tf.float32)])
        return bad == 0.0
