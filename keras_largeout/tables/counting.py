"""Reports of lookups and updates to the counter of a table, if one counts now."""


def counter_of(placed):
    """Return the counter of a `ShardedTable` or `ShardedTree` (or None) that counts now, or None."""
    counter = None if placed is None else placed.counter
    return counter if counter is not None and counter.active else None


def is_counted(part):
    """Return whether somebody counts what a part of a table gets."""
    return _counter_of_part(part) is not None


def count_gradients(part, gradients, merged):
    """Counts what the replicas bring for a part of a table, and all of it, where somebody counts."""
    counter = _counter_of_part(part)
    if counter is not None:
        counter.add_gradients(part.part, gradients, merged)


def count_merged(part, rows):
    """Counts what every copy of the replicated rows of a table gets."""
    counter = _counter_of_part(part)
    if counter is not None:
        counter.add_merged(rows)


def count_merged_here(part, rows):
    """Counts what this host has for the replicated rows of a table, before the hosts are summed."""
    counter = _counter_of_part(part)
    if counter is not None:
        counter.add_merged_here(rows)


def _counter_of_part(part):
    counter = counter_of(part.array.table.placement_unit)
    return counter if counter is not None and counter.array is part.array else None
