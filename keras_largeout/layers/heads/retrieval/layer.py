"""`Retrieval`: a head whose classes are items, and whose item vectors are the outputs of a model."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout._head_annotations import (
    GivenItems,
    annotate_excluded,
    annotate_items,
    in_training,
    items_of,
)
from keras_largeout._keras import is_symbolic, more_weights
from keras_largeout.distribute.outputs.softmax_weights import SoftmaxWeights
from keras_largeout.files.digests import saved_shapes
from keras_largeout.files.loading import only_checking
from keras_largeout.layers._inputs import hidden_length, hidden_vectors
from keras_largeout.layers.heads._per_class import PerClass, counts_per_class
from keras_largeout.layers.heads._table_head import TableHead
from keras_largeout.layers.heads.retrieval.candidates import (
    NOT_THERE,
    ItemMemory,
    StreamedFrequencies,
    candidates_of,
    row_numbers,
)
from keras_largeout.layers.heads.retrieval.item_vectors import item_vectors
from keras_largeout.ops.labels import LabelLists
from keras_largeout.ops.rows import unit_rows
from keras_largeout.ops.top_k_in_chunks import marked_missing
from keras_largeout.replicas.cross_replica import joined_of_replicas
from keras_largeout.tables.row_range import saved_shape
from keras_largeout.tables.table import ShardedTable, track_shards


@keras.saving.register_keras_serializable(package="keras_largeout")
class Retrieval(TableHead):
    """A head over items whose vectors a model computes: the second half of two towers.

    In training, each user vector is compared with the vector of its item and with those of the other items
    of the batch (over several devices: of the global batch). `head.loss` is minus the log of the item's share
    of their softmax; its `y_true` is the id of the item. The gradient goes to both towers. The layer returns
    the user vectors; see `Head`.

    `index` stores the vectors of all items in the head. Then `top_k`, `predictor` and the metrics of
    `kl.metrics` search them, as in any other head. The index is saved with the head. It does not follow the
    training: `kl.callbacks.IndexItems` renews it before each evaluation.

    `evaluate` gives the loss among the items of a batch, as in training. It gives the exact loss over the
    index where rows have several items (`y_true` is `[..., m]`, padded with -1), or where the head is called
    without item vectors. So `kl.Model(user, head(user_vectors))` is the model for queries: to evaluate, to
    serve, to export. It shares the head and the user tower.

    Args:
        num_items: int > 0, or None: the largest id of the first `index`, plus 1. Ids of items are
            `0 <= id < num_items`. Give it for `counts="streaming"`, and where an `index` may bring new items
            later. Defaults to `None`.
        normalize: bool: vectors of users and items are divided by their Euclidean norms, so that scores are
            cosines. Give a `temperature` then, such as 0.05. Defaults to `False`.
        temperature: float > 0: scores are divided by it. Defaults to `1.0`.
        counts: how often each item is a target, for the logQ correction: popular items are in more batches
            than others, and are compared too often. None: no correction. Array `[num_items]` of frequencies;
            `"streaming"`: estimated in training. The scores of candidates are corrected by the log of how
            often each is expected among them. The target is always there and is not corrected, as in
            `SampledSoftmax`. Saved with the weights; in a config an array is just True. Defaults to `None`.
        remove_accidental_hits: bool: an item of the batch that is the same as the target of a row is no
            negative for this row. Defaults to `True`.
        cache: int >= 0: so many item vectors of past batches are further negatives (cross-batch memory). They
            have no gradient. A multiple of the global batch keeps whole batches: several hosts order the
            rows of a batch in another way than one. Defaults to `0`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float `[..., dim]`, user vectors.
        item_vectors: float `[..., dim]`, the vector of the item of each row. Defaults to `None`: the head
            scores the items of its index.
        negatives: float `[m, dim]`, or `[..., dim]`: vectors of further items, drawn uniformly from all
            items. Every row is compared with all of them. Defaults to `None`.
        negative_ids: int `[m]`, or `[...]`: their ids; -1 is ignored. Defaults to `None`.
        hard_negatives: float `[..., n, dim]`, vectors of items for each row alone, such as those that the
            user saw and did not take. They are not corrected by logQ. Defaults to `None`.
        hard_negative_ids: int `[..., n]`, their ids; -1 is ignored. Defaults to `None`: all count.
        exclude: ids that metrics leave out of the search in evaluation, such as the items that the user has
            seen; as in `top_k`. Defaults to `None`.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the user vectors.

    Raises:
        ValueError: an argument outside its range; item vectors of another shape than the user vectors;
            `negatives` without `negative_ids`; lists of items in training; a search before the first `index`.
        tf.errors.InvalidArgumentError: an id that is neither below `num_items`, where that is known, nor -1.

    Example:

    ```python
    user, item, kind = (keras.Input((), dtype="int32", name=name) for name in ("user", "item", "kind"))
    user_vectors = kl.layers.ShardedEmbedding(1000, 16)(user)
    rows = [kl.layers.ShardedEmbedding(500, 16)(item), kl.layers.ShardedEmbedding(20, 16)(kind)]
    item_tower = kl.Model({"item": item, "kind": kind}, keras.layers.add(rows))
    head = kl.layers.Retrieval(normalize=True, temperature=0.05)
    model = kl.Model(
        {"user": user, "item": item, "kind": kind},
        head(user_vectors, item_tower({"item": item, "kind": kind})),
    )
    model.compile(kl.optimizers.LazyAdam(1e-2), loss=head.loss)
    model.fit(pairs, pairs["item"])

    head.index({"item": np.arange(500), "kind": kinds}, item_tower)
    recommender = head.predictor(kl.Model(user, head(user_vectors)), k=10)
    ```

    References:
        - [Yi et al., 2019](https://doi.org/10.1145/3298689.3346996), sections 3 and 4 (in-batch, logQ,
          streaming estimate).
        - [Yang et al., 2020](https://doi.org/10.1145/3366424.3386195), section 3.2 (mixed negatives).
        - [Wang et al., 2020](https://arxiv.org/abs/1912.06798), section 3.2 (cross-batch memory).
    """

    def __init__(
        self,
        num_items: int | None = None,
        normalize: bool = False,
        temperature: float = 1.0,
        counts: ArrayLike | str | None = None,
        remove_accidental_hits: bool = True,
        cache: int = 0,
        **kwargs: Any,
    ) -> None:
        streaming = isinstance(counts, str)
        if streaming and (counts != "streaming" or num_items is None):
            raise ValueError(
                '`counts` must be None, an array of a number for each item, or "streaming" with `num_items`. '
                f"Received: counts={counts!r}, num_items={num_items}"
            )
        given = counts is not None and not streaming
        if given and counts is not True and num_items is None:
            num_items = np.shape(counts)[0]
        refused = sorted(_FIXED & kwargs.keys())
        if refused:
            raise TypeError(f"`Retrieval` has no argument of this name. Received: {refused[0]}")
        super().__init__(1 if num_items is None else num_items, temperature=temperature, **kwargs)
        self.num_classes = None if num_items is None else self.num_classes
        self.normalize, self.remove_accidental_hits = bool(normalize), bool(remove_accidental_hits)
        self.cache = positive_int("cache", cache, minimum=0)
        self._memory = ItemMemory(self.cache) if self.cache else None
        self._stream = StreamedFrequencies(self.num_classes) if streaming else None
        self._counts = None
        if given:
            known = True if counts is True else counts_per_class(counts, self.num_classes)
            self._counts = PerClass("counts", known, self.num_classes)
        self.softmax_weights, self._has_items = None, False

    @property
    def num_items(self) -> int | None:
        """The number of ids, int; None before the first `index` of a head that was made without."""
        return self.num_classes

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if self.built:
            return
        self.dim = hidden_length(input_shape)
        for part, shape in ((self._counts, ()), (self._stream, ()), (self._memory, (self.dim,))):
            if part is not None:
                part.build(self, *shape)
        if self.num_classes is not None:
            self._make_index()
        self.built = True
        self.track_state()

    def _make_index(self):
        shape, absent = (self.num_classes, self.dim), keras.initializers.Constant(NOT_THERE)
        options = {"placement": "range", "trainable": False}
        vectors = ShardedTable(shape, "zeros", dtype=self.variable_dtype, name="index", **options)
        indexed = ShardedTable(shape[:1], absent, name="indexed", **options)
        self.softmax_weights = SoftmaxWeights(vectors, indexed, self)
        track_shards(self, vectors, indexed)

    @property
    def initialized(self) -> bool:
        return self.softmax_weights is None or self.softmax_weights.initialized

    def call(
        self,
        inputs: tf.Tensor,
        item_vectors: tf.Tensor | None = None,
        negatives: tf.Tensor | None = None,
        negative_ids: tf.Tensor | None = None,
        hard_negatives: tf.Tensor | None = None,
        hard_negative_ids: tf.Tensor | None = None,
        exclude: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | None = None,
        training: bool | None = False,
    ) -> tf.Tensor:
        hidden = super().call(inputs, training)
        given = GivenItems(item_vectors, negatives, negative_ids, hard_negatives, hard_negative_ids)
        if any(x is not None for x in given):
            _check_given(given, hidden)
            annotate_items(hidden, given)
        if exclude is not None and not training:
            annotate_excluded(hidden, exclude)
        return hidden

    def compute_output_spec(
        self,
        inputs: tf.Tensor,
        item_vectors: Any = None,
        negatives: Any = None,
        negative_ids: Any = None,
        hard_negatives: Any = None,
        hard_negative_ids: Any = None,
        exclude: Any = None,
        training: bool | None = False,
    ) -> keras.KerasTensor:
        return super().compute_output_spec(inputs)

    # Losses.

    def targets(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, ignore_class: int | None = None
    ) -> tuple[tf.Tensor | LabelLists, tf.Tensor, tf.Tensor | None]:
        found = super().targets(y_true, hidden, ignore_class)
        if isinstance(found[0], LabelLists) and items_of(hidden) is not None and in_training(hidden):
            raise ValueError(
                "`y_true` must be one id for each row in training, that of the item in `item_vectors`. (In "
                f"evaluation it may be a list.) Received: y_true.shape={getattr(y_true, 'shape', None)}"
            )
        return found

    def weighed_losses(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, active: tf.Tensor | None, weight: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        given = items_of(hidden)
        if given is not None:
            losses = self._losses_in_batch(y_true, hidden, active, given)
            return losses, losses
        if self._unknown_items():
            return (tf.zeros(tf.shape(hidden)[:-1]),) * 2
        return super().weighed_losses(y_true, hidden, active, weight)

    def flat_losses(
        self, y_true: Any, vectors: tf.Tensor, weight: tf.Tensor | None, hidden: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        losses = self.softmax_weights.terms(vectors, y_true).ce
        return losses, losses

    def _losses_in_batch(self, y_true, hidden, active, given):
        vectors = hidden_vectors(self, hidden)  # a cast tensor has no annotations
        self._check_shape("y_true", y_true, vectors)
        y = self._checked(tf.reshape(tf.cast(y_true, tf.int64), [-1]))
        there = y >= 0 if active is None else (y >= 0) & tf.reshape(active, [-1])
        queries = self.scaled(self._flat(vectors, there))
        items = self._unit(self._flat(given.vectors, there))
        rows, training = row_numbers(tf.size(y)), in_training(hidden)
        ids = tf.where(there, y, tf.constant(-1, tf.int64))
        if self._stream is not None and training:
            self._stream.update(joined_of_replicas(ids))
        negatives, negative_ids = self._negatives(given)
        candidates = candidates_of(
            items, ids, rows, negatives, negative_ids, self._memory, self._frequencies(ids), self.num_classes
        )
        logits = candidates.logits(queries, y, rows, self.remove_accidental_hits)
        if given.hard_negatives is not None:
            logits = tf.concat([logits, self._hard_logits(queries, y, given)], axis=1)
        if self._memory is not None and training:
            count = tf.size(joined_of_replicas(ids))
            self._memory.remember(candidates.vectors[:count], candidates.ids[:count])
        of_targets = tf.reduce_sum(queries * items, axis=1)
        losses = tf.math.softplus(tf.reduce_logsumexp(logits, axis=1) - of_targets)
        return tf.reshape(tf.where(there, losses, 0.0), tf.shape(hidden)[:-1])

    def _flat(self, vectors, there=None):
        flat = tf.cast(tf.reshape(vectors, [-1, self.dim]), tf.float32)
        return flat if there is None else tf.where(there[:, None], flat, 0.0)

    def _negatives(self, given):
        if given.negatives is None:
            return None, None
        ids = self._checked(tf.reshape(tf.cast(given.negative_ids, tf.int64), [-1]), "negative_ids")
        return self._unit(self._flat(given.negatives, ids >= 0)), ids

    def _hard_logits(self, queries, y, given):
        count = tf.shape(given.hard_negatives)[-2]
        vectors = self._unit(tf.reshape(self._flat(given.hard_negatives), [-1, count, self.dim]))
        logits = tf.einsum("nd,nkd->nk", queries, vectors)
        if given.hard_negative_ids is None:
            return logits
        ids = tf.reshape(tf.cast(given.hard_negative_ids, tf.int64), [-1, count])
        left_out = ids < 0
        if self.remove_accidental_hits:
            left_out |= ids == y[:, None]
        return tf.where(left_out, NOT_THERE, logits)

    def _frequencies(self, ids):
        """Return the function from ids and a number of targets to how often each is expected, or None."""
        if self._counts is not None:
            self._counts.require_known()
            counts = self._counts.variable.value
            return lambda ids, count: tf.gather(counts, ids) / tf.reduce_sum(counts) * count
        if self._stream is None:
            return None
        targets = joined_of_replicas(ids)
        per_step = tf.maximum(tf.reduce_sum(tf.cast(targets >= 0, tf.float32)), 1.0)
        return lambda ids, count: self._stream.per_step(ids) * (count / per_step)

    def _checked(self, ids, name="y_true"):
        """Return ids, looked at where the number of items is known."""
        return ids if self.softmax_weights is None else self.softmax_weights.checked(ids, name)

    def _unit(self, vectors):
        return unit_rows(vectors) if self.normalize else vectors

    # The index.

    def index(
        self,
        items: Any,
        model: keras.Model | None = None,
        ids: ArrayLike | str | None = None,
        batch_size: int = 1024,
    ) -> None:
        """Store the vectors of items in the head. `top_k` finds these items, and no others.

        The vectors are computed once, now: call it again after further training, or let
        `kl.callbacks.IndexItems` do so. They are saved with the head. An item that is not indexed has the
        probability 0 in the loss over the index.

        Args:
            items: what `model` takes of all items: an array, or a dict or list of them; or a
                `tf.data.Dataset` of batches, `inputs` or `(inputs, ids)`. Without a `model`: the vectors
                themselves, float `[items, dim]`. Or a model of ids alone: all ids below `num_items` are
                indexed.
            model: the item tower, a `keras.Model`. Defaults to `None`.
            ids: int `[items]`, their ids; or the name of the feature that has them, if `items` is a dict;
                or None: 0, 1, 2, ... Defaults to `None`.
            batch_size: int > 0, items per batch of `model`. Defaults to `1024`.

        Raises:
            ValueError: the head is not built; vectors of another length than the user vectors; ids that are
                negative, repeated or not below `num_items`.

        Example:

        >>> head = kl.layers.Retrieval()
        >>> users = head(np.eye(2, dtype="float32"))
        >>> head.index(np.array([[0.0, 3.0], [2.0, 0.0], [1.0, 1.0]], "float32"))
        >>> head.top_k(users, 2)[1].numpy().tolist()
        [[1, 2], [0, 2]]
        """
        if not self.built:
            raise ValueError(
                f"The head {self.name!r} has no weights yet: call it on user vectors, or build it."
            )
        if isinstance(items, keras.Model):
            if self.num_classes is None:
                raise ValueError(
                    "`num_items` must be given where `items` is a model. Received: num_items=None"
                )
            items, model = np.arange(self.num_classes), items
        vectors, ids = item_vectors(items, model, ids, positive_int("batch_size", batch_size))
        largest = int(ids.max(initial=-1))
        if vectors.shape[1] != self.dim or (self.num_classes is not None and largest >= self.num_classes):
            raise ValueError(
                f"`items` must have vectors of the length {self.dim} and ids below num_items="
                f"{self.num_classes}. Received: vectors of shape {vectors.shape}, and the id {largest}"
            )
        if self.num_classes is None:
            strategy = tf.distribute.get_strategy() if model is None else model.distribute_strategy
            with strategy.scope():
                self._make_index_of(largest + 1)
        kernel, bias = np.zeros((self.num_classes, self.dim), "float32"), np.full(self.num_classes, NOT_THERE)
        kernel[ids], bias[ids] = self._unit(tf.constant(vectors)).numpy(), 0.0
        self.kernel.assign(kernel)
        self.bias.assign(bias.astype("float32"))
        self._has_items = True

    def _make_index_of(self, num_items):
        self.num_classes = positive_int("num_items", num_items)
        with more_weights(self):
            self._make_index()
        self.track_state()

    def _unknown_items(self):
        """Return whether Keras is building a model, and there is no index yet.

        Raises:
            ValueError: there is none, and something is to be computed.
        """
        if self._has_items:
            return False
        if self.softmax_weights is not None and self.initialized:
            with tf.init_scope():
                self._has_items = bool(np.any(self.bias.numpy() > NOT_THERE / 2))
        if not self._has_items and not is_symbolic():
            raise ValueError(
                f"The head {self.name!r} has no items to search: call `head.index(items, item_tower)`, or "
                "give `kl.callbacks.IndexItems(head, items, item_tower)` to `fit` and `evaluate`. For the "
                "loss among the items of a batch, call the head with `item_vectors`"
            )
        return not self._has_items

    def check_k(self, k: int) -> None:
        if self.num_classes is None:
            self._unknown_items()
        super().check_k(k)

    def log_prob(self, hidden: tf.Tensor | np.ndarray, y: tf.Tensor | np.ndarray) -> tf.Tensor:
        self._unknown_items()
        return super().log_prob(hidden, y)

    def best_classes(
        self, hidden: tf.Tensor | np.ndarray, k: int | tf.Tensor, excluded: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        self._unknown_items()
        scores, ids = super().best_classes(hidden, k, excluded)
        return marked_missing(scores, ids, scores < NOT_THERE / 2)

    # Saving.

    def _own_tables(self):
        return [] if self.softmax_weights is None else self.softmax_weights.tables

    def _per_class(self):
        return {"counts": self._counts}

    def _state(self):
        """Return the weights of the estimates and of the memory, by their names in a file."""
        parts = [part for part in (self._stream, self._memory) if part is not None]
        return {weight.name: weight for part in parts for weight in part.variables}

    def load_own_variables(self, store: Any) -> None:
        saved = saved_shape(store, "index")
        if self.softmax_weights is None and saved is not None and not only_checking():
            self._make_index_of(saved[0])
        if self.softmax_weights is None and saved is None and "indexed_rows_000000" in saved_shapes(store):
            raise ValueError(  # TensorFlow restores what is there already
                f"`num_items` of the head {self.name!r} must be given, or `index` called, before a "
                "`tf.train.Checkpoint` with an index is restored. Received: num_items=None"
            )
        self._has_items = False  # unknown
        super().load_own_variables(store)

    def save_more(self, arrays: Any) -> None:
        for name, weight in self._state().items():
            arrays[name] = keras.ops.convert_to_numpy(weight)

    def load_more(self, store: Any) -> None:
        for name, weight in self._state().items():
            if name in store:
                weight.assign(np.asarray(store[name]))

    def summary_note(self) -> str | None:
        return None

    def get_config(self) -> dict[str, Any]:
        config = {key: value for key, value in super().get_config().items() if key not in _FIXED}
        counts = True if self._counts is not None else "streaming" if self._stream is not None else None
        return {
            **config,
            "num_items": self.num_classes,
            "normalize": self.normalize,
            "counts": counts,
            "remove_accidental_hits": self.remove_accidental_hits,
            "cache": self.cache,
        }


#: Arguments of a `TableHead` that a `Retrieval` does not have.
_FIXED = {
    "num_classes",
    "use_bias",
    "optimizer",
    "kernel_initializer",
    "bias_initializer",
    "kernel_constraint",
    "kernel",
    "margin",
    "label_smoothing",
    "class_weight",
}


def _check_given(given, hidden):
    """Raise ValueError where item vectors do not belong to user vectors `hidden`."""
    dim = hidden.shape[-1]
    if given.vectors is None:
        raise ValueError(
            "`item_vectors` must be given with `negatives` and `hard_negatives`. Received: item_vectors=None"
        )
    if not hidden.shape.is_compatible_with(given.vectors.shape):
        raise ValueError(
            "`item_vectors` must have the shape of the user vectors. "
            f"Received: item_vectors.shape={given.vectors.shape}, inputs.shape={hidden.shape}"
        )
    for name in ("negatives", "hard_negatives"):
        vectors = getattr(given, name)
        if vectors is not None and vectors.shape[-1] != dim:
            raise ValueError(
                f"`{name}` must have vectors as long as the user vectors, {dim}. "
                f"Received: {name}.shape={vectors.shape}"
            )
    if given.negatives is not None and given.negative_ids is None:
        raise ValueError("`negative_ids` must be given with `negatives`. Received: negative_ids=None")
