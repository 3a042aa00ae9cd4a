"""`ShardedTable`: the one home of a large parameter. Here a table has one shard."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.distribute import chunks
from keras_largeout.distribute.chunks import load_rows, save_rows

__all__ = ["ShardVariable", "ShardedTable", "give_shards", "load_rows", "save_rows"]


class ShardVariable(keras.Variable):
    """One shard of a table: a `keras.Variable` of `[rows, dim]` (or `[rows]`) that is never copied whole.

    It is created, read and written in chunks (`distribute/chunks.py`), is not cast by mixed precision
    (`autocast=False`: a cast would be a second table), and makes its own optimizer slots beside it
    (`new_slot`).

    Args:
        shape: tuple of ints.
        initializer: Keras initializer, drawn chunk by chunk.
        dtype: dtype name.
        name: str.
        trainable: bool.
        device: device name, or None for TensorFlow's choice.
    """

    def __init__(self, shape, initializer, dtype="float32", name=None, trainable=True, device=None):
        self._device = device
        super().__init__(
            keras.initializers.get(initializer),
            shape=tuple(shape),
            dtype=dtype,
            name=name,
            trainable=trainable,
            autocast=False,
        )

    def _initialize_with_initializer(self, initializer):
        shape, dtype = tuple(self._shape), self._dtype
        self._initialize(
            chunks.create(
                shape,
                dtype,
                chunks.initial_rows(initializer, shape, dtype),
                name=self.name,
                trainable=self.trainable,
                device=self._device,
            )
        )

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self._value is not None

    @property
    def value(self):
        """The `tf.Variable`; while `initialized` is False, zeros of the right shape for shape inference."""
        if self._value is None:
            return tf.zeros(self._shape, self._dtype)
        return super().value

    def new_slot(self, name, fill=0.0, per_row=False):
        """An optimizer slot beside this shard: float32, its shape or `[rows]`, every value `fill`."""
        return ShardVariable(
            tuple(self._shape)[:1] if per_row else tuple(self._shape),
            keras.initializers.Constant(fill),
            name=f"{self.path.replace('/', '_')}_{name}",
            trainable=False,
            device=self._device,
        )

    def assign(self, value):
        """Overwrites all rows, chunk by chunk."""
        if self._value is None:
            return super().assign(value)
        if isinstance(value, keras.Variable):
            value = value.value
        if tuple(value.shape) != tuple(self._shape):
            raise ValueError(
                f"`value` must have the shape of the table, {tuple(self._shape)}. "
                f"Received: value.shape={tuple(value.shape)}"
            )
        for start, stop in chunks.chunk_ranges(self._shape, tf.as_dtype(self._dtype).size):
            rows = (
                tf.gather(value, tf.range(start, stop))
                if isinstance(value, tf.Variable)
                else value[start:stop]
            )
            chunks.write(self._value, start, rows)
        return self

    def numpy(self):
        """All rows as a NumPy array (one copy of the table)."""
        return chunks.to_numpy(self._value)

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype, copy=False) if dtype is not None else self.numpy()

    def __repr__(self):
        return f"<ShardVariable path={self.path}, shape={tuple(self._shape)}, dtype={self._dtype}>"


def give_shards(layer, *tables):
    """Makes the shards of `tables` weights of `layer`: tracked, saved by it, frozen where it is frozen."""
    layer.shards = [shard for table in tables for shard in table.shards]  # Keras tracks attributes
    if not layer.trainable:
        for shard in layer.shards:
            shard.trainable = False


class ShardedTable:
    """A logical `[rows, dim]` (or `[rows]`) array, cut into shards.

    `give_shards` makes its shards weights of a layer.

    Args:
        shape: tuple of ints, `(rows, dim)` or `(rows,)`.
        initializer: Keras initializer of the logical array.
        dtype: dtype name.
        name: str.
        trainable: bool.
        constraint: Keras constraint, kept on the shards for the optimizer; it must act row by row.
    """

    def __init__(self, shape, initializer, dtype="float32", name="table", trainable=True, constraint=None):
        if keras.backend.standardize_dtype(dtype) not in ("float32", "bfloat16"):
            raise ValueError(
                f"`dtype` of a table must be float32 or bfloat16. Received: dtype={dtype}. "
                "(A mixed_float16 policy has float32 tables.)"
            )
        self.shape = tuple(int(n) for n in shape)
        self.name = name
        shard = ShardVariable(self.shape, initializer, dtype=dtype, name=name, trainable=trainable)
        if constraint is not None:
            shard.constraint = constraint
        self.shards = [shard]

    @property
    def initialized(self):
        return all(shard.initialized for shard in self.shards)

    @property
    def variable(self):
        """The `tf.Variable` of a table that has one shard."""
        (shard,) = self.shards
        return shard.value

    def numpy(self):
        """The logical array, one copy of it."""
        (shard,) = self.shards
        return shard.numpy()

    def assign(self, value):
        """Overwrites the logical array."""
        (shard,) = self.shards
        shard.assign(value)

    def save(self, store):
        """Writes the logical array to `store` in chunks of rows."""
        (shard,) = self.shards
        save_rows(store, self.name, shard)

    def load(self, store):
        """Reads what `save` wrote, or the one array that an ordinary Keras layer wrote.

        Raises:
            ValueError: the file holds another shape; the table is then unchanged.
        """
        (shard,) = self.shards
        self.check(store)
        for key in (self.name, "0"):
            if key in store:
                return shard.assign(np.asarray(store[key]))
        load_rows(store, self.name, shard)

    def check(self, store):
        """Raises ValueError unless `load` could read this table from `store`."""
        whole = [key for key in (self.name, "0") if key in store]
        if not whole:
            chunks.check_rows(store, self.name, self.shape)
        elif tuple(store[whole[0]].shape) != self.shape:
            raise ValueError(
                f"The weights file does not fit `{self.name}`: expected shape {self.shape}. "
                f"Received: shape {tuple(store[whole[0]].shape)}."
            )
