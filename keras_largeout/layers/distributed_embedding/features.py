"""`FeatureStructure`: features in a nested structure, and inputs like it."""

import keras

from keras_largeout.layers._inputs import check_exact
from keras_largeout.layers.distributed_embedding.config import FeatureConfig


class FeatureStructure:
    """The features of a layer in their structure. (An attribute that is a dict or list Keras would wrap.)

    Args:
        configs: `FeatureConfig`, or a nested structure of them.

    Attributes:
        configs: the structure itself.
        flat: list of its `FeatureConfig`s.

    Raises:
        ValueError: something in the structure is no `FeatureConfig`, or there is nothing in it.
    """

    def __init__(self, configs):
        self.configs = keras.tree.map_structure(lambda config: config, configs)  # containers of its own
        self.flat = keras.tree.flatten(configs)
        wrong = [f for f in self.flat if not isinstance(f, FeatureConfig)]
        if wrong or not self.flat:
            raise ValueError(
                "`feature_configs` must be a structure of FeatureConfigs. "
                f"Received: {wrong[0] if wrong else configs!r}"
            )

    def flatten(self, name, structure):
        """Return the leaves of a structure like that of the features, in their order."""
        try:
            keras.tree.assert_same_structure(self.configs, structure)
        except (TypeError, ValueError):
            raise ValueError(
                f"`{name}` must have the structure of `feature_configs`, "
                f"{keras.tree.map_structure(lambda f: f.name, self.configs)}. Received: {structure}"
            ) from None
        return keras.tree.flatten(structure)

    def pack(self, leaves):
        """Return the structure with these leaves."""
        return keras.tree.pack_sequence_as(self.configs, leaves)


def output_spec(feature, ids, dtype):
    """Return the `keras.KerasTensor` of the output for a `FeatureConfig` and symbolic ids."""
    check_exact(ids.dtype, feature.table.vocabulary_size)
    shape = feature.compute_output_shape(tuple(ids.shape), sparse=getattr(ids, "sparse", False))
    ragged = getattr(ids, "ragged", False) and (feature.combiner is None or len(ids.shape) > 2)
    ragged = ragged and feature.max_sequence_length is None
    return keras.KerasTensor(shape, dtype=dtype, ragged=ragged)


# The only key of what `preprocess` makes, as in keras_rs: no structure of features looks like it.
_PREPROCESSED = "preprocessed_inputs_per_placement"


def bundled(inputs, weights=None):
    """Return inputs and weights (where there are any) in one structure."""
    return {_PREPROCESSED: {"inputs": inputs} if weights is None else {"inputs": inputs, "weights": weights}}


def unbundled(inputs, weights=None):
    """Return `(inputs, weights)`, also of what `bundled` made."""
    if isinstance(inputs, dict) and set(inputs) == {_PREPROCESSED}:
        bundle = inputs[_PREPROCESSED]
        return bundle["inputs"], bundle.get("weights", weights)
    return inputs, weights
