"""Tables with optimizers of their own: which trains which, fused into the backward pass of the layer."""

from typing import NamedTuple

from keras_largeout.layers.distributed_embedding.config import unnumbered
from keras_largeout.optimizers.fused_optimizer import FusedOptimizer


class Trained(NamedTuple):
    """Stacks that one optimizer trains.

    Attributes:
        fused: `FusedOptimizer`, or None: the model's optimizer trains them.
        stacks: list of `Stack`.
    """

    fused: FusedOptimizer | None
    stacks: list


def trained_together(stacks):
    """Return the stacks of a layer by what trains them: list of `Trained`, in the order of their first
    tables.

    Tables whose configs say the same have one optimizer, in how many stacks they may be: so a file of its
    slots fits whatever the tables are stacked with.
    """
    found = []
    for stack in stacks:
        own = stack.own_optimizer
        alike = next((group for group in found if _same(own, group.stacks[0].own_optimizer)), None)
        if alike is None:
            argument = f"`optimizer` of table {stack.first.name!r}"
            alike = Trained(None if own is None else FusedOptimizer(own, argument), [])
            found.append(alike)
        alike.stacks.append(stack)
    return found


def _same(optimizer, other):
    """Return whether two optimizers are one, or copies of one (a loaded layer has a copy for each table)."""
    if type(optimizer) is not type(other):
        return False
    return optimizer is other or unnumbered(optimizer.get_config()) == unnumbered(other.get_config())
