"""How much memory there is, how much a piece of code takes at its peak (both from Linux's /proc), and what is
alive of models."""

import collections
import gc
import os
import pathlib

import keras
import pytest
from tensorflow.python.framework import func_graph, ops


def _line(path, key):
    lines = pathlib.Path(path).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10


def need(gigabytes):
    """Skips the test where processes could not get so much; what the page cache would give back counts."""
    available = _line("/proc/meminfo", "MemAvailable:")
    if available < gigabytes << 30:
        pytest.skip(f"{gigabytes} GB of available memory are needed; there are {available >> 30}")


def need_peaks():
    """Skips the test where `peak_of` cannot work."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("peak memory is read and reset in Linux's /proc")


def peak_of(function):
    """Megabytes that the process grows by at the peak of a call. TensorFlow keeps what it has freed, and
    would use it: only in a fresh process."""
    before = _line("/proc/self/status", "VmRSS:")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    function()
    return (_line("/proc/self/status", "VmHWM:") - before) >> 20


def alive():
    """How many objects are alive that hold a model's memory, by what they are."""
    for _ in range(3):
        gc.collect()
    kinds = {
        "models": keras.Model,
        "optimizers": keras.optimizers.Optimizer,
        "variables": keras.Variable,
        "graphs": func_graph.FuncGraph,
    }
    counts = collections.Counter(map(type, gc.get_objects()))
    found = {
        name: sum(count for kind_of, count in counts.items() if issubclass(kind_of, kind))
        for name, kind in kinds.items()
    }
    return found | {"registered gradients": len(ops.gradient_registry.list())}
