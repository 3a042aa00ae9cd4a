"""Trees over the classes of a hierarchical softmax: their shape, how to build one, what it costs.

Everything here is NumPy; nothing imports TensorFlow. (`cooccurrence_vectors` imports SciPy and scikit-learn
when it is called.)
"""

from keras_largeout.trees._head_tail import head_tail
from keras_largeout.trees._huffman import huffman
from keras_largeout.trees.cost import TreeCost
from keras_largeout.trees.simple import balanced, two_level
from keras_largeout.trees.tree import Tree
from keras_largeout.trees.vectors import cooccurrence_vectors

__all__ = ["Tree", "TreeCost", "balanced", "cooccurrence_vectors", "head_tail", "huffman", "two_level"]
