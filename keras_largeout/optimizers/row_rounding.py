"""Rounding of bfloat16 rows by the optimizers of this package."""

from typing import Any

import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout._keras import step_counter
from keras_largeout.optimizers.weight import is_bfloat16


class RoundedRows:
    """A base of `RowSparse`, which has `_row_slots`: rounds rows of bfloat16 to nearest, or stochastically.

    bfloat16 has 8 bits: a step below 1 / 512 of a value is lost where the new value is rounded to nearest.
    Rounded stochastically, it goes up with the probability of what is cut off, so that many small steps
    move it as far as in float32, in the mean.

    The random bits are a function of the seed, the table, the step, the row and the column. Any number of
    threads or devices gives the same bits, and a training that is resumed goes on with the same ones. With
    an explicit placement or hot rows, the place of a row among the devices stands for the row. On parameter
    servers the steps that workers take at the same time may share their bits.

    Source: [Gupta et al., 2015](https://arxiv.org/abs/1502.02551), section 3. FBGEMM has the same option for
    tables in half precision.
    """

    def __init__(
        self, *args: Any, stochastic_rounding: bool = False, rounding_seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.stochastic_rounding = bool(stochastic_rounding)
        self.rounding_seed = positive_int("rounding_seed", rounding_seed, minimum=0)
        if self.rounding_seed >= 1 << 32:
            raise ValueError(
                f"`rounding_seed` must be less than 2^32. Received: rounding_seed={self.rounding_seed}"
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "stochastic_rounding": self.stochastic_rounding,
            "rounding_seed": self.rounding_seed,
        }

    def rounding_of(self, weight):
        """Return by what the rows of a `Weight` are rounded stochastically in this step; None: to nearest."""
        if not self.stochastic_rounding or not is_bfloat16(weight.variable):
            return None
        return weight.rounding(self.rounding_seed, step_counter(self))

    def check_rounding(self):
        """Raise ValueError if there is nothing to round among the weights, or a row has no fixed place."""
        weights = self._row_slots.weights
        if not self.stochastic_rounding or not weights:
            return
        if not any(is_bfloat16(weight.variable) for weight in weights):
            dtypes = sorted({tf.as_dtype(weight.variable.dtype).name for weight in weights})
            raise ValueError(
                "`stochastic_rounding` must be False unless a trained weight is bfloat16: float32 does not "
                f"lose small updates. Received: stochastic_rounding=True and weights of {', '.join(dtypes)}"
            )
        for weight in weights:
            if weight.is_table and is_bfloat16(weight.variable) and not weight.variable.has_places:
                raise ValueError(
                    "`stochastic_rounding` must be False for a bfloat16 table with `cache_rows`: the place "
                    "of a row changes, and with it would its random bits. Give the table no cache. "
                    f"Received: stochastic_rounding=True for {weight.name}"
                )

    def check_whole(self, weight):
        """Raise ValueError if a `Weight` that is updated whole, by Keras's formula, would be rounded."""
        if self.stochastic_rounding and is_bfloat16(weight.variable):
            raise ValueError(
                "`stochastic_rounding` acts on weights that are updated by rows, and Keras's update of other "
                "weights rounds to nearest. Give those the dtype policy 'mixed_bfloat16', or another "
                "optimizer (keras.optimizers.MultiOptimizer, or `optimizer=` of the layer with the table). "
                f"Received: stochastic_rounding=True and a dense bfloat16 gradient for {weight.name}"
            )
