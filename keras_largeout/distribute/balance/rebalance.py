"""`rebalance`: moves rows to other devices between epochs, without a change of the numbers."""

from typing import Any

import keras
import numpy as np

from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.repacking import MeasuredPlan
from keras_largeout.tables.array import HOT
from keras_largeout.tables.moving import move_rows


def rebalance(model: keras.Model, plan: Plan | MeasuredPlan | dict[str, Placement]) -> list[str]:
    """Moves rows, with their optimizer slots, to the devices that a plan gives them.

    The numbers do not change: a table has the same rows before and after, and training continues as it would
    have without. Call it between epochs or between two `fit`s, never within a step.

    Rows are moved in place, in chunks. Beside the tables this takes a few chunks of 16 MiB, and 4 bytes per
    row. The sizes of the shards and the set of replicated rows cannot change: a plan with others is refused
    before anything is moved. A placement by range, modulo or permutation becomes an explicit one; then the
    model's training function is traced again at the next step.

    Args:
        model: a built `keras.Model` whose layers have tables, made under a strategy with several devices.
        plan: what `LoadBalance.plan()` returns, a `Plan`, or a dict from names of tables to `Placement`s. A
            table has the name of its layer. Tables that have no new placement stay as they are.

    Returns:
        List of the names of the tables whose rows were moved.

    Raises:
        ValueError: a table that the model does not have, or a placement that does not fit its table.

    Example:

    ```python
    balance = kl.callbacks.LoadBalance()
    model.fit(data, callbacks=[balance])
    kl.distribute.rebalance(model, balance.plan())
    model.fit(data, callbacks=[balance])
    ```
    """
    placements: Any = getattr(plan, "placements", plan)
    tables = placed_tables(model)
    unknown = sorted(set(placements) - set(tables) - _companions(plan))
    if unknown:
        raise ValueError(
            f"`plan` must be for tables of the model that are sharded over devices, {sorted(tables)}. "
            f"Received: a plan for {unknown}"
        )
    moves = {name: placement for name, placement in placements.items() if name in tables}
    with model.distribute_strategy.scope():
        moves = {name: there for name, there in moves.items() if there != tables[name].placement}
        for name, placement in moves.items():
            tables[name].check_move(placement)
        still_valid = [_move(tables[name], placement) for name, placement in moves.items()]
        if not all(still_valid):
            _make_functions(model)
    return list(moves)


def placed_tables(model, remote=False):
    """Return dict from names to the `ShardedTable`s and `ShardedTree`s of a model that are sharded over
    devices.

    Args:
        model: `keras.Model`.
        remote: bool, whether tables on parameter servers are among them. (Their rows cannot be moved.)

    Raises:
        ValueError: two layers with tables have one name.
    """
    tables = [weight.array.table for weight in model.weights if hasattr(weight, "array")]
    tables = [table for table in tables if table.placement_unit is not None and not table.is_whole]
    tables = [table for table in tables if remote or not table.remote]
    placed = {id(table.placement_unit): table.placement_unit for table in tables}
    found = {}
    for one in placed.values():
        if one.plan_name in found:
            raise ValueError(
                f"Layers with tables must have different names. Received: two named {one.plan_name!r}"
            )
        found[one.plan_name] = one
    return found


def _companions(plan):
    """Names of the tables that a `Plan` places like others, and that move with those: biases with kernels."""
    specs = [table.spec for table in getattr(plan, "tables", ())]
    return {spec.name for spec in specs if spec.like is not None}


def _move(placed, placement):
    kept = [(table.array, _kept_gradients(table.array)) for table in placed.tables]
    for table in placed.tables:
        move_rows(table, placement)
    still_valid = placed.move_to(placement)
    for array, gradients in kept:
        _give_back(array, gradients)
    if placed.counter is not None:
        placed.counter.reset()  # it counts by where rows are
    return still_valid


def _kept_gradients(array):
    """Return the gradients that an optimizer has accumulated for the shards: list of (logical rows,
    values).
    """
    found = []
    for key, part in array.parts.items():
        if key != HOT and part.kept is not None:
            local = part.kept.indices.numpy()
            if len(local):
                found.append((array.logical(key, local), part.kept.values.numpy()))
    return found


def _give_back(array, found):
    """Gives accumulated gradients to the shards that have their rows now."""
    if not found:
        return
    rows, values = (np.concatenate(arrays) for arrays in zip(*found))
    for key, part in array.parts.items():
        if key != HOT:
            here, local = array.held(key, rows)
            part.kept.set(local, values[here])


def _make_functions(model):
    """Makes the model's functions again: those that were traced before look for rows at their old place."""
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
