"""`IndexItems`: the index of a `Retrieval` follows the training."""

from typing import Any

import keras
from numpy.typing import ArrayLike

from keras_largeout.layers.heads.retrieval.layer import Retrieval


class IndexItems(keras.callbacks.Callback):
    """Computes the vectors of all items for a `Retrieval` when training begins, before each evaluation and
    when training ends.

    So metrics in `fit` and `evaluate` search items of the present weights, and the head is ready to serve
    after `fit`. It takes as long as a prediction of the item tower for all items.

    Args:
        head: the `Retrieval`.
        items: the items of the catalogue, as in `Retrieval.index`.
        model: the item tower, or None. Defaults to `None`.
        ids: the ids of the items, as in `Retrieval.index`. Defaults to `None`.
        batch_size: int > 0, items per batch of `model`. Defaults to `1024`.

    Raises:
        ValueError: `head` is not a `Retrieval`; when it is called, what `Retrieval.index` raises.

    Example:

    ```python
    index = kl.callbacks.IndexItems(head, {"item": np.arange(100), "kind": kinds}, item_tower)
    model.compile(kl.optimizers.LazyAdam(), loss=head.loss, metrics=[kl.metrics.RecallAtK(10)])
    model.fit(pairs, pairs["item"], validation_data=(pairs, positives), callbacks=[index])
    ```
    """

    def __init__(
        self,
        head: Retrieval,
        items: Any,
        model: keras.Model | None = None,
        ids: ArrayLike | str | None = None,
        batch_size: int = 1024,
    ) -> None:
        super().__init__()
        if not isinstance(head, Retrieval):
            raise ValueError(f"`head` must be a Retrieval. Received: head={head!r}")
        self._head, self._arguments, self._is_old = head, (items, model, ids, batch_size), False

    def _index(self):
        self._head.index(*self._arguments)
        self._is_old = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._index()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._is_old = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._index()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._is_old:
            self._index()
