"""Gradients that are asked for later, maybe in another graph than the one that has computed the values."""

import tensorflow as tf

from keras_largeout.replicas._tensorflow import gradients_in, refuse_forward_mode

refuse_forward_mode()


def differentiable(function, inputs, variables):
    """Return `function(*inputs)`, and a function from tensors of it and their gradients to those of its
    sources.

    In a graph no tape: one that is never asked would hold the graph, and the graph the tape.

    Args:
        function: returns a structure of tensors.
        inputs: list of floating tensors.
        variables: function that lists the `tf.Variable`s that get gradients, besides the inputs. It
            is asked before and after `function`, which may make some that are trainable.
    """
    if not tf.executing_eagerly():
        result, graph = function(*inputs), tf.compat.v1.get_default_graph()

        def in_graph(outputs, upstream):  # not what the variables did to the inputs
            sources = [*inputs, *(graph.capture(variable.handle) for variable in variables())]
            return gradients_in(graph, outputs, sources, upstream, stop_gradients=inputs)

        return result, in_graph
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([*inputs, *variables()])
        result = function(*inputs)

    def of(outputs, upstream):
        return tape.gradient(outputs, [*inputs, *variables()], output_gradients=upstream)

    return result, of
