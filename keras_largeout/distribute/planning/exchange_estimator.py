"""The estimator of the exchange: how much a device receives from others, and how much from other hosts.

Every device asks for an equal part of what the others own, and tells them as much. All of it goes from device
to device. (Sums that are made within a host first send less between hosts than is estimated here.)
"""

import numpy as np


def arriving(owned, shared, groups=None):
    """What each device receives from the devices of other groups.

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
    """What each device receives from other devices, and the part of that from other hosts.

    Args:
        owned, shared: see `arriving`.
        hosts: sequence `[devices]`, the host of each device; None for one host.
    """
    received = arriving(owned, shared)
    between = np.zeros(len(owned)) if hosts is None else arriving(owned, shared, hosts)
    return received, np.minimum(between, received)
