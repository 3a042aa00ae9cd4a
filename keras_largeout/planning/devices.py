"""Descriptions of devices for the planner."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that tables are placed on.

    The defaults describe an H200 SXM in a host with one 400 Gb/s network port for each GPU.

    Args:
        name: str, unique in a plan.
        memory: int, the bytes that tables and their slots may take on it; None for no limit. Defaults to
            `None`.
        bandwidth: float, the bytes per second that it can move through its memory. Defaults to
            `4800000000000.0`.
        flops: float, the float32 operations per second that it can do. Defaults to `67000000000000.0`.
        host: int of at least 0, the host that it belongs to. Defaults to `0`.
        within: float, the bytes per second that it can receive from the other devices of its host. Defaults
            to `450000000000.0`.
        between: float, the bytes per second that it can receive from the devices of other hosts. Defaults to
            `50000000000.0`.

    Raises:
        ValueError: a number that is not positive and finite, or a `host` that is not an integer of at least
            0.

    Example:

    ```python
    devices = [kl.distribute.Device("fast"), kl.distribute.Device("slow", memory=40e9, bandwidth=2e12)]
    kl.distribute.plan(specs, devices)
    ```

    References:
        - The data sheet of the NVIDIA H200 SXM (4.8 TB/s of memory bandwidth; 67 TFLOPS of float32; NVLink
          900 GB/s, which is 450 GB/s in each direction). 400 Gb/s InfiniBand (NDR) is 50 GB/s in each
          direction.
    """

    name: str
    memory: int | None = None
    bandwidth: float = 4.8e12
    flops: float = 67e12
    host: int = 0
    within: float = 450e9
    between: float = 50e9

    def __post_init__(self):
        for field in ("memory", "bandwidth", "flops", "within", "between"):
            value = getattr(self, field)
            if value is None and field == "memory":
                continue
            if value is None or not 0 < value < float("inf"):
                raise ValueError(
                    f"`{field}` of device {self.name!r} must be positive. Received: {field}={value!r}"
                )
        if not isinstance(self.host, (int, np.integer)) or self.host < 0:
            raise ValueError(
                f"`host` of device {self.name!r} must be an integer of at least 0. "
                f"Received: host={self.host!r}"
            )


def gather_devices(devices, memory_per_device=None, hosts=1):
    """Return a tuple of `Device`.

    Args:
        devices: int, or an iterable of `Device`.
        memory_per_device: None, or the bytes of each device whose `memory` is None.
        hosts: int, how many hosts the devices belong to, host by host, where `devices` is an int.
    """
    if not isinstance(hosts, (int, np.integer)) or hosts < 1:
        raise ValueError(f"`hosts` must be a positive int. Received: hosts={hosts!r}")
    if isinstance(devices, (int, np.integer)):
        if devices % hosts:
            raise ValueError(
                f"`hosts` must divide the number of devices. Received: hosts={hosts}, devices={devices}"
            )
        devices = [Device(f"device {i}", host=i * hosts // devices) for i in range(devices)]
    elif hosts != 1:
        raise ValueError(
            "`hosts` must be 1 where `devices` are Devices, each of which has its `host`. "
            f"Received: hosts={hosts}"
        )
    devices = tuple(devices)
    if not devices or not all(isinstance(device, Device) for device in devices):
        raise ValueError(f"`devices` must be a positive int or a list of Devices. Received: {devices!r}")
    if len({device.name for device in devices}) < len(devices):
        raise ValueError(f"`devices` must have different names. Received: {[d.name for d in devices]}")
    if memory_per_device is None:
        return devices
    return tuple(
        device if device.memory is not None else dataclasses.replace(device, memory=memory_per_device)
        for device in devices
    )


def hosts_of_devices(devices):
    """Return tuple: the host of each device."""
    return tuple(int(device.host) for device in devices)
