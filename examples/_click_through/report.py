"""What the click-through example prints of its features, and of larger data."""

import math

import numpy as np

import keras_largeout as kl

ROWS = 1_500_000_000  # of the question that this example answers
WORKERS = 8


def print_features(batches, hashed, most_rows):
    """Print of each feature its values, the buckets that they use, and how many share a bucket."""
    names, crosses = hashed.categories, hashed.wide.crosses
    held, rows = {name: [] for name in names}, 0
    for columns, _ in batches:
        for name in names:
            held[name].append(columns[name].numpy())
        rows += len(columns[names[0]])
        if rows >= most_rows:
            break
    codes, values = {}, {}
    for name in names:
        values[name], codes[name] = np.unique(np.concatenate(held[name]).astype(bytes), return_inverse=True)
    print(f"   of {rows:,} rows: {'one hash, wide part':>40}{'4 hashes, deep part':>27}")
    print(
        f"   {'feature':22}{'values':>10}{'buckets':>10}{'shared':>9}{'chance':>9}{'shared':>18}{'chance':>9}"
    )
    for name in names:
        wide, deep = (layer({name: values[name]})[name].numpy() for layer in _without(hashed))
        _print(name, hashed, wide, deep)
    for parts in crosses:
        pairs = np.unique(np.stack([codes[name] for name in parts]), axis=1)
        inputs = {name: values[name][pair] for name, pair in zip(parts, pairs)}
        layer = _crossing(hashed.wide, [parts])
        _print("_X_".join(parts), hashed, layer(inputs)["_X_".join(parts)].numpy())
    print("   shared: values whose buckets another value has; chance: as many as are to be expected")


def _crossing(layer, crosses):
    return kl.layers.CategoryHashing.from_config({**layer.get_config(), "crosses": crosses})


def _without(hashed):
    return _crossing(hashed.wide, None), hashed.deep


def _print(name, hashed, wide, deep=None):
    text = f"   {name:22}{len(wide):>10,}{len(np.unique(wide)):>10,}"
    text += _shared(wide, hashed.wide.num_bins)
    if deep is not None:
        text += f"{'':9}" + _shared(deep, float(hashed.deep.num_bins) ** hashed.deep.num_hashes)
    print(text)


def _shared(ids, possible):
    """Return collisions, and their expected number for a hash that is perfectly even."""
    n = len(ids)
    found = n - len(np.unique(ids, axis=0))
    expected = n + possible * math.expm1(n * math.log1p(-1 / possible))
    return f"{found:>9,}{max(0.0, expected):>9,.1f}"


def print_extrapolation(rate, batch, moved):
    """Print what the text's data would take.

    Args:
        rate: rows per second.
        batch: int, rows per step.
        moved: bytes of table rows that a step reads and writes.
    """
    hours = ROWS / rate / 3600
    print(f"   {ROWS:,} rows at this speed: {hours:,.1f} hours on this machine")
    print(
        f"   on {WORKERS} workers as fast as this one, the tables on parameter servers: "
        f"{hours / WORKERS:,.1f} hours. That is arithmetic, not a measurement:"
    )
    traffic = moved * rate / batch / 1e6
    print(
        f"   each worker moves {moved / 1e6:.1f} MB of table rows per step, {traffic:,.0f} MB per second, "
        f"the servers together {WORKERS * traffic:,.0f}"
    )
