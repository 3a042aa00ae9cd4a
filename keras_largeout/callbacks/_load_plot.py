"""The picture that `LoadBalance` draws."""

from keras_largeout.planning.plan_plot import COLORS, as_labels, new_figure

#: Pictures of more tables are too long to be read, and some day too long to be drawn.
_MOST_TABLES = 12


def plot_loads(path, loads, history):
    """Writes a picture: what every device did per step, and max/mean by epoch.

    All tables have one scale: bars are as high as their load over the mean of their table, and the curves of
    max/mean have one axis. So the eye finds the tables that are the least even. Of many tables only these are
    shown.

    Args:
        path: str, the file to write. Its suffix says the format.
        loads: dict from names of tables to `MeasuredLoad`s.
        history: dict from names of tables to lists of max/mean, one per epoch.

    Raises:
        ImportError: matplotlib is not installed.
    """
    least_even = sorted(loads, key=lambda name: -loads[name].imbalance)[:_MOST_TABLES]
    shown = {name: load for name, load in loads.items() if name in least_even}
    figure = new_figure("LoadBalance(plot=...)", 10, 1.2 + 2.6 * len(shown))
    epochs = max(len(history[name]) for name in shown)
    title = f"Load of each device in epoch {epochs}"
    if len(shown) < len(loads):
        title += f": the {len(shown)} least even of {len(loads)} tables"
    figure.suptitle(title, fontweight="bold")
    grid = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(2, 1))
    highest = max(load.work.max() / max(1, load.work.mean()) for load in shown.values())
    most = max(1.1, *(value for name in shown for value in history[name]))
    entries = {}
    for (bars, line), (name, load) in zip(grid, shown.items()):
        _draw_bars(bars, name, load, max(1, highest))
        _draw_history(line, load, history[name], epochs, most)
        for axes in (bars, line):
            entries |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.align_ylabels()
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4)
    figure.savefig(path)


def _draw_bars(axes, name, load, highest):
    steps = max(1, load.steps)
    owned, work, devices = load.owned / steps, load.work / steps, range(len(load.work))
    axes.bar(devices, owned, color=COLORS[0], label="own rows")
    if load.replicated:
        axes.bar(devices, work - owned, bottom=owned, color=COLORS[1], label="replicated rows")
    axes.axhline(work.mean(), color="black", linewidth=1.2, label="mean of the devices")
    axes.set(xlabel="server" if _remote(load) else "device", ylabel=f"{load.unit} per step")
    axes.set_title(*as_labels([name], 60), loc="left")
    axes.set_xlim(-0.6, len(work) - 0.4)
    axes.set_ylim(0, 1.08 * highest * work.mean() or 1)
    axes.locator_params(axis="x", integer=True, nbins=min(16, len(work) + 1), min_n_ticks=1)
    axes.yaxis.set_major_formatter("{x:,.6g}")


def _draw_history(axes, load, values, epochs, most):
    axes.axhline(1.0, color="#8c8c8c", linewidth=1.2, label="an even load")
    axes.plot(range(1, 1 + len(values)), values, color=COLORS[0], marker="o")
    # So it may be above 1 where the bars, which are means over the steps, are even.
    axes.set(xlabel="epoch", ylabel="max/mean" if _remote(load) else "max/mean of each step")
    axes.set_title(f"max/mean by epoch, now {load.imbalance:.2f}", loc="left")
    # Points on an edge would be cut.
    axes.set_xlim(0.5, epochs + 0.5)
    axes.set_ylim(1 - 0.06 * (most - 1), 1 + 1.08 * (most - 1))
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def _remote(load):
    """Return whether the devices are parameter servers: what workers ask of them has no senders."""
    return len(load.bytes) < len(load.work)
