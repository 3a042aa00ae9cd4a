import keras

from keras_largeout.ops.row_update import adam_alpha, lazy_adam_hyper
from keras_largeout.optimizers.row_slices import name_of
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class LazyAdam(RowSparse, keras.optimizers.Adam):
    """`keras.optimizers.Adam` that updates just the rows that a sparse gradient lists.

    The moments of a row decay, and move the row, only in the steps that have the row in their batch; Keras's
    Adam reads and writes the whole table and both its moments in every step. The bias correction counts all
    steps.

    A row that rarely occurs therefore learns more slowly: under Adam its momentum moves it on for some
    `1 / (1 - beta_1)` steps after each of its batches. A larger learning rate for tables of rare rows makes
    up for it (`keras.optimizers.MultiOptimizer`).

    Args: those of `keras.optimizers.Adam`; `amsgrad` is for dense weights alone. What the others mean for
        rows: see `RowSparse`.

    Reference:

    - [Kingma and Ba, 2014](http://arxiv.org/abs/1412.6980), section 2
    """

    slots_of_a_table = (2, 0)

    def check_rows(self, variable):
        super().check_rows(variable)
        if self.amsgrad:
            raise ValueError(
                "`amsgrad` must be False for weights that are updated by rows. "
                f"Received: amsgrad={self.amsgrad} and row gradients for {name_of(variable)}"
            )

    def in_one_pass(self, weight):
        return not self.amsgrad and super().in_one_pass(weight)

    def row_rule(self, index):
        return "lazy_adam", [self._momentums[index], self._velocities[index]]

    def row_hyper(self, learning_rate, decay):
        alpha = adam_alpha(learning_rate, self.beta_1, self.beta_2, self.iterations + 1)
        return lazy_adam_hyper(alpha, self.beta_1, self.beta_2, self.epsilon, decay)
