"""`MeasuredLoad`: what the devices did for one table in some training steps. NumPy only."""

import dataclasses

import numpy as np

from keras_largeout.planning.plan_stats import size_text


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredLoad:
    """The work of each device for one table in some training steps.

    Replicated rows count where they are used: each replica works on them for its own batch.

    Attributes:
        name: str, the table's name in a plan.
        steps: int, the number of steps.
        kinds: tuple of str, what was counted. For a table `("rows",)`: unique rows per lookup and replica.
            For a tree `("tokens", "pairs")`: hidden vectors sent to subtrees, and (token, node) pairs.
        asked: int64 `[devices, kinds, devices + 1]`: for the replica on each device, what it did with
            replicated rows (column 0), and what it asked of shard s (column `s + 1`).
        gradients: int64 `[devices]`: rows of gradients for each shard, plus those of the device's replica for
            replicated rows.
        peak: int, the work of the busiest device of each step, summed over the steps.
        bytes: int64 `[devices, devices]`: entry `[i, j]` is what device i sent to device j. On parameter
            servers `[1, servers]`: what each server and all workers sent to each other.
    """

    name: str
    steps: int
    kinds: tuple
    asked: np.ndarray
    gradients: np.ndarray
    peak: int
    bytes: np.ndarray

    def __getitem__(self, kind):
        """Return int64 `[devices]`: how much of a kind each device did, with what it did for replicated
        rows.
        """
        numbers = self.asked[:, self.kinds.index(kind)]
        return numbers[:, 1:].sum(axis=0) + numbers[:, 0]

    @property
    def unit(self):
        """str: the unit of `work`, "rows" or "pairs"."""
        return self.kinds[-1]

    @property
    def work(self):
        """int64 `[devices]`: the rows that each device looked up, or the pairs that it computed."""
        return self[self.unit]

    @property
    def owned(self):
        """int64 `[devices]`: the part of `work` with rows that only this device has."""
        return self.asked[:, -1, 1:].sum(axis=0)

    @property
    def replicated(self):
        """int: the part of `work` with replicated rows, over all devices."""
        return int(self.asked[:, -1, 0].sum())

    @property
    def imbalance(self):
        """float: the work of the busiest device of each step over the mean work of a device; 1.0 is even.

        So it is how much longer a step takes than with an even load, even if every step has another busiest
        device.
        """
        total = self.work.sum()
        return float(self.peak * len(self.work) / total) if total else 1.0

    @property
    def bytes_per_step(self):
        """float: bytes per step that devices send to each other."""
        return float(self.bytes.sum()) / max(1, self.steps)

    def __str__(self):
        each = ", ".join(f"{n / max(1, self.steps):,.0f}" for n in self.work)
        return (
            f"{self.name}: max/mean {self.imbalance:.2f}, {self.unit} per step {each}, "
            f"{size_text(self.bytes_per_step)} between devices"
        )
