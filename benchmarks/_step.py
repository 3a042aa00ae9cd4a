"""What a measured library hands to the worker that times it."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Step:
    """One training step, ready to be timed.

    Args:
        run: `run(i)` does the whole step on the i-th batch of a rotation and returns its loss as a float, by
            which time every update has been made. It must accept any `i >= 0`.
        notes: Numbers for the record (bytes and flops of a step, parameters), computed before timing starts.
            `disk_seconds`: the least time that a step could take by what it reads of the disk.
        before: `before(i)` is called before each step, and is not timed. None: nothing is.
        per_call: how many steps `run(i)` takes, from the fifth call on. Times are those of one step.
    """

    run: Callable[[int], float]
    notes: dict = field(default_factory=dict)
    before: Callable[[int], None] | None = None
    per_call: int = 1
