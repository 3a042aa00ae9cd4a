"""The model that `head.predictor` makes: it answers with the best classes."""

import keras

from keras_largeout._head_annotations import heads_of
from keras_largeout._keras import all_layers, mask_of
from keras_largeout.layers.heads._lost_mask import mask_behind
from keras_largeout.layers.heads.top_k import TopK
from keras_largeout.model import Model


def predictor(head, model, k, position, exclude=None):
    """See `Head.predictor`."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: {model!r}")
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        if head not in all_layers(model):
            _refuse(head, model)
        if exclude is not None:
            raise ValueError(
                "`exclude` must be None for a model whose tensors are not known. Make your own model "
                f"there, of `keras_largeout.layers.TopK(head, k)(hidden, exclude=ids)`. Received: {model!r}"
            )
        return Predictor(model, head.name, k, position, name=f"{model.name}_predictor")
    # A sequential model knows its tensors, but not as `input` and `output` before it was called.
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    best, hidden = TopK(head, k, position), _of_head(head, model, model.outputs)
    more = {} if exclude is None else {"exclude": exclude}
    if position == "last" and mask_of(hidden) is None:
        mask = mask_behind(model, hidden)
        more |= {} if mask is None else {"mask": mask}
    outputs = best(hidden, **more)
    if exclude is not None and not any(exclude is known for known in model.inputs):
        inputs = _beside(inputs, exclude)
    return Model(inputs, outputs, name=f"{model.name}_predictor")


@keras.saving.register_keras_serializable(package="keras_largeout")
class Predictor(Model):
    """A model from the inputs of a subclassed model to the best classes of a head in it.

    Args:
        model: `keras.Model`.
        head_name: str; the head is found by it, because a subclassed model makes its layers itself.
        k, position: as in `TopK`.
    """

    def __init__(self, model, head_name, k=10, position="all", **kwargs):
        super().__init__(**kwargs)
        self.model, self.head_name, self.k, self.position = model, head_name, k, position
        self.best = self._top_k()

    def _top_k(self):
        named = [layer for layer in all_layers(self.model) if layer.name == self.head_name]
        if not named:
            raise ValueError(
                f"The model {self.model.name!r} must make its head in its `__init__`. "
                f"Received: no layer of the name {self.head_name!r}"
            )
        return TopK(named[0], self.k, self.position)

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        outputs = self.model(inputs, training=False)
        return self.best(_of_head(self.best.head, self.model, keras.tree.flatten(outputs)))

    def get_config(self):
        config = {"head_name": self.head_name, "k": self.k, "position": self.position}
        return {"name": self.name, "model": keras.saving.serialize_keras_object(self.model), **config}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("model")), **config)


def _beside(inputs, one_more):
    """Return the inputs of a model, and one more: in a dict by its name, else at the end of a list."""
    if isinstance(inputs, dict):
        return {**inputs, one_more.name: one_more}
    return [*(inputs if isinstance(inputs, (list, tuple)) else [inputs]), one_more]


def _of_head(head, model, outputs):
    """Return the one of the outputs of `model` that is the head's."""
    own = [output for output in outputs if head in heads_of(output)[-1:]]
    if own:
        return own[0]
    if len(outputs) == 1 and not heads_of(outputs[0]):  # a model in a model: tensors have lost their notes
        return outputs[0]
    return _refuse(head, model)


def _refuse(head, model):
    raise ValueError(
        f"`model` must be one of which an output is that of the head {head.name!r}. Where it is not, make "
        f"your own of `keras_largeout.layers.TopK(head, k)`. Received: {model!r} with the outputs "
        f"{getattr(model, 'outputs', None)}"
    )
