"""The picture that `LoadBalance` draws."""


def plot_loads(path, loads, history):
    """Writes a picture: what every device did in a step, and max/mean by epoch.

    Args:
        path: where to; its suffix says the format.
        loads: dict from names to `MeasuredLoad`s.
        history: dict from names to lists of max/mean.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "`LoadBalance(plot=...)` draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    # A figure of its own, not pyplot's: no window, no global state.
    figure = Figure(figsize=(10, 1 + 2.5 * len(loads)), layout="constrained")
    grid = figure.subplots(len(loads), 2, squeeze=False, width_ratios=(2, 1))
    for (bars, line), (name, load) in zip(grid, loads.items()):
        steps = max(1, load.steps)
        owned, work = load.owned / steps, load.work / steps
        devices = range(len(work))
        bars.bar(devices, owned, label="its own")
        bars.bar(devices, work - owned, bottom=owned, label="replicated")
        bars.axhline(work.mean(), color="black", linewidth=1, label="mean")
        bars.set(title=name, xlabel="device", ylabel=f"{load.unit} a step", xticks=devices)
        bars.legend(fontsize="small")
        line.plot(range(1, 1 + len(history[name])), history[name], marker="o")
        line.set(title=f"max/mean {load.imbalance:.2f}", xlabel="epoch")
        line.set_ylim(bottom=1.0)
    figure.savefig(path, dpi=120)
