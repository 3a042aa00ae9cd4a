"""`ClassVocabulary`: the ids that a head is trained on and answers with: of a vocabulary, or class numbers.

A head with a `vocabulary` maps ids itself: targets in its loss and in metrics, the best classes in `TopK`.
The loss is where the targets are known under every loop and strategy. What it must know of the step comes
with the hidden vectors: whether they are of training, and the other calls of the vocabulary in the step, so
that inputs and targets are counted together and none of them loses its row to another.

Methods of a head, such as `top_k` and `log_prob`, have class numbers.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._head_annotations import annotate_calls, calls_of, heads_of, in_training
from keras_largeout._keras import forget, is_symbolic
from keras_largeout.layers._id_mapper import check_vocabulary_size, vocabulary_config
from keras_largeout.layers._inputs import whole_ids
from keras_largeout.layers._steps import calls_of_step
from keras_largeout.layers._vocabulary_ids import ids_of_rows, strings_of_rows
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.tables.resetting import RowReset

_LOOKUPS = (keras.layers.IntegerLookup, keras.layers.StringLookup)


class ClassVocabulary:
    """The vocabulary of a head. Without one ids are class numbers.

    Args:
        layer: None, a `DynamicVocabulary`, or a Keras `StringLookup` or `IntegerLookup`.
        head: `Head` that is being made; its `num_classes` is set.

    Attributes:
        layer: the same.
        changes: bool, whether classes get other ids in training.
        first: int, the first class that stands for an id; those before are of padding and of unknown ids.
        is_copy: bool, whether the head was made from a config.

    Raises:
        ValueError: another layer, or one of another size.
    """

    def __init__(self, layer, head):
        self.changes = hasattr(layer, "on_replaced")
        is_lookup = isinstance(layer, _LOOKUPS)
        if not (layer is None or self.changes or is_lookup):
            raise ValueError(
                "`vocabulary` of a head must be a DynamicVocabulary, or a keras.layers.StringLookup or "
                f"IntegerLookup. Received: vocabulary={layer!r} of type {type(layer).__name__}"
            )
        if is_lookup and (layer.invert or layer.output_mode != "int"):
            raise ValueError(
                "`vocabulary` of a head must be a lookup from ids to integers. Received: "
                f"invert={layer.invert}, output_mode={layer.output_mode!r}"
            )
        self.layer, self._head, self._num_classes = layer, head.name, head.num_classes
        self._resets, self._names, self.is_copy = [], None, False
        if self.changes:
            check_vocabulary_size(layer, head.num_classes, "num_classes")

    @property
    def first(self):
        if self.changes:
            return self.layer.first_row
        return int(self.layer.mask_token is not None) + self.layer.num_oov_indices

    def check_arguments(self, **per_class):
        """Raise ValueError where the head has numbers for classes that stand for other ids later."""
        for name, given in per_class.items():
            if self.changes and given is not None:
                raise ValueError(
                    f"`{name}` of a head must be None with a DynamicVocabulary: its classes get other ids. "
                    f"Received: {name} for the head {self._head!r}"
                )

    def adopt(self, head, embedding):
        """Check that the embedding that shares its rows with `head` has the same vocabulary.

        A copy that was made from a config comes with another vocabulary, and takes that of the embedding.

        Raises:
            ValueError: the embedding has another vocabulary.
        """
        other = getattr(embedding, "vocabulary", None)
        if not self.changes or other is self.layer:
            return
        if other is None or other.name != self.layer.name or not self.is_copy:
            raise ValueError(
                "`vocabulary` of a head must be that of the embedding whose rows it shares (`kernel=`). "
                f"Received: {self.layer.name!r}, for the embedding {embedding.name!r} with "
                f"vocabulary={None if other is None else other.name!r}"
            )
        forget(head, self.layer)
        head.vocabulary = self.layer = other

    # Rows that change hands.

    def reset_rows(self, tables, rows_of=None):
        """Have the vocabulary reset the rows of classes that get another id.

        Args:
            tables: dict from `ShardedTable`s to their initializers.
            rows_of: None, or a function from classes to rows of the tables, int tensors.
        """
        if not self.changes:
            return
        self.layer.build()
        for table, initializer in tables.items():
            reset = RowReset(table, keras.initializers.get(initializer), 0, table.shape[0])
            reset = reset if rows_of is None else _ResetOfClasses(reset, rows_of)
            self._resets.append(reset)  # the vocabulary does not keep it
            self.layer.on_replaced(reset)

    # From ids to classes.

    def classes(self, ids, training=False, ignored=None, calls=None):
        """Return the classes of ids: int64 of their kind and shape; -1 where they have none.

        Args:
            ids: integers, -1 being no id, or strings, "" being none: a tensor of any kind or an array.
            training: bool, whether they are counted, and get classes.
            ignored: None, or an int, which is no id either.
            calls: the list of `calls_of_step`, or None.
        """
        if self.layer is None:
            return ids
        ids = whole_ids(ids)
        values = values_of(ids)
        if values.dtype == tf.string:
            if ignored is not None:
                raise ValueError(
                    '`ignore_class` must be None where targets are strings: "" is ignored. '
                    f"Received: ignore_class={ignored}"
                )
            nothing = values == ""
        else:
            nothing = values == -1
            nothing = nothing if ignored is None else nothing | (values == tf.cast(ignored, values.dtype))
        if self.changes:
            return with_values(ids, self.layer.classes_of(values, nothing, training, calls))
        self._check_filled()
        found = tf.cast(self.layer(self._of_its_type(values)), tf.int64)
        return with_values(ids, tf.where(nothing | (found < self.first), tf.constant(-1, tf.int64), found))

    def _check_filled(self):
        """Raise where a lookup of Keras's has not its ids yet, or others. A file brings them late."""
        with tf.init_scope():
            size = self._num_classes if is_symbolic() else self.layer.vocabulary_size()
        if size != self._num_classes:
            raise ValueError(
                f"`num_classes` must be that of the vocabulary, {size} (`vocabulary.vocabulary_size()`), "
                f"which does not change. Received: num_classes={self._num_classes}"
            )

    def _of_its_type(self, values):
        strings = isinstance(self.layer, keras.layers.StringLookup)
        if strings != (values.dtype == tf.string):
            raise TypeError(
                f"Ids of the head {self._head!r} must be {'strings' if strings else 'integers'}, as its "
                f"`vocabulary` {self.layer.name!r} takes them. Received: dtype={values.dtype.name}"
            )
        return values if strings else tf.cast(values, tf.int64)

    def classes_of_targets(self, y_true, hidden, ignored):
        """Return the classes of targets: new ids get some where `hidden` is of a step of training.

        Raises:
            ValueError: other layers have changed `hidden`, or `y_true` is a matrix of numbers for classes.
        """
        if not (heads_of(hidden) or is_symbolic() or not tf.is_symbolic_tensor(hidden)):
            raise ValueError(
                f"The output of the head {self._head!r}, which has a `vocabulary`, must go into the loss as "
                "the head returned it: what is made of it does not say whether it is of training. Slice or "
                f"reshape before the head. Received: {hidden!r}"
            )
        if isinstance(y_true, tf.SparseTensor) and y_true.dtype.is_floating:
            raise ValueError(
                f"`y_true` must be ids, for the head {self._head!r} with a `vocabulary`: a multi-hot matrix "
                f"has numbers of classes. Received: a SparseTensor of {y_true.dtype.name}"
            )
        return self.classes(y_true, in_training(hidden), ignored, calls_of(hidden))

    def annotate_step(self, hidden):
        """Record on `hidden`, which the head returns in training, the vocabulary's calls of this step."""
        if self.changes:
            annotate_calls(hidden, calls_of_step(self.layer))

    # From classes to ids.

    def ids(self, classes):
        """Return the ids of classes, int64 or strings; -1 or "" where they have none."""
        if self.layer is None:
            return classes
        if self.changes:
            of_rows = strings_of_rows if self.layer.keep_strings else ids_of_rows
            return of_rows(self.layer, classes)
        if is_symbolic():
            strings = isinstance(self.layer, keras.layers.StringLookup)
            return tf.fill(tf.shape(classes), "" if strings else tf.constant(-1, tf.int64))
        return self.names().lookup(tf.cast(classes, tf.int64))

    def names(self):
        """Return the `tf.lookup.StaticHashTable` from classes to ids, made when it is first needed.

        None where there is none: in a symbolic call, of a `DynamicVocabulary`, and without a vocabulary.
        """
        if self._names is None and isinstance(self.layer, _LOOKUPS) and not is_symbolic():
            self._check_filled()
            strings = isinstance(self.layer, keras.layers.StringLookup)
            with tf.init_scope():
                known = np.asarray(self.layer.get_vocabulary()[self.first :])
                values = tf.constant(known.tolist(), tf.string if strings else tf.int64)
                keys = tf.range(self.first, self.first + len(known), dtype=tf.int64)
                pairs = tf.lookup.KeyValueTensorInitializer(keys, values)
                self._names = tf.lookup.StaticHashTable(pairs, "" if strings else -1)
        return self._names

    def present(self, num_classes):
        """Return which classes may be among the best, those that stand for an id: bool `[num_classes]`.

        None: all of them, without a vocabulary.
        """
        if self.layer is None:
            return None
        if not self.changes:
            return tf.range(num_classes) >= self.first
        return tf.pad(self.layer.has_id(), [[self.first, 0]])

    def config(self):
        return vocabulary_config(self.layer)


class _ResetOfClasses:
    """A `RowReset` of rows that are found by their classes."""

    def __init__(self, reset, rows_of):
        self._reset, self._rows_of = reset, rows_of

    def __call__(self, classes):
        self._reset(tf.cast(self._rows_of(classes), tf.int64))
