import keras

from keras_largeout.ops.row_update import momentum_hyper, sgd_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class SGD(RowSparse, keras.optimizers.SGD):
    """`keras.optimizers.SGD` that updates just the rows that a sparse gradient lists.

    With momentum, the velocity of a row decays, and moves the row, only in the steps that have the row in
    their batch.

    Args: those of `keras.optimizers.SGD`. What they mean for rows: see `RowSparse`.

    Example:

    ```python
    model.compile(keras_largeout.optimizers.SGD(0.1, momentum=0.9), loss=head.loss)
    ```
    """

    @property
    def slots_of_a_table(self):
        return (0 if self.momentum == 0 else 1, 0)

    def row_rule(self, index):
        if self.momentum == 0:
            return "sgd", []
        return "nesterov" if self.nesterov else "momentum", [self.momentums[index]]

    def row_hyper(self, learning_rate, decay):
        if self.momentum == 0:
            return sgd_hyper(learning_rate, decay)
        return momentum_hyper(learning_rate, self.momentum, decay)
