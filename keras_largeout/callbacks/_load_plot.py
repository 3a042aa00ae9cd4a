"""The picture that `LoadBalance` draws."""

from keras_largeout.distribute.planning.plan_stats import new_figure


def plot_loads(path, loads, history):
    """Writes a picture: what every device did per step, and max/mean by epoch.

    Args:
        path: str, the file to write. Its suffix says the format.
        loads: dict from names of tables to `MeasuredLoad`s.
        history: dict from names of tables to lists of max/mean, one per epoch.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure("LoadBalance(plot=...)", 1 + 2.5 * len(loads))
    grid = figure.subplots(len(loads), 2, squeeze=False, width_ratios=(2, 1))
    for (bars, line), (name, load) in zip(grid, loads.items()):
        steps = max(1, load.steps)
        owned, work = load.owned / steps, load.work / steps
        devices = range(len(work))
        bars.bar(devices, owned, label="own rows")
        bars.bar(devices, work - owned, bottom=owned, label="replicated rows")
        bars.axhline(work.mean(), color="black", linewidth=1, label="mean")
        bars.set(title=name, xlabel="device", ylabel=f"{load.unit} per step", xticks=devices)
        bars.legend(fontsize="small")
        line.plot(range(1, 1 + len(history[name])), history[name], marker="o")
        line.set(title=f"max/mean {load.imbalance:.2f}", xlabel="epoch")
        line.set_ylim(bottom=1.0)
    figure.savefig(path, dpi=120)
