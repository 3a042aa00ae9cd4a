"""`FeatureStructure`: features in a nested structure, and inputs like it."""

import keras

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
