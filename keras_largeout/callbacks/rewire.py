"""`Rewire`: the labels of a `SparseOutput` exchange their weakest connections during training."""

import numbers
from typing import Any

import keras
import numpy as np

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout._keras import all_layers
from keras_largeout.layers.heads.sparse_output import SparseOutput

PRUNE = ("magnitude", "global_magnitude")
GROW = ("random", "gradient")


class Rewire(keras.callbacks.Callback):
    """Prunes the weakest connections of a `SparseOutput` now and then, and regrows as many elsewhere.

    A regrown connection starts at weight zero, with zero optimizer slots, at an input that its label was not
    connected to (where almost all inputs are taken: at one that it gives up). Everything follows from the
    head's seed and the step: the same in every run, and in one that was interrupted and loaded again.

    Adds to the logs of every epoch: `rewired`, how many connections changed in it, and `in_degree_gini`, how
    unequally connections are spread over the inputs (the Gini coefficient of the inputs' in-degrees: 0 where
    all have equally many, 1 where one has all).

    Args:
        head: the `SparseOutput`.
        fraction: float in (0, 1], of the connections that are exchanged each time. Defaults to `0.1`.
        every: int > 0, how many steps of the model's optimizer are between two exchanges. (With gradient
            accumulation one step is several batches.) Defaults to `1000`.
        prune: `"magnitude"`: the connections of smallest |weight| of each label. `"global_magnitude"`: those
            of all labels together: some labels exchange more than others, and all keep `fan_in` of them.
            Defaults to `"magnitude"`.
        grow: `"random"`: to inputs drawn uniformly. `"gradient"`: to those of `candidates` inputs, drawn for
            each label, on which the loss of the last batch depends most. Defaults to `"random"`.
        until: when to stop, so that what was regrown last can still learn: an int, the step of the model's
            optimizer; or a float in (0, 1], the share of the steps of this `fit` (from epoch 0 on, where an
            earlier one is resumed). None: never. Defaults to `None`.
        candidates: int > 0, for growth by gradient: how many inputs are looked at for each label; None:
            4 * fan_in. Defaults to `None`.

    Attributes:
        history: list of `{"step", "changed"}`, one per exchange.

    Raises:
        ValueError: an argument outside its range, such as a `fraction` of less than half a connection; in
            `fit`, a head that is frozen or not in the model, or `until` as a share where the number of steps
            is not known.

    Example:

    ```python
    head = kl.layers.SparseOutput(670_091, optimizer="adam")
    model = keras.Model(inputs, head(x))
    model.compile("adam", loss=head.loss)
    rewire = kl.callbacks.Rewire(head, fraction=0.1, every=1000, until=0.75)
    model.fit(data, epochs=10, callbacks=[rewire])
    ```

    References:
        - Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse connectivity",
          Nature Communications 2018 (magnitude, random growth).
        - Evci et al., "Rigging the lottery", ICML 2020 (growth by gradient, and stopping early).
        - Schultheis and Babbar, "Towards memory-efficient training for extremely large output spaces", ECML
          PKDD 2023 (a tenth every 1000 steps).
    """

    def __init__(
        self,
        head: SparseOutput,
        fraction: float = 0.1,
        every: int = 1000,
        prune: str = "magnitude",
        grow: str = "random",
        until: int | float | None = None,
        candidates: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(head, SparseOutput):
            raise ValueError(f"`head` must be a SparseOutput. Received: head={head!r}")
        if not 0 < fraction <= 1:
            raise ValueError(f"`fraction` must be in (0, 1]. Received: fraction={fraction}")
        for name, value, known in (("prune", prune, PRUNE), ("grow", grow, GROW)):
            check_one_of(name, value, known)
        if prune == "magnitude" and int(fraction * head.fan_in + 0.5) == 0:
            raise ValueError(
                "`fraction` must be at least half a connection of each label. "
                f"Received: fraction={fraction}, and a head with fan_in={head.fan_in}"
            )
        self.head, self.fraction, self.until = head, float(fraction), _until(until)
        self.every = positive_int("every", every)
        self.prune, self.grow = prune, grow
        self.candidates = positive_int("candidates", 4 * head.fan_in if candidates is None else candidates)
        self.history = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not any(layer is self.head for layer in all_layers(self.model)):
            raise ValueError(
                f"`head` must be a layer of the model that is trained. Received: head {self.head.name!r} "
                f"and a model of {[layer.name for layer in self.model.layers]}"
            )
        if not self.head.trainable:
            raise ValueError(
                "`head` must be trainable: nothing would train its new connections. "
                f"Received: head {self.head.name!r} with trainable=False"
            )
        self._stop, self._due = None, False
        if self.grow == "gradient":
            self._keeper = self.head.keep_batches()
            self._keeper.want(True)
            self.model.make_train_function(force=True)  # one that was traced before keeps no batch

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._changed = 0
        if self._stop is None:  # only now: callbacks that resume a training have set the step
            self._step = self._optimizer_step()
            self._stop = self._last_step(epoch)

    def _last_step(self, epoch):
        if not isinstance(self.until, float):
            return self.until if self.until is not None else np.inf
        if self.params.get("steps") is None:
            raise ValueError(
                "`until` must be a number of steps where the steps of an epoch are not known beforehand. "
                f"Received: until={self.until}"
            )
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        batches = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        steps = self.params["steps"] / batches  # of an epoch
        return self._step - epoch * steps + self.until * steps * self.params["epochs"]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        before, self._step = self._step, self._optimizer_step()
        self._due |= self._step // self.every > before // self.every
        if self._step > self._stop:
            self._due = False
        if self._due:
            self._rewire()
        if self.grow == "gradient":
            following = self._step + max(1, self._step - before)
            soon = following // self.every > self._step // self.every and following <= self._stop
            self._keeper.want(self._due or soon)

    def _rewire(self):
        batch = None
        if self.grow == "gradient":
            batch = self._keeper.batch()
            if batch is None:
                return  # after the next step
        # On a cluster: no worker may be about to update connections that are exchanged.
        getattr(self.model, "wait_for_steps", lambda: None)()
        changed = self.head.rewire(
            self._step,
            self.fraction,
            per_class=self.prune == "magnitude",
            optimizer=self.model.optimizer,
            batch=batch,
            candidates=self.candidates,
        )
        if self.grow == "gradient":
            self._keeper.clear()
        self._due = False
        self._changed += changed
        self.history.append({"step": self._step, "changed": changed})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["rewired"] = self._changed
            logs["in_degree_gini"] = gini(self.head.in_degrees())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.grow == "gradient":
            self._keeper.want(False)

    def _optimizer_step(self):
        return int(self.model.optimizer.iterations.numpy())


def _until(until):
    """Return the constructor's argument as an int, a float or None."""
    if until is None:
        return None
    whole = isinstance(until, numbers.Integral)
    number = isinstance(until, numbers.Real) and not isinstance(until, bool)
    if not number or not 0 < until <= (np.inf if whole else 1):
        raise ValueError(
            f"`until` must be a positive number of steps, or a float in (0, 1]. Received: until={until!r}"
        )
    return int(until) if whole else float(until)


def gini(degrees):
    """Return the Gini coefficient of non-negative numbers: 0 where all are equal, near 1 where one has
    all.
    """
    degrees = np.sort(np.asarray(degrees, np.float64))
    total, n = degrees.sum(), len(degrees)
    if not total:
        return 0.0
    return float((2 * np.arange(1, n + 1) - n - 1) @ degrees / (n * total))
