"""The estimator of the exchange: how much a device receives from others, and how much from other hosts.

Every device asks for an equal part of what the others own, and tells them as much. All of it goes from device
to device. Between hosts the rows of a table and their gradients travel once for all devices of a host, to and
from the device with the same place on the other host. Rows that every device has are summed within a host
first; its first device sends and receives for all. (What else passes within a host on the way is left out.)
"""

import numpy as np

#: Of so many hosts each sums some of the rows that all have, and sends the sums to all. Fewer send all that
#: they have to every other: parts would save a third of the bytes at most, and take three more exchanges.
SUMMED_IN_PARTS = 4


def arriving(owned, shared, groups=None):
    """Return what each device receives from the devices of other groups.

    Args:
        owned: float64 `[devices]`, what all devices together ask each device for, and send it gradients for.
        shared: float64, what all devices together have gradients for where every device has the row.
        groups: sequence `[devices]`, the group of each device, such as its host. None: each is its own.

    Returns:
        float64 `[devices]`.
    """
    devices = len(owned)
    index = np.arange(devices) if groups is None else np.unique(groups, return_inverse=True)[1]
    of_group = np.bincount(index, owned)
    away = (devices - np.bincount(index)[index]) / devices  # this fraction is on devices of other groups
    return (of_group.sum() - of_group[index]) / devices + (owned + shared) * away


def arrivals(owned, shared, hosts):
    """Return what each device receives from other devices, and the part of that from other hosts.

    Args:
        owned, shared: see `arriving`.
        hosts: sequence `[devices]`, the host of each device; None for one host.
    """
    received = arriving(owned, shared)
    between = np.zeros(len(owned)) if hosts is None else arriving(owned, shared, hosts)
    return received, np.minimum(between, received)


def rows_between(owned, hosts):
    """Return what each device receives from other hosts, where each host asks for a row once.

    Args:
        owned: float64 `[devices]`, what all hosts together ask each device for, and send it gradients for.
        hosts: sequence `[devices]`, the host of each device.

    Returns:
        float64 `[devices]`.
    """
    count, host, place = _places(hosts)
    of_rail = np.bincount(place, owned)
    of_host = np.zeros((count, len(of_rail)))
    of_host[host, place] = owned
    asked = of_rail[place] - of_host[host, place]
    return asked / count + owned * (count - 1) / count


def replicated_between(touched_by_hosts, touched, hosts):
    """Return what each device receives from other hosts of gradients of rows that every device has:
    `[devices]`.

    Args:
        touched_by_hosts: float64, how many rows each host has gradients for, summed over the hosts.
        touched: float64, for how many rows there are any.
        hosts: sequence `[devices]`, the host of each device.
    """
    count, _, place = _places(hosts)
    in_parts = touched_by_hosts / count + touched  # each host sums some of the rows, and sends the sums
    received = touched_by_hosts if count < SUMMED_IN_PARTS else in_parts
    return np.where(place == 0, received * (count - 1) / count, 0.0)


def _places(hosts):
    """Return how many hosts there are, and for each device its host from 0 and its place on it."""
    host = np.unique(hosts, return_inverse=True)[1]
    place = np.array([np.sum(host[:i] == h) for i, h in enumerate(host)])
    return host.max() + 1, host, place
