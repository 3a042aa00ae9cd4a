"""What `ncu --set basic --csv --page raw` said, one line a kernel."""

import csv
import io

_SECONDS = {"ns": 1e-9, "us": 1e-6, "usecond": 1e-6, "nsecond": 1e-9, "ms": 1e-3, "msecond": 1e-3, "s": 1.0}
_SHARES = {
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
_TIME = "gpu__time_duration.sum"
_REGISTERS = "launch__registers_per_thread"


def _number(text):
    try:
        return float(text.replace(",", ""))
    except (AttributeError, ValueError):
        return None


def parse(log):
    """Return one dict a kernel: kernel, launches, ms in all, registers, and the means of the shares, in
    percent.

    The first line after the header has the units. Columns that a version of ncu does not have are None.
    """
    lines = log.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    table = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    units = table.pop(0) if table and not table[0].get("ID") else {}
    scale = _SECONDS.get(units.get(_TIME) or "ns", 1e-9)
    kernels = {}
    for row in table:
        name = (row.get("Kernel Name") or "?").partition("(")[0]
        one = kernels.setdefault(name, {"kernel": name, "launches": 0, "ms": 0.0, "shares": []})
        one["launches"] += 1
        one["ms"] += (_number(row.get(_TIME)) or 0.0) * scale * 1e3
        one["registers"] = _number(row.get(_REGISTERS))
        one["shares"].append({key: _number(row.get(column)) for key, column in _SHARES.items()})
    for one in kernels.values():
        for key in _SHARES:
            values = [share[key] for share in one["shares"] if share[key] is not None]
            one[key] = sum(values) / len(values) if values else None
        del one["shares"]
    return sorted(kernels.values(), key=lambda one: -one["ms"])
