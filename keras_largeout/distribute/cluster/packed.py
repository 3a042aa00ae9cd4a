"""Fewer tensors for the same numbers: each tensor of a call costs the chief its own message."""

import keras
import numpy as np
import tensorflow as tf


class Packed:
    """Packs the answers of a function into one vector, in its graph, and unpacks them where they arrive.

    Every trace of the function must give the same structure and shapes. The vector is float64, which holds
    float32 and integers below 2^53 as they are.
    """

    def pack(self, answer):
        """Return a structure of numeric tensors as a float64 vector. Raises ValueError where a shape is
        unknown.
        """
        parts = keras.tree.map_structure(tf.convert_to_tensor, answer)
        flat = keras.tree.flatten(parts)
        for part in flat:
            if not part.shape.is_fully_defined():
                raise ValueError(
                    "What a step logs must have a shape that is known before it runs, on a cluster. "
                    f"Received: {part}"
                )
        self._shapes = [tuple(part.shape) for part in flat]
        self._structure = keras.tree.map_structure(lambda _: None, parts)
        return tf.concat([tf.reshape(tf.cast(part, tf.float64), [-1]) for part in flat], axis=0)

    def unpack(self, vector):
        """Return the structure again, of float64 arrays."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        flat = np.split(np.asarray(vector), ends[:-1])
        flat = [part.reshape(shape) for part, shape in zip(flat, self._shapes)]
        return keras.tree.pack_sequence_as(self._structure, flat)


def stack(batches):
    """Return batches as one structure of tensors with a new first axis; None where they don't look alike.

    Args:
        batches: list of structures of tensors and None.
    """
    flat = [keras.tree.flatten(batch) for batch in batches]
    looks = [[part if part is None else (part.dtype, part.shape) for part in parts] for parts in flat]
    dense = all(part is None or isinstance(part, tf.Tensor) for part in flat[0])
    if not dense or any(look != looks[0] for look in looks):
        return None
    return keras.tree.map_structure(lambda *parts: None if parts[0] is None else tf.stack(parts), *batches)


def one_of(batches, index):
    """Return the batch `index` (an integer, or a tensor) of those that `stack` has put together."""
    return keras.tree.map_structure(lambda part: None if part is None else part[index], batches)
