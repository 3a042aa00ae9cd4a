"""Readers of data for models with large first and last layers."""

from keras_largeout.datasets.extreme_classification import ExtremeClassification
from keras_largeout.datasets.labeled_rows import LabeledRows
from keras_largeout.datasets.sparse_rows import SparseRows
from keras_largeout.datasets.tabular_files import TabularFiles

__all__ = ["ExtremeClassification", "LabeledRows", "SparseRows", "TabularFiles"]
