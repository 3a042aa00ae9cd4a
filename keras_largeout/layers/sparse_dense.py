"""`SparseDense`: a linear layer on wide sparse rows that never makes them dense."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.layers._inputs import as_ids, check_keras_3
from keras_largeout.layers._single_table import SingleTableMixin
from keras_largeout.ops.embedding.into_range import check_out_of_range, in_op, into_range
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.replicas.optimizer_check import check_optimizer


@keras.saving.register_keras_serializable(package="keras_largeout")
class SparseDense(SingleTableMixin, keras.layers.Layer):
    """`activation(x @ kernel + bias)` for rows `x` of which most entries are zero.

    What `keras.layers.Dense` is for dense inputs: the first layer of a model over millions of features, or
    the wide part of a wide and deep model. A step costs what the non-zeros of the batch cost, whatever
    `input_dim` is. The gradient of the kernel is the rows of the features that occur, and the optimizers of
    `keras_largeout.optimizers` update just those. The kernel is a table, as that of a `ShardedEmbedding`: it
    can be on several devices, in host memory or in files.

    Args:
        units: int > 0, the outputs.
        input_dim: int > 0, the features. None: the last axis of the inputs, where these are a
            `tf.SparseTensor` of known width. Defaults to `None`.
        activation, use_bias: as in `keras.layers.Dense`.
        kernel_initializer: as in `keras.layers.Dense`. For a linear model take "zeros": features that never
            come then keep a weight of exactly zero.
        bias_initializer, bias_regularizer, bias_constraint: as in `keras.layers.Dense`.
        kernel_constraint: constraint that acts row by row. Defaults to `None`.
        kernel_regularizer: regularizer, applied to the distinct rows that a batch uses (not to the whole
            kernel) and added to the layer's losses. For weights of exactly zero take
            `kl.optimizers.Ftrl(l1_regularization_strength=...)`. Defaults to `None`.
        out_of_range: what becomes of a feature outside `[0, input_dim)`: "error", "zero", "modulo", "hash"
            or "default_row", as in `ShardedEmbedding`.
        placement, storage, cache_rows: where the rows of the kernel go, as in `ShardedEmbedding`.
        optimizer: None (the model's optimizer trains the kernel), or one of the kernel's own, whose step is a
            part of the backward pass, as in `ShardedEmbedding`. The model's optimizer trains the bias.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer` as for every Keras layer.

    Call arguments:
        inputs: one of
            - a `tf.SparseTensor` `[..., input_dim]` of numbers, its rows in order (`tf.sparse.reorder`);
            - integer ids of features, dense `[..., n]` or ragged `[..., (n)]`: features that are there. A
              feature that is given twice counts twice.
        values: where `inputs` are ids, their values: floats of the same kind and shape. None: ones.

    Output shape:
        `[..., units]`, of the compute dtype.

    Raises:
        ValueError: an argument outside its range; in a call: inputs that are dense floats, or of another
            width than `input_dim`, or `values` given with a `tf.SparseTensor`.
        tf.errors.InvalidArgumentError: with `out_of_range="error"`, a feature outside `[0, input_dim)`; rows
            of a `tf.SparseTensor` that are not in order.

    Example:

    >>> layer = kl.layers.SparseDense(1, input_dim=2**24, activation="sigmoid")
    >>> layer(tf.ragged.constant([[3, 14, 15], [92]])).shape
    TensorShape([2, 1])

    References:
        - [McMahan et al., 2013, "Ad Click Prediction: a View from the
          Trenches"](https://doi.org/10.1145/2487575.2488200), sections 2 and 3.
    """

    def __init__(
        self,
        units: int,
        input_dim: int | None = None,
        activation: str | Callable | None = None,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        kernel_regularizer: str | keras.Regularizer | None = None,
        bias_regularizer: str | keras.Regularizer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        bias_constraint: str | keras.constraints.Constraint | None = None,
        out_of_range: str = "error",
        placement: str | Placement | Plan = "auto",
        optimizer: str | keras.Optimizer | None = None,
        storage: str = "device",
        cache_rows: int | None = None,
        **kwargs: Any,
    ) -> None:
        units = positive_int("units", units)
        input_dim = None if input_dim is None else positive_int("input_dim", input_dim)
        check_out_of_range(out_of_range)
        super().__init__(**kwargs)
        self.units = units
        self.input_dim: Any = input_dim  # an int, once the layer is built
        self.activation = keras.activations.get(activation)
        self.use_bias, self.out_of_range = use_bias, out_of_range
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self._given_dim = input_dim
        self.bias = None
        self.supports_jit = False  # custom ops
        self.autocast = False
        self._set_placement(placement, storage, cache_rows)
        self._set_optimizer(optimizer)

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        if self.built:
            return
        if self.input_dim is None:
            width = None if not input_shape else input_shape[-1]
            if width is None:
                raise ValueError(
                    f"`input_dim` of {self.name!r} must be given where the width of its inputs is unknown. "
                    f"Received: input_dim=None, inputs of shape {input_shape}"
                )
            self.input_dim = int(width)
        self.make_table(self.table_shape(), self.kernel_initializer, "kernel", self.kernel_constraint)
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )
        self.built = True
        self.track_state()

    def table_shape(self) -> tuple[int, int]:
        return self.input_dim, self.units

    def own_weights(self) -> dict[str, keras.Variable]:
        return {"bias": self.bias} if self.use_bias else {}

    @property
    def kernel(self) -> keras.Variable:
        """The kernel as a `keras.Variable` of `[input_dim, units]`, where it is in one piece."""
        return self.whole_table("kernel")

    def count_nonzero(self) -> int:
        """Return how many weights of the kernel are not exactly zero: an int. Reads the kernel in pieces."""
        if not self.built:
            raise ValueError(f"The layer {self.name!r} has no weights yet: call it, or build it.")
        array = self.table.array
        return sum(int(np.count_nonzero(array.read(piece))) for piece in array.chunk_ranges())

    def call(
        self,
        inputs: tf.Tensor | tf.RaggedTensor | tf.SparseTensor,
        values: tf.Tensor | tf.RaggedTensor | None = None,
    ) -> tf.Tensor:
        check_keras_3(self, inputs)
        check_optimizer(self)
        self.check_fused_optimizer()
        ids, values = self._features(inputs, values)
        ids = into_range(ids, self.input_dim, self.out_of_range)
        rows = self.look_up(ids, values, "sum", in_op(self.out_of_range), self.kernel_regularizer)
        outputs = tf.cast(rows, self.compute_dtype)
        if self.use_bias:
            outputs += tf.cast(tf.convert_to_tensor(self.bias), self.compute_dtype)
        return self.activation(outputs)

    def _features(self, inputs, values):
        """Return the features of each row and their values, of one kind."""
        if isinstance(inputs, tf.SparseTensor):
            if values is not None:
                raise ValueError(
                    "`values` must be None where `inputs` are a tf.SparseTensor, which has its own. "
                    f"Received: values={values!r}"
                )
            if inputs.shape[-1] not in (None, self.input_dim):
                raise ValueError(
                    f"`inputs` of {self.name!r} must have {self.input_dim} columns (`input_dim`). "
                    f"Received: inputs of shape {inputs.shape}"
                )
            if inputs.dtype == tf.string:
                self._refuse(inputs)
            ids = with_values(inputs, inputs.indices[:, -1])
            return ids, with_values(inputs, tf.cast(inputs.values, tf.float32))
        ids = as_ids(inputs) if not _is_float(inputs) else self._refuse(inputs)
        if values is not None and not isinstance(values, (tf.RaggedTensor, tf.SparseTensor)):
            values = tf.convert_to_tensor(values)
        return ids, values if values is None else with_values(values, tf.cast(values_of(values), tf.float32))

    def _refuse(self, inputs):
        dtype = getattr(inputs, "dtype", None)
        raise ValueError(
            f"`inputs` of {self.name!r} must be a tf.SparseTensor of numbers, or integer ids of features. "
            "(Of dense numbers tf.sparse.from_dense makes a tf.SparseTensor; ids of strings come from a "
            f"CategoryHashing.) Received: {type(inputs).__name__} of dtype {dtype}"
        )

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*tuple(input_shape)[:-1], self.units)

    def compute_output_spec(self, inputs: keras.KerasTensor, values: Any = None) -> keras.KerasTensor:
        if not getattr(inputs, "sparse", False) and _is_float(inputs):
            self._refuse(inputs)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "input_dim": self._given_dim,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
            "out_of_range": self.out_of_range,
            **self.place_config(),
        }


def _is_float(inputs):
    dtype = inputs.dtype if hasattr(inputs, "dtype") else np.asarray(inputs).dtype
    return tf.as_dtype(dtype).is_floating
