"""Calls of layers: who makes one, what holds during it, and the masks that tensors carry."""

import contextlib

from keras_largeout._keras.versions import _need


def outermost_layer(layer):
    """Return the layer in whose call `layer` is being called: a model, most often, or `layer` itself.

    Why: a layer of a plain `keras.Model` learns in no other way who calls it, and so by which optimizer it
    will be trained. (`kl.Model` looks at its layers itself, when it is compiled.)
    """
    close = _need(layer, "_maybe_reset_call_context")
    outermost = _need(_call_context(layer), "entry_layer")
    if outermost is layer:  # asking opens a context where there was none, as in `layer.call(...)`
        close()
    return outermost


def is_training_call(layer):
    """Return whether the call in which `layer` is being called is one for training.

    Why: a layer whose `call` has no argument `training` is not told.
    """
    return bool(_need(_call_context(layer), "get_value")("training"))


def notes_of_call(layer):
    """Return a dict that lasts as long as the call of the outermost layer in which `layer` is being called.

    Why: nothing public tells two calls of a layer in one call of a model from calls in two.
    """
    return vars(_call_context(layer)).setdefault("keras_largeout", {})


def _call_context(layer):
    return _need(layer, "_get_call_context")()


def same_call():
    """Returns a function that opens a context in which the call goes on that is being made now.

    Why: what a gradient computes again is computed after the call of the model. A layer inside would not
    learn there whether it is called in training, nor the dtype of mixed precision.
    """
    get = _need("keras.src.backend.common.global_state", "get_global_attribute")
    put = _need("keras.src.backend.common.global_state", "set_global_attribute")
    now = {name: get(name) for name in ("current_call_ctx", "autocast_scope")}

    @contextlib.contextmanager
    def in_same_call():
        before = {name: get(name) for name in now}
        for name, value in now.items():
            put(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                put(name, value)

    return in_same_call


def is_symbolic():
    """Return whether Keras is building a model symbolically: nothing is computed then.

    Why: `keras.SymbolicScope` is public, and whether one is open is not. Tensors are copies there, which have
    lost what was noted on them.
    """
    return _need("keras.src.backend", "in_symbolic_scope")()


@contextlib.contextmanager
def losses_given(model, losses):
    """A context in which `model.losses` are these.

    Why: they are computed again whenever they are asked for, and gradients are taken of given tensors.
    """
    before = _need(model, "_losses_override")
    model._losses_override = list(losses)
    try:
        yield
    finally:
        model._losses_override = before


def mask_of(tensor):
    """Return the mask that a tensor carries from the layer that made it; None where there is none.

    Why: Keras hands masks to layers, and its losses look for them; it hands none to a loss.
    """
    return _need("keras.src.backend", "get_keras_mask")(tensor)


def with_mask(tensor, mask):
    """Return `tensor`, marked as masked: Keras's losses and metrics leave out where `mask` is False.

    Why: a loss gives Keras its values, and in no public way says which of them count.

    Args:
        tensor: one that nobody else has, as it is changed.
        mask: bool, of the shape of `tensor`; None changes nothing.
    """
    set_mask = _need("keras.src.backend", "set_keras_mask")
    if mask is not None:
        set_mask(tensor, mask)
    return tensor
