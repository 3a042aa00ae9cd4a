"""The mask of hidden vectors that Keras's merging layers have lost: `position="last"` needs it.

`keras.layers.Add` of a masked tensor and one without a mask (tokens and positions) returns one without.
"""

import warnings

import keras

from keras_largeout._keras import all_layers, graph_calls, mask_of

_MERGING = (
    keras.layers.Add,
    keras.layers.Subtract,
    keras.layers.Multiply,
    keras.layers.Average,
    keras.layers.Maximum,
    keras.layers.Minimum,
)


def mask_behind(model, hidden):
    """Return the mask that a tensor of a functional model would have if merging layers kept masks.

    It goes back from the tensor by layers that hand the mask of their first input on, as far as the tensors
    have the same batch and time steps.

    Returns:
        A symbolic mask; None where there is none, or where merged tensors have several.
    """
    if isinstance(model, keras.Sequential):  # it merges nothing
        return None
    made_by = {id(output): call for call in graph_calls(model) for output in call.outputs}
    found, waiting, seen = {}, [hidden], set()
    while waiting:
        tensor = waiting.pop()
        mask, call = mask_of(tensor), made_by.get(id(tensor))
        if mask is not None:
            found[id(mask)] = mask
        elif call is not None and id(tensor) not in seen:
            layer, sources = call.operation, call.inputs
            if isinstance(layer, keras.layers.Layer) and layer.supports_masking:
                sources = sources if isinstance(layer, _MERGING) else sources[:1]
                waiting += [source for source in sources if source.shape[:2] == hidden.shape[:2]]
        seen.add(id(tensor))
    return next(iter(found.values())) if len(found) == 1 else None


def warn_of_lost_mask(model, layer):
    """Warns where a layer of `model` masks padding, and `layer`, which needs the mask, got none."""
    sources = [each.name for each in all_layers(model) if getattr(each, "mask_zero", False) is True]
    if sources:
        warnings.warn(
            f'`position="last"` of {layer.name!r} takes the last time step, which may be padding: no mask '
            f"arrives, though {sources[0]!r} has mask_zero=True. What loses it is a `+`, a layer without "
            "`supports_masking`, or keras.layers.Add of tensors of which one has no mask. For positions use "
            "keras_largeout.layers.Positions.",
            stacklevel=2,
        )
