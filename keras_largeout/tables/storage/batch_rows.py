"""The rows of tables that a batch uses: the model's own layers find them, without any dense computation."""

import contextvars

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._context import setting

_notes = contextvars.ContextVar("keras_largeout_batch_rows", default=None)


def record_rows(part, indices):
    """Record that these rows (int64 tensor) of a part will be gathered."""
    if is_recording():
        _notes.get().append((part, indices))


def is_recording():
    """Return whether the rows that lookups gather are recorded."""
    return _notes.get() is not None


class BatchRows:
    """A function from a batch to the rows that it uses.

    The model's call is traced once, for inference and in a scope that keeps its state as it is. What leads
    from a batch to the indices of lookups is cut out of the graph, and all else of it is forgotten. Lookups
    in branches and loops of a graph are not seen.

    Args:
        model: a built `keras.Model`.
        spec: the specification of a batch: inputs, or a tuple with targets and sample weights behind them.

    Attributes:
        function: from the flat tensors of a batch to the indices, a list of int64 tensors.
        parts: the part of each of these, `ShardVariable`s that can be asked.
    """

    def __init__(self, model, spec):
        found = []

        def call(*flat):
            batch = tf.nest.pack_sequence_as(spec, flat, expand_composites=True)
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            with keras.StatelessScope(collect_losses=True), setting(_notes, []) as notes:
                model(x)
            here = [tf.is_symbolic_tensor(rows) and rows.graph is flat[0].graph for _, rows in notes]
            found.extend(n for n, in_graph in zip(notes, here) if in_graph and n[0].can_prefetch)

        signature = tf.nest.flatten(spec, expand_composites=True)
        with tf.device("CPU:0"):
            whole = tf.compat.v1.wrap_function(call, signature)
        self.parts = [part for part, _ in found]
        self.function = whole.prune(whole.inputs, [indices for _, indices in found])

    def __call__(self, batch):
        """List of `(part, int64 array)`, the rows that a batch uses of each part, some of them twice."""
        found = self.function(*tf.nest.flatten(batch, expand_composites=True))
        return list(zip(self.parts, (np.asarray(rows) for rows in found)))
