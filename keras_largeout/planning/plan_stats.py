"""The stats of a plan, as text. (`plan_plot.py` draws them.)"""

#: Units, the smallest first, and how large they are.
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}
FLOPS = {"FLOP": 1, "kFLOP": 1e3, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12}


def unit_for(value, units):
    """Return the unit in which people read `value`: it does not come out as 0.0013, nor as 1300."""
    fitting = [unit for unit, size in units.items() if value / size >= 0.9995]
    return fitting[-1] if fitting else next(iter(units))


def number_text(value, units):
    """Return a number with the unit that fits it, such as "1.02 MB"."""
    unit = unit_for(value, units)
    return f"{value / units[unit]:,.3g} {unit}"


def size_text(count):
    """Return a number of bytes as people read it."""
    return number_text(count, BYTES)


def headline(plan):
    """Return what a plan is for, and how even it is, in one line."""
    balance = "unknown" if plan.imbalance is None else f"{plan.imbalance:.2f}"
    tables, devices = (
        f"{len(parts)} {name}{'s' if len(parts) != 1 else ''}"
        for parts, name in ((plan.tables, "table"), (plan.devices, "device"))
    )
    hosts = len({device.host for device in plan.devices})
    if hosts > 1:
        devices += f" of {hosts} hosts"
    return f"{tables} on {devices}, {plan.batch_size:,.10g} examples per step: expected max/mean {balance}"


def text(plan):
    """See `Plan`."""
    lines = [
        headline(plan),
        "",
        *aligned(
            ["table", "rows", "dim", "with slots", "placement", "replicated", "why"],
            [_table_row(table) for table in plan.tables],
            "lrrrlrl",
        ),
        "",
        *aligned(
            ["device", "memory", "limit", "rows", "compute", "moved", "received", "exchange", "time"],
            _device_rows(plan),
            "lrrrrrrrr",
        ),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _table_row(table):
    spec, placement = table.spec, table.placement
    kind = placement.kind
    if kind == "table":
        kind = f"on device {max(range(placement.devices), key=placement.sizes.__getitem__)}"
    if spec.storage == "host":
        kind += ", on the host"
    hot = f"{placement.num_hot:,}" if placement.num_hot else "-"
    return [spec.name, f"{spec.rows:,}", str(spec.dim), size_text(spec.nbytes), kind, hot, table.reason]


def _device_rows(plan):
    memory, load, exchange = plan.memory, plan.expected, plan.exchange_seconds
    rows = []
    for i, device in enumerate(plan.devices):
        limit = "-" if device.memory is None else size_text(device.memory)
        row = [device.name, size_text(memory[i]), limit]
        if load is None:
            row += ["?"] * 6
        else:
            row += [
                f"{load.rows[i]:,.0f}",
                number_text(load.flops[i], FLOPS),
                size_text(load.bytes[i]),
                size_text(load.received[i]),
                number_text(exchange[i], SECONDS),
                number_text(plan.seconds[i], SECONDS),
            ]
        rows.append(row)
    values = [memory, None]
    if load is None:
        values += [None] * 6
    else:
        values += [load.rows, load.flops, load.bytes, load.received, exchange, plan.seconds]
    return [
        *rows,
        ["max/mean", *("" if v is None or not v.any() else f"{v.max() / v.mean():.2f}" for v in values)],
    ]


def aligned(head, rows, sides):
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return [
        "  ".join(
            cell.ljust(w) if side == "l" else cell.rjust(w) for cell, w, side in zip(row, widths, sides)
        )
        for row in [head, ["-" * w for w in widths], *rows]
    ]
