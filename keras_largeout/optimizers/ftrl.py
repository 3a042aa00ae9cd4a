import keras

from keras_largeout.ops.row_update import ftrl_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class Ftrl(RowSparse, keras.optimizers.Ftrl):
    """`keras.optimizers.Ftrl` that updates just the rows that a sparse gradient lists.

    Args: those of `keras.optimizers.Ftrl`; the shrinkage acts on the rows of the batch. What the others mean
        for rows: see `RowSparse`.

    Reference:

    - [McMahan et al., 2013](https://research.google.com/pubs/archive/41159.pdf), algorithm 1
    """

    slots_of_a_table = (2, 0)

    def row_rule(self, index):
        return "ftrl", [self._accumulators[index], self._linears[index]]

    def row_hyper(self, learning_rate, decay):
        return ftrl_hyper(
            learning_rate,
            self.learning_rate_power,
            self.l1_regularization_strength,
            self.l2_regularization_strength,
            self.l2_shrinkage_regularization_strength,
            self.beta,
            decay,
        )
