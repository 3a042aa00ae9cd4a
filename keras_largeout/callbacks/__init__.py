"""Callbacks for `fit`."""

from keras_largeout.callbacks.backup_and_restore import BackupAndRestore
from keras_largeout.callbacks.decay_tables import DecayTables
from keras_largeout.callbacks.feature_report import FeatureReport
from keras_largeout.callbacks.follow_learning_rate import FollowLearningRate
from keras_largeout.callbacks.index_items import IndexItems
from keras_largeout.callbacks.load_balance import LoadBalance
from keras_largeout.callbacks.model_checkpoint import ModelCheckpoint
from keras_largeout.callbacks.prometheus_metrics import PrometheusMetrics
from keras_largeout.callbacks.rewire import Rewire
from keras_largeout.callbacks.swap_ema_weights import SwapEMAWeights
from keras_largeout.callbacks.tensor_board import TensorBoard

__all__ = [
    "BackupAndRestore",
    "DecayTables",
    "FeatureReport",
    "FollowLearningRate",
    "IndexItems",
    "LoadBalance",
    "ModelCheckpoint",
    "PrometheusMetrics",
    "Rewire",
    "SwapEMAWeights",
    "TensorBoard",
]
