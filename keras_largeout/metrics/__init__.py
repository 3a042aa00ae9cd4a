"""Metrics on the ids that a head's `top_k` found: nothing here is as long as the number of classes."""

from keras_largeout.metrics.at_k import NDCGAtK, PrecisionAtK, PropensityScoredPrecisionAtK
from keras_largeout.metrics.propensity import propensities

__all__ = ["NDCGAtK", "PrecisionAtK", "PropensityScoredPrecisionAtK", "propensities"]
