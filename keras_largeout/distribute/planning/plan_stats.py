"""The stats of a plan, as text and as a picture."""


def size_text(count):
    """A number of bytes as people read it, such as "1.02 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def text(plan):
    """See `Plan`."""
    balance = "unknown" if plan.imbalance is None else f"{plan.imbalance:.2f}"
    lines = [
        f"{len(plan.tables)} tables on {len(plan.devices)} devices, {plan.batch_size:g} examples per step: "
        f"expected max/mean {balance}",
        "",
        *_aligned(
            ["table", "rows", "dim", "with slots", "placement", "replicated", "why"],
            [_table_row(table) for table in plan.tables],
            "lrrrlrl",
        ),
        "",
        *_aligned(
            ["device", "memory", "of", "rows", "GFLOP", "moved", "received", "ms"],
            _device_rows(plan),
            "lrrrrrrr",
        ),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _table_row(table):
    spec, placement = table.spec, table.placement
    kind = placement.kind
    if kind == "table":
        kind = f"on device {max(range(placement.devices), key=placement.sizes.__getitem__)}"
    hot = f"{placement.num_hot:,}" if placement.num_hot else "-"
    return [spec.name, f"{spec.rows:,}", str(spec.dim), size_text(spec.nbytes), kind, hot, table.reason]


def _device_rows(plan):
    memory, load = plan.memory, plan.expected
    rows = []
    for i, device in enumerate(plan.devices):
        limit = "-" if device.memory is None else size_text(device.memory)
        row = [device.name, size_text(memory[i]), limit]
        if load is None:
            row += ["?"] * 5
        else:
            row += [
                f"{load.rows[i]:,.0f}",
                f"{load.flops[i] / 1e9:,.3g}",
                size_text(load.bytes[i]),
                size_text(load.received[i]),
                f"{1e3 * plan.seconds[i]:.3g}",
            ]
        rows.append(row)
    values = [memory, None] + (
        [None] * 5 if load is None else [load.rows, load.flops, load.bytes, load.received, plan.seconds]
    )
    return [
        *rows,
        ["max/mean", *("" if v is None or not v.any() else f"{v.max() / v.mean():.2f}" for v in values)],
    ]


def _aligned(head, rows, sides):
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return [
        "  ".join(
            cell.ljust(w) if side == "l" else cell.rjust(w) for cell, w, side in zip(row, widths, sides)
        )
        for row in [head, ["-" * w for w in widths], *rows]
    ]


def new_figure(caller, height):
    """A matplotlib figure that is not one of pyplot's: it has no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{caller}` draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure(figsize=(10, height), layout="constrained")


def plot(plan, path):
    """See `Plan.plot`."""
    figure = new_figure("Plan.plot", 4 + 0.2 * len(plan.devices))
    names = [device.name for device in plan.devices]
    known = plan.expected is not None
    left, right = figure.subplots(1, 2, sharey=True)
    memory = {t.spec.name: t.memory / 1e9 for t in plan.tables}
    time = {t.spec.name: 1e3 * t.expected.seconds(plan.devices) for t in plan.tables} if known else {}
    shown = _largest(memory, time)
    _bars(left, names, memory, shown)
    left.set_xlabel("GB of tables and slots")
    limits = [device.memory for device in plan.devices if device.memory is not None]
    if limits:
        left.axvline(min(limits) / 1e9, color="black", linestyle=":", label="least memory")
    if known:
        _bars(right, names, time, shown)
        right.axvline(1e3 * plan.seconds.mean(), color="black", linewidth=1, label="mean")
        right.set_xlabel(f"expected ms per step: max/mean {plan.imbalance:.2f}")
    else:
        right.set_xlabel("expected ms per step: unknown")
    left.invert_yaxis()
    handles, labels = (right if known else left).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)


def _largest(memory, time, most=9):
    """The names of the largest tables, one for each colour. The other tables are shown together, in grey."""
    weight = {
        name: sum(part[name].sum() / sum(v.sum() for v in part.values()) for part in (memory, time) if part)
        for name in memory
    }
    return sorted(weight, key=lambda name: -weight[name])[:most]


def _bars(axes, names, parts, shown):
    """Stacked bars. All tables that are not in `shown` are one of them."""
    start = 0
    for index, name in enumerate(shown):
        axes.barh(names, parts[name], left=start, label=name, color=f"C{index if index < 7 else index + 1}")
        start = start + parts[name]
    rest = [values for name, values in parts.items() if name not in shown]
    if rest:
        axes.barh(names, sum(rest), left=start, label=f"{len(rest)} others", color="C7")
