"""The one place that touches private parts of Keras, and of tf_keras, where nothing public does the same.

Each function and class says why it is needed. Where a version of Keras lacks a name, it raises an
ImportError that says so. A file has what touches one part of Keras; their names are imported from here.
"""

# ruff: noqa: F401

from keras_largeout._keras.calls import (
    is_symbolic,
    is_training_call,
    losses_given,
    mask_of,
    notes_of_call,
    outermost_layer,
    same_call,
    with_mask,
)
from keras_largeout._keras.graphs import compute_graph_by, graph_calls, made_from
from keras_largeout._keras.layers import all_layers, forget, more_weights, note_made, own_optimizers
from keras_largeout._keras.optimizers import (
    AverageSwaps,
    GradientSums,
    optimizer_inside,
    optimizers_inside,
    step_counter,
)
from keras_largeout._keras.saving import in_safe_mode, store_path, while_loading
from keras_largeout._keras.tf_keras import (
    is_symbolic_in_tf_keras,
    set_tf_keras_id,
    training_layer_of_tf_keras,
)
from keras_largeout._keras.training import LoopHooks, compiled_metrics, is_built, yield_calls
from keras_largeout._keras.variables import LazyTfVariable, ValuesOfWeights, is_made, move_variable, uncast
