"""Metrics of heads, and of the ids that `top_k` found: nothing here is as long as the number of classes."""

from keras_largeout.metrics.at_k import NDCGAtK, PrecisionAtK, PropensityScoredPrecisionAtK, TopKAccuracy
from keras_largeout.metrics.perplexity import Perplexity
from keras_largeout.metrics.propensity import propensities
from keras_largeout.metrics.retrieval import MRR, HitRateAtK, RecallAtK

__all__ = [
    "MRR",
    "HitRateAtK",
    "NDCGAtK",
    "Perplexity",
    "PrecisionAtK",
    "PropensityScoredPrecisionAtK",
    "RecallAtK",
    "TopKAccuracy",
    "propensities",
]
