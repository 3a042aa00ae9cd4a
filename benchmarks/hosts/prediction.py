"""What a step costs on several hosts with several GPUs each: arithmetic only.

A step is the sum of its parts: nothing is taken to overlap. Sizes are in bytes, times in seconds.
"""

import dataclasses
import functools
import statistics

import numpy as np

from keras_largeout.planning.exchange_estimator import SUMMED_IN_PARTS

_GROWTH = 1.25  # of the sizes of blocks: `replicas/collectives.py`
_INDEX = 8  # bytes


@dataclasses.dataclass(frozen=True)
class Work:
    """What is trained.

    Args:
        tables: tuple of `(rows, ids of an example)`.
        exponent: float, of Zipf's law.
        dim: int, width of all tables, hidden vectors and rows of the tree.
        slots: int, what an optimizer keeps for each weight.
        dense: int, how many weights all devices have.
        top_rows: float, rows of the tree's top, which all devices have, that a host's examples touch.
        top_rows_of_all: float, those that the examples of all hosts touch.
        below: float, the fraction of targets with a subtree below the top, on one device.
        path_rows: float, rows of the tree that a target is scored with.
        exchanges: int, how often in a step all hosts exchange something, one after the other.
    """

    tables: tuple
    exponent: float
    dim: int
    slots: int
    dense: int
    top_rows: float
    top_rows_of_all: float
    below: float
    path_rows: float
    exchanges: int


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What it is trained on, in bytes, flops and seconds; rates are those reached, not those of a data sheet.

    Args:
        hosts, gpus: ints, how many hosts, and GPUs of each.
        between: bytes a second of a host's network, each way.
        within: bytes a second between GPUs of a host, each way, of each GPU.
        latency: of an exchange between two hosts; each further host adds a twentieth.
        memory: bytes a second of rows read or written at random in a GPU's memory.
        flops: a second, of matrix products.
        launch: what a step takes that computes nothing: launching kernels, and Python.
    """

    hosts: int
    gpus: int
    between: float = 100e9 / 8
    within: float = 300e9
    latency: float = 50e-6
    memory: float = 1e12
    flops: float = 50e12
    launch: float = 5e-3


@functools.cache
def unique_rows(rows, exponent, draws):
    """Return the expected number of distinct rows among draws by Zipf's law."""
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return float(-np.expm1(draws * np.log1p(-weights / weights.sum())).sum())


def padding(mean, hosts):
    """Return rows sent over rows needed, where a block holds `mean` rows on average.

    All blocks are as large as the largest of the hosts x hosts ones, whose sizes vary like those of random
    subsets; that is rounded up by at most a quarter, 12% on average.
    """
    if hosts == 1 or not mean:
        return 1.0
    # Blom's formula for the largest of so many that are distributed normally.
    deviations = statistics.NormalDist().inv_cdf((hosts**2 - 0.375) / (hosts**2 + 0.25))
    largest = 1 + deviations / np.sqrt(mean)
    return float(largest * (_GROWTH - 1) / np.log(_GROWTH))


def bytes_between(work, batch, hosts, gpus=1, padded=True):
    """Return what one host sends to others in a step: a dict.

    "rows": positions, rows and gradients of the tables; "hidden": vectors of tokens to the subtrees of their
    targets, losses back, and the gradients of both; "top": gradients of the rows that all hosts have. A row
    of a table travels once for all GPUs of a host. A row that all hosts have is summed on one of them.

    Args:
        batch: int, examples of a GPU.
    """
    factor = padding if padded else lambda mean, hosts: 1.0
    elsewhere, row = (hosts - 1) / hosts, 4 * work.dim
    unique = [unique_rows(rows, work.exponent, gpus * batch * ids) for rows, ids in work.tables]
    rows = sum(u * factor(u / hosts / gpus, hosts) for u in unique) * (_INDEX + 2 * row)
    tokens = batch * work.below
    hidden = tokens * factor(tokens / hosts, hosts) * (2 * row + _INDEX + 2 * 4)
    rounded = factor(np.inf, hosts)
    top = work.top_rows * rounded
    if hosts >= SUMMED_IN_PARTS:  # to the host that sums a row, and the sum to all
        here = work.top_rows / hosts
        top = here * factor(here, hosts) + work.top_rows_of_all / hosts * rounded
    return {
        "rows": elsewhere * rows,
        "hidden": gpus * elsewhere * hidden,
        "top": (hosts - 1) * top * (row + 4 + 2 * _INDEX),
    }


def step_seconds(work, batch, cluster):
    """Return the parts of a step: a dict of "compute", "within", "between", "waits" and "all-reduce".

    "between" is what is bound by the network's rate, "waits" the latencies of the exchanges.

    Args:
        batch: int, examples of a GPU.
    """
    hosts, gpus, row = cluster.hosts, cluster.gpus, 4 * work.dim
    unique = sum(unique_rows(rows, work.exponent, batch * ids) for rows, ids in work.tables)
    # A row is read forward, read and written by the update, and so are slots; the tree's are read once more.
    touched = unique * (3 + 2 * work.slots) + work.top_rows * (4 + 2 * work.slots)
    flops = 6 * batch * (work.path_rows * work.dim + work.dense)
    near, far = (gpus - 1) / gpus, (hosts - 1) / hosts
    from_others = near * (2 * unique + 2 * batch * work.below) + (gpus - 1) * work.top_rows
    between = sum(bytes_between(work, batch, hosts, gpus).values()) / cluster.between
    latency = cluster.latency * (1 + max(0, hosts - 2) / 20) if hosts > 1 else 0.0
    return {
        "compute": cluster.launch + touched * row / cluster.memory + flops / cluster.flops,
        "within": from_others * row / cluster.within,
        "between": between,
        "waits": work.exchanges * latency,
        "all-reduce": 8 * work.dense * (near / cluster.within + far / cluster.between) + 2 * latency,
    }


def predicted(work, batch, cluster):
    """Return the parts of a step, "seconds", "examples_per_second", and "efficiency" beside one GPU: a
    dict.
    """
    parts = step_seconds(work, batch, cluster)
    one = sum(step_seconds(work, batch, dataclasses.replace(cluster, hosts=1, gpus=1)).values())
    seconds, devices = sum(parts.values()), cluster.hosts * cluster.gpus
    return {
        **parts,
        "seconds": seconds,
        "examples_per_second": devices * batch / seconds,
        "efficiency": one / seconds,
    }
