"""`DynamicVocabulary`: the rows of a fixed table for ids of which new ones come every day."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.layers._inputs import check_categories, whole_ids
from keras_largeout.layers._steps import calls_of_step
from keras_largeout.layers._vocabulary_ids import IdsOfRows, as_bytes, as_numbers, as_strings
from keras_largeout.layers._vocabulary_slots import VocabularySlots
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.mixing import mixed
from keras_largeout.ops.vocabulary.reference import EMPTY, EVICT, SLOTS

_MOST_COUNTED = 255  # by the counters of ids that have no row yet


def whole_buckets(capacity):
    """Return the capacity that a vocabulary has for an argument `capacity`."""
    return -(-capacity // SLOTS) * SLOTS


@keras.saving.register_keras_serializable(package="keras_largeout")
class DynamicVocabulary(VocabularySlots, keras.layers.Layer):
    """Gives ids of any number, integers or strings, the rows of a table of fixed size.

    In training an id gets a row when it has come `admit_after` times. Where its places are taken, the id that
    was used least often, or least recently, gives its row up. All other ids, and new ones outside of
    training, share the rows of unknown ids. What it knows is a part of the model's weights: it is in
    files, checkpoints and `get_weights`, and goes with an export.

    Give it to an embedding as its `vocabulary`: `ShardedEmbedding(vocabulary=)`, `TableConfig(vocabulary=)`;
    and to a head, whose targets are then ids: `FullSoftmax(vocabulary=)` and the others (see `Head`).
    The embedding then takes the ids as they come, and a row that another id gets begins again: with a first
    value, first values of the optimizer's slots, and none of the gradients that are being accumulated. So the
    optimizer must be one of `kl.optimizers`, or Keras's SGD without momentum. (First values are drawn by the
    initializer. Give it a seed where a loaded model is to draw the same.)

    Several embeddings may share a vocabulary, and one embedding may be called several times in a step. A
    tensor of ids counts once in a step, whichever layers look it up. Ids of different tensors all count.

    An id has 32 places, in two buckets of 16 that its hash says. (So a few percent of the rows may be free
    when the first id is replaced.) How often an id without a row has come is known by a sketch of 16 bytes
    per row, whose counters are halved as they fill. It forgets ids that come more rarely than `admit_after`
    times while `capacity * admit_after / 2` others without a row come, and takes a few new ids in a hundred
    for some that have come before. An id that came in a step is not replaced in that step; where all places
    of a new one are such, it waits. A step is one call of a graph, such as Keras makes of `train_step`; in
    eager mode it is one call of the model.

    Under `tf.distribute.MirroredStrategy` one vocabulary in host memory sees the ids of all replicas in their
    order, and gives what one device gives. Under `tf.distribute.ParameterServerStrategy` it is on a server.

    Args:
        capacity: int > 0, ids that have their own row at the same time; rounded up to a multiple of 16.
        admit_after: int in `[1, 255]`: how often an id must have come to get a row. 1: at once. Defaults to
            `1`.
        evict: "lfu" (the id that came least often gives up its row, the older one of two) or "lru" (the one
            that has not come for longest). Defaults to `"lfu"`.
        num_oov_indices: int >= 0, rows that unknown ids share, by their hash. 0: they get -1, which takes
            part in nothing. As in `keras.layers.IntegerLookup`. Defaults to `1`.
        mask_value: None, or the id that means padding: it gets row 0, and no other id does. Defaults to
            `None`.
        keep_strings: int, the bytes of the longest id, where ids are strings that `strings_of` and the
            predictors of heads are to answer with: so many are kept for each row. 0: of strings there are
            hashes alone. A string with a byte 0 comes back without it. Defaults to `0`.
        **kwargs: `name` and the like.

    Call arguments:
        inputs: integers or strings: a tensor, a `tf.RaggedTensor` or a `tf.SparseTensor`, or a tuple of
            them, which are counted together. Strings count as their 63-bit FarmHash.
        training: bool, whether ids are counted and get rows.

    Output shape:
        int64, of the kind and shape of the inputs: `[0, vocabulary_size())`, or -1. First the row of padding,
        where there is one; then the rows of unknown ids; then `capacity` others. A list, where the inputs are
        a tuple.

    Raises:
        ValueError: an argument outside its range.
        TypeError: in a call, ids that are no strings where `keep_strings` is set.
        tf.errors.InvalidArgumentError: in a call, a string that is longer.

    Example:

    >>> items = kl.layers.DynamicVocabulary(1_000_000, admit_after=5, evict="lfu")
    >>> embedding = kl.layers.ShardedEmbedding(items.vocabulary_size(), 64, vocabulary=items)
    >>> embedding(tf.constant(["B00005N7P0", "B00006IEJB"])).shape
    TensorShape([2, 64])

    References:
        - [Azar et al., 1999](https://doi.org/10.1137/S0097539795288490) (two places for each id).
        - [Cormode and Muthukrishnan, 2005](https://doi.org/10.1016/j.jalgor.2003.12.001) (the sketch).
        - [Einziger et al., 2017](https://arxiv.org/abs/1512.00727), section 3.3 (halving its counters).
    """

    counts_calls = True  # a call may not be made again

    def __init__(
        self,
        capacity: int,
        admit_after: int = 1,
        evict: str = "lfu",
        num_oov_indices: int = 1,
        mask_value: int | str | None = None,
        keep_strings: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.capacity = whole_buckets(positive_int("capacity", capacity))
        if not 1 <= admit_after <= _MOST_COUNTED or admit_after != int(admit_after):
            raise ValueError(
                f"`admit_after` must be an integer from 1 to {_MOST_COUNTED}. "
                f"Received: admit_after={admit_after!r}"
            )
        check_one_of("evict", evict, EVICT)
        if num_oov_indices < 0 or num_oov_indices != int(num_oov_indices):
            raise ValueError(
                "`num_oov_indices` must be an integer, not negative. "
                f"Received: num_oov_indices={num_oov_indices!r}"
            )
        self.admit_after, self.evict = int(admit_after), evict
        self.num_oov_indices, self.mask_value = int(num_oov_indices), mask_value
        self.keep_strings = positive_int("keep_strings", keep_strings, minimum=0)
        self.supports_jit = False  # custom ops
        self.autocast = False

    def vocabulary_size(self) -> int:
        """Return the number of rows: of padding, of unknown ids, and of `capacity` others."""
        return self.first_row + self.capacity

    @property
    def _first_oov(self):
        return int(self.mask_value is not None)

    @property
    def first_row(self) -> int:
        """The first row after the rows of padding and of unknown ids."""
        return self._first_oov + self.num_oov_indices

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        given = [whole_ids(ids) for ids in (inputs if isinstance(inputs, tuple) else (inputs,))]
        rows = self._rows([values_of(ids) for ids in given], training)
        rows = [with_values(ids, found) for ids, found in zip(given, rows)]
        return rows if isinstance(inputs, tuple) else rows[0]

    def _rows(self, given, training):
        ids = [as_numbers(values) for values in given]
        padding = [self._is_padding(values) for values in given]
        # Free slots have this key: what is searched under it is found nowhere.
        empty = tf.constant(EMPTY, tf.int64)
        sought = [i if pad is None else tf.where(pad, empty, i) for i, pad in zip(ids, padding)]
        slots = self._slots_of(given, sought, training)
        return [self._rows_of(*each) for each in zip(ids, slots, padding)]

    def classes_of(
        self, ids: tf.Tensor, nothing: tf.Tensor, training: bool, calls: list[Any] | None = None
    ) -> tf.Tensor:
        """Return the rows of ids as a head needs them, int64; -1 for padding and for ids without a row.

        Args:
            ids: int32, int64 or string tensor of any shape.
            nothing: bool, of that shape: which of them are no ids.
            training: bool, whether the others are counted and get rows.
            calls: the list of `calls_of_step` in whose step this is. None: of the one that is under way.
                Defaults to `None`.
        """
        padding = self._is_padding(ids)
        nothing = nothing if padding is None else nothing | padding
        sought = tf.where(nothing, tf.constant(EMPTY, tf.int64), as_numbers(ids))
        (slots,) = self._slots_of([ids], [sought], training, calls)
        return tf.where(slots >= 0, slots + self.first_row, tf.constant(-1, tf.int64))

    def has_id(self) -> tf.Tensor:
        """Return which of the rows from `first_row` on have an id, bool `[capacity]`."""
        return self.keys != EMPTY

    def _is_padding(self, values):
        return None if self.mask_value is None else values == tf.constant(self.mask_value, values.dtype)

    def _rows_of(self, ids, slots, padding):
        unknown = tf.constant(self._first_oov if self.num_oov_indices else -1, tf.int64)
        if self.num_oov_indices > 1:
            unknown += tf.math.floormod(mixed(ids), self.num_oov_indices)
        rows = tf.where(slots >= 0, slots + self.first_row, unknown)
        return rows if padding is None else tf.where(padding, tf.zeros([], tf.int64), rows)

    def _slots_of(self, given, sought, training, calls=None):
        """Return the slots of the ids of each tensor, those after the update in training; -1: none."""
        if is_exporting() or not (training and self.trainable and self.initialized):
            return [self._find(ids) for ids in sought]
        calls = calls_of_step(self) if calls is None else calls
        for seen, slots in calls:
            if len(seen) == len(given) and all(a is b for a, b in zip(seen, given)):
                return slots
        flat = [tf.concat([tf.reshape(ids, [-1]) for ids in sought], 0)]
        if self.keep_strings:
            strings = tf.concat([tf.reshape(values, [-1]) for values in given], 0)
            flat.append(as_bytes(strings, self.keep_strings))
        slots = tf.split(self._update_all(flat, begins_step=not calls), [tf.size(ids) for ids in sought])
        slots = [tf.ensure_shape(tf.reshape(s, tf.shape(i)), i.shape) for s, i in zip(slots, sought)]
        calls.append((given, slots))
        return slots

    # Symbolically.

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        if isinstance(inputs, tuple):
            return [self.compute_output_spec(ids) for ids in inputs]
        check_categories(inputs.dtype, floats=True)
        kind = {"ragged": getattr(inputs, "ragged", False), "sparse": getattr(inputs, "sparse", False)}
        return keras.KerasTensor(inputs.shape, dtype="int64", **{k: v for k, v in kind.items() if v})

    # What it knows.

    def get_vocabulary(self) -> dict[int, int] | dict[int, str]:
        """Return the ids that have a row, by row: dict from int rows to ids.

        They are ints; of strings their hashes, or with `keep_strings` the strings.
        """
        keys = self._state["keys"].numpy() if self.built else np.zeros(0, np.int64)
        slots = np.flatnonzero(keys != EMPTY)
        ids = keys[slots].tolist()
        if self.keep_strings and ids:
            texts = as_strings(tf.gather(self.strings, slots)).numpy()
            ids = [text.decode(errors="replace") for text in texts.tolist()]
        return dict(zip((slots + self.first_row).tolist(), ids))

    def ids_of(self, rows: Any) -> Any:
        """Return the ids that rows belong to: of strings their hashes, of rows without an id -1.

        So the classes of a head that shares its rows with an embedding become ids again, in a model that is
        served, too.

        Args:
            rows: integers of any shape, or a tensor of a functional model, such as the output "ids" of a
                predictor.

        Returns:
            int64, of the shape of `rows`.

        Example:

        >>> items = kl.layers.DynamicVocabulary(100)
        >>> items.ids_of(items(tf.constant([70, 12]), training=True)).numpy()
        array([70, 12])
        """
        return IdsOfRows(self, name=f"{self.name}_ids")(rows)

    def strings_of(self, rows: Any) -> Any:
        """Return the strings that rows belong to; "" for rows without one. `keep_strings` must be set.

        Args:
            rows: as in `ids_of`.

        Returns:
            strings, of the shape of `rows`.

        Raises:
            ValueError: the vocabulary keeps no strings.

        Example:

        >>> items = kl.layers.DynamicVocabulary(100, keep_strings=20)
        >>> items.strings_of(items(tf.constant(["ann", "bob"]), training=True)).numpy()
        array([b'ann', b'bob'], dtype=object)
        """
        if not self.keep_strings:
            raise ValueError(
                "`keep_strings` of a DynamicVocabulary must be the bytes of the longest string, for "
                f"`strings_of`. Received: {self.name!r} with keep_strings=0"
            )
        return IdsOfRows(self, strings=True, name=f"{self.name}_strings")(rows)

    def remove(self, ids: Any = None, unused_for: int | None = None) -> np.ndarray:
        """Remove ids, eagerly. Their rows begin again, with the optimizer's slots, and are free.

        On several hosts all of them make this call.

        Args:
            ids: integers or strings; those without a row are ignored. Defaults to `None`.
            unused_for: int, in the place of `ids`: all ids that did not come in the last so many steps of
                training. Defaults to `None`.

        Returns:
            The ids that were removed (of strings their hashes), int64 `[n]`, in the order of their rows.

        Raises:
            ValueError: not one of `ids` and `unused_for` is given.

        Example:

        >>> items = kl.layers.DynamicVocabulary(100)
        >>> rows = items(tf.constant([70, 12]), training=True)
        >>> items.remove(ids=[12, 5])
        array([12])
        """
        self.build()
        numbers = None if ids is None else as_numbers(tf.reshape(whole_ids(tf.convert_to_tensor(ids)), [-1]))
        return self._remove(numbers, unused_for)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "capacity": self.capacity,
            "admit_after": self.admit_after,
            "evict": self.evict,
            "num_oov_indices": self.num_oov_indices,
            "mask_value": self.mask_value,
            **({"keep_strings": self.keep_strings} if self.keep_strings else {}),
        }
