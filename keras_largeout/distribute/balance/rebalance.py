"""`rebalance`: rows move to other devices between epochs, and training goes on as if nothing had happened."""

import numpy as np

from keras_largeout.distribute.tables.array import HOT
from keras_largeout.distribute.tables.moving import move_rows


def rebalance(model, plan):
    """Moves rows of the model's tables, with their optimizer slots, to the devices that a plan gives them.

    The numbers do not change: a table has the same rows before and after, and training goes on as it would
    have without. Call it between epochs or between two `fit`s, never within a step.

    Rows are moved in place, piece by piece: beside the tables there are never more than a few chunks of 16
    MiB, and 4 bytes a row. The sizes of the shards and the set of replicated rows stay as they are; a plan
    for others is refused before anything moves. Placements by arithmetic (range, modulo, permutation) become
    explicit ones; then the model's training function is made anew, and traced at its next step.

    Args:
        model: a built `keras.Model` whose layers have tables, made under a strategy of several devices.
        plan: dict from names of tables to `Placement`s, or anything with such a dict as `placements`:
            `LoadBalance.plan()`, or a `Plan`. A table has the name of its layer; tables without a new
            placement stay.

    Returns:
        List of the names of the tables that were moved.

    Raises:
        ValueError: a table that the model has not, or a placement that does not fit its table.

    Example:

    ```python
    balance = kl.callbacks.LoadBalance()
    model.fit(data, callbacks=[balance])
    kl.distribute.rebalance(model, balance.plan())
    model.fit(data, callbacks=[balance])
    ```
    """
    placements = getattr(plan, "placements", plan)
    tables = placed_tables(model)
    unknown = sorted(set(placements) - set(tables) - _companions(plan))
    if unknown:
        raise ValueError(
            f"`plan` must be for tables of the model that are cut over devices, {sorted(tables)}. "
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
    """dict from names to what is placed as a whole (`ShardedTable.placed`), where it is cut over devices.

    Tables on parameter servers are among them with `remote` only: their rows stay where they are.
    """
    tables = [weight.array.table for weight in model.weights if hasattr(weight, "array")]
    tables = [table for table in tables if table.placed is not None and not table.is_whole]
    tables = [table for table in tables if remote or not table.remote]
    placed = {id(table.placed): table.placed for table in tables}
    found = {}
    for one in placed.values():
        if one.plan_name in found:
            raise ValueError(
                f"Layers with tables must have different names. Received: two named {one.plan_name!r}"
            )
        found[one.plan_name] = one
    return found


def _companions(plan):
    """Names of tables that a `Plan` places like others, as biases like their kernel: they go with those."""
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
    """The logical rows, and values, of the gradients that an optimizer has accumulated for the shards."""
    found = []
    for key, part in array.parts.items():
        if key != HOT and part.kept is not None:
            local = part.kept.indices.numpy()
            if len(local):
                found.append((array.logical(key, local), part.kept.values.numpy()))
    return found


def _give_back(array, found):
    """Hands accumulated gradients to the shards that have their rows now."""
    if not found:
        return
    rows, values = (np.concatenate(arrays) for arrays in zip(*found))
    for key, part in array.parts.items():
        if key != HOT:
            here, local = array.held(key, rows)
            part.kept.set(local, values[here])


def _make_functions(model):
    """Drops what was traced with the rows where they were."""
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
