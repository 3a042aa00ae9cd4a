from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_largeout.ops.row_update import adagrad_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class RowWiseAdagrad(RowSparse, keras.optimizers.Optimizer):
    """Adagrad with one accumulator per row.

    `accumulator += mean(g^2)`, then `row -= lr * g / sqrt(accumulator + epsilon)`. The optimizer of most
    recommenders: a table of `dim` columns needs 1 / `dim` of Adagrad's memory. Dense weights are treated
    alike, with the first axis as rows; vectors and scalars have one accumulator per element.

    Args:
        learning_rate: float, schedule or callable. Defaults to `0.001`.
        initial_accumulator_value: float, the first value of the accumulators; not negative. Defaults to
            `0.1`.
        epsilon: float, a small constant under the root. Defaults to `1e-07`.
        **kwargs: arguments of `keras.optimizers.Adagrad`. What they mean for rows: see `RowSparse`. Besides,
            `stochastic_rounding` and `rounding_seed`, as of `SGD`.

    Raises:
        ValueError: a negative `initial_accumulator_value`, or an argument that Keras refuses; when weights
            that are updated by rows are seen: a table whose columns are on several devices, XLA, a dtype
            other than float32 and bfloat16, `stochastic_rounding` where nothing is rounded by rows, a
            constraint that does not act on each row by itself, or `use_ema` for a table in files, by columns,
            of bfloat16 or over several machines.

    Example:

    ```python
    model.compile(keras_largeout.optimizers.RowWiseAdagrad(0.05), "binary_crossentropy")
    ```

    References:
        - [Duchi et al., 2011](http://www.jmlr.org/papers/volume12/duchi11a/duchi11a.pdf), section 1.3.
        - [Khudia et al., 2021, FBGEMM](https://arxiv.org/abs/2101.05615): its exact row-wise Adagrad.
    """

    row_rule, slot_names = "row_wise_adagrad", ("accumulator",)
    per_row_slots = slot_names

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], float] = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        if initial_accumulator_value < 0:
            raise ValueError(
                "`initial_accumulator_value` must not be negative. "
                f"Received: initial_accumulator_value={initial_accumulator_value}"
            )
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._accumulators = self.add_optimizer_variables(
            variables, "accumulator", keras.initializers.Constant(self.initial_accumulator_value)
        )

    def check_rows(self, weight: keras.Variable) -> None:
        super().check_rows(weight)
        if weight.columns is not None:
            raise ValueError(
                "RowWiseAdagrad takes the mean over whole rows, and must not train a table whose columns are "
                'on several devices: use Adagrad, or another `placement` than "columns". '
                f"Received: {weight.name}, placed by columns"
            )

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        (accumulator,) = self.slots_of(variable)
        gradient = ops.cast(gradient, accumulator.dtype)
        axes = tuple(range(1, len(gradient.shape)))
        square = ops.square(gradient)
        self.assign_add(accumulator, ops.mean(square, axis=axes) if axes else square)
        root = ops.sqrt(ops.add(accumulator, self.epsilon))
        if axes:
            root = ops.reshape(root, (-1,) + (1,) * len(axes))
        step = ops.multiply(ops.cast(learning_rate, accumulator.dtype), gradient)
        self.assign_sub(variable, ops.divide(step, root))

    def row_hyper(self, learning_rate: Any, decay: Any) -> Any:
        return adagrad_hyper(learning_rate, self.epsilon, decay)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
