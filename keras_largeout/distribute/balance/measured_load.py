"""`MeasuredLoad`: what the devices did for one table in a number of training steps. NumPy only."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredLoad:
    """What the devices did for one table in some training steps.

    Replicated rows are worked on by each replica for its own part of the batch.

    Attributes:
        name: str, the table's name in a plan.
        steps: int.
        kinds: tuple of str, what `asked` has: `("rows",)` of a table: unique rows of the lookups of each
            replica; `("tokens", "pairs")` of a tree: hidden vectors sent to subtrees, (token, node) pairs.
        asked: int64 `[devices, kinds, devices + 1]`: what the replica on a device did with replicated rows
            (column 0) and asked of each shard.
        gradients: int64 `[devices]`: rows of the gradients for each shard, and of those of the device's
            replica for replicated rows.
        peak: int: the work of the busiest device, summed over the steps.
        bytes: int64 `[devices, devices]`: sent from one device to another.
    """

    name: str
    steps: int
    kinds: tuple
    asked: np.ndarray
    gradients: np.ndarray
    peak: int
    bytes: np.ndarray

    def __getitem__(self, kind):
        """int64 `[devices]`: how much of a kind each device did, its part of replicated rows included."""
        numbers = self.asked[:, self.kinds.index(kind)]
        return numbers[:, 1:].sum(axis=0) + numbers[:, 0]

    @property
    def unit(self):
        """What work is counted in: "rows" or "pairs"."""
        return self.kinds[-1]

    @property
    def work(self):
        """int64 `[devices]`: rows looked up, or pairs computed."""
        return self[self.unit]

    @property
    def owned(self):
        """int64 `[devices]`: the part of `work` that is with rows which the device alone owns."""
        return self.asked[:, -1, 1:].sum(axis=0)

    @property
    def replicated(self):
        """int, the part of `work` that is with replicated rows."""
        return int(self.asked[:, -1, 0].sum())

    @property
    def imbalance(self):
        """The work of the busiest device of each step over that of the mean device; 1.0 is even.

        So it tells how much longer a step takes than it would on even devices, also where the busiest device
        is another one in every step.
        """
        total = self.work.sum()
        return float(self.peak * len(self.work) / total) if total else 1.0

    @property
    def bytes_per_step(self):
        """float: bytes between devices in a step."""
        return float(self.bytes.sum()) / max(1, self.steps)

    def __str__(self):
        each = ", ".join(f"{n / max(1, self.steps):,.0f}" for n in self.work)
        return (
            f"{self.name}: max/mean {self.imbalance:.2f}, {self.unit} a step {each}, "
            f"{self.bytes_per_step / 1e6:,.2f} MB between devices"
        )
