"""Metrics of heads, of the ids that `top_k` found, and of probabilities. Nothing here is as long as the
classes, groups or rows are many.
"""

from keras_largeout.metrics.at_k import NDCGAtK, PrecisionAtK, PropensityScoredPrecisionAtK, TopKAccuracy
from keras_largeout.metrics.calibration_error import ExpectedCalibrationError
from keras_largeout.metrics.gauc import GAUC
from keras_largeout.metrics.perplexity import Perplexity
from keras_largeout.metrics.probability import Calibration, LogLoss, NormalizedEntropy, prior_correction
from keras_largeout.metrics.propensity import propensities
from keras_largeout.metrics.retrieval import MRR, HitRateAtK, RecallAtK

__all__ = [
    "GAUC",
    "MRR",
    "Calibration",
    "ExpectedCalibrationError",
    "HitRateAtK",
    "LogLoss",
    "NDCGAtK",
    "NormalizedEntropy",
    "Perplexity",
    "PrecisionAtK",
    "PropensityScoredPrecisionAtK",
    "RecallAtK",
    "TopKAccuracy",
    "prior_correction",
    "propensities",
]
