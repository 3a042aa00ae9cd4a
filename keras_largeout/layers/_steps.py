"""`calls_of_step`: what a layer that is called several times in one step of training knows of the others."""

import tensorflow as tf

from keras_largeout._keras import notes_of_call


def calls_of_step(layer):
    """Return the list in which `layer` notes its calls in the step that is under way; append to it.

    A step is what one graph does, such as that which Keras makes of `train_step`. Without a graph it is one
    call of the outermost layer, such as the model: in a loop of one's own, eagerly, two calls are two steps.
    A graph inside another one, of a loop or a condition, begins with what has been noted outside.
    """
    key = f"calls of keras_largeout layer {id(layer)}"
    if tf.executing_eagerly():
        return notes_of_call(layer).setdefault(key, [])
    return tf.compat.v1.get_default_graph().get_collection_ref(key)
