"""Keras's optimizers, with row updates for large weights: a sparse gradient touches nothing but its rows."""

from keras_largeout.optimizers.adagrad import Adagrad
from keras_largeout.optimizers.ftrl import Ftrl
from keras_largeout.optimizers.lazy_adam import LazyAdam
from keras_largeout.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras_largeout.optimizers.row_wise_adagrad import RowWiseAdagrad
from keras_largeout.optimizers.sgd import SGD

__all__ = ["SGD", "Adagrad", "Ftrl", "LazyAdam", "LossScaleOptimizer", "RowWiseAdagrad"]
