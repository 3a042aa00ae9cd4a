"""`Retrieval`: a head whose classes are items, and whose item vectors are the outputs of a model.

Losses among the items of a batch are computed by `batch_softmax.py`. The index that is searched is in
`item_index.py`.
"""

import functools
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
from keras_largeout.distribute.outputs.softmax_weights import SoftmaxWeights
from keras_largeout.layers._inputs import hidden_length, hidden_vectors
from keras_largeout.layers.heads._scoring import check_token_shape
from keras_largeout.layers.heads._table_head import TableHead
from keras_largeout.layers.heads.retrieval.batch_softmax import BatchSoftmax
from keras_largeout.layers.heads.retrieval.candidates import NOT_THERE
from keras_largeout.layers.heads.retrieval.given_items import check_given, flat_items, flat_rows
from keras_largeout.layers.heads.retrieval.item_index import ItemIndex
from keras_largeout.ops.labels import LabelLists
from keras_largeout.ops.top_k_in_chunks import marked_missing

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
    "vocabulary",
}


@keras.saving.register_keras_serializable(package="keras_largeout")
class Retrieval(TableHead):
    """A head over items whose vectors a model computes: the second half of two towers.

    In training, each user vector is compared with the vector of its item and with the vectors of the other
    items of the batch (over several devices: of the global batch). `head.loss` is minus the log of the item's
    share of their softmax; its `y_true` is the id of the item. The gradient goes to both towers. The layer
    returns the user vectors; see `Head`.

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
        if num_items is None and counts is not None and counts is not True:
            num_items = np.shape(counts)[0]
        refused = sorted(_FIXED & kwargs.keys())
        if refused:
            raise TypeError(f"`Retrieval` has no argument of this name. Received: {refused[0]}")
        super().__init__(1 if num_items is None else num_items, temperature=temperature, **kwargs)
        self.num_classes = None if num_items is None else self.num_classes
        self.normalize, self.remove_accidental_hits = bool(normalize), bool(remove_accidental_hits)
        self.cache = positive_int("cache", cache, minimum=0)
        self._batch_softmax = BatchSoftmax(self.num_classes, counts, self.remove_accidental_hits, self.cache)
        self._items = ItemIndex()

    @property
    def softmax_weights(self) -> SoftmaxWeights | None:
        return self._items.softmax_weights

    @property
    def num_items(self) -> int | None:
        """The number of ids, int; None before the first `index` of a head that was made without."""
        return self.num_classes

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if self.built:
            return
        self.dim = hidden_length(input_shape)
        self._batch_softmax.build(self)
        self._items.build(self)
        self.built = True
        self.track_state()

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
            check_given(given, hidden)
            annotate_items(hidden, given)
        if exclude is not None and not training:
            annotate_excluded(hidden, exclude)
        return hidden

    def compute_output_spec(self, inputs: tf.Tensor, *given: Any, **named: Any) -> keras.KerasTensor:
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
        if self._items.is_empty(self):
            return (tf.zeros(tf.shape(hidden)[:-1]),) * 2
        return super().weighed_losses(y_true, hidden, active, weight)

    def flat_losses(
        self, y_true: Any, vectors: tf.Tensor, weight: tf.Tensor | None, hidden: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        losses = self.softmax_weights.terms(vectors, y_true).ce
        return losses, losses

    def _losses_in_batch(self, y_true, hidden, active, given):
        vectors = hidden_vectors(self, hidden)  # a cast tensor has no annotations
        check_token_shape("y_true", y_true, vectors)
        y = self._checked(tf.reshape(tf.cast(y_true, tf.int64), [-1]), "y_true")
        there = y >= 0 if active is None else (y >= 0) & tf.reshape(active, [-1])
        queries = self.scaled(flat_rows(vectors, self.dim, there))
        checked = functools.partial(self._checked, name="negative_ids")
        items = flat_items(given, there, self.dim, self.normalize, checked)
        losses = self._batch_softmax.losses(queries, y, there, items, in_training(hidden))
        return tf.reshape(losses, tf.shape(hidden)[:-1])

    def _checked(self, ids, name):
        """Return ids, looked at where the number of items is known."""
        return ids if self.softmax_weights is None else self.softmax_weights.checked(ids, name)

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
        self._items.fill(self, items, model, ids, batch_size)

    def check_k(self, k: int) -> None:
        if self.num_classes is None:
            self._items.is_empty(self)
        super().check_k(k)

    def log_prob(self, hidden: tf.Tensor | np.ndarray, y: tf.Tensor | np.ndarray) -> tf.Tensor:
        self._items.is_empty(self)
        return super().log_prob(hidden, y)

    def best_classes(
        self, hidden: tf.Tensor | np.ndarray, k: int | tf.Tensor, excluded: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        self._items.is_empty(self)
        scores, ids = super().best_classes(hidden, k, excluded)
        return marked_missing(scores, ids, scores < NOT_THERE / 2)

    # Saving.

    def _own_tables(self):
        return [] if self.softmax_weights is None else self.softmax_weights.tables

    def _per_class(self):
        return {"counts": self._batch_softmax.counts}

    def load_own_variables(self, store: Any) -> None:
        self._items.prepare_load(self, store)
        super().load_own_variables(store)

    def saved_parts(self) -> list[Any]:
        return [*super().saved_parts(), self._batch_softmax]

    def summary_note(self) -> str | None:
        return None

    def get_config(self) -> dict[str, Any]:
        config = {key: value for key, value in super().get_config().items() if key not in _FIXED}
        batch = self._batch_softmax
        counts = True if batch.counts is not None else "streaming" if batch.stream is not None else None
        return {
            **config,
            "num_items": self.num_classes,
            "normalize": self.normalize,
            "counts": counts,
            "remove_accidental_hits": self.remove_accidental_hits,
            "cache": self.cache,
        }
