"""Plans as JSON. What people may edit is plain text. Long arrays are compressed, and stand apart."""

import base64
import dataclasses
import hashlib
import json
import re
import zlib

import numpy as np

from keras_largeout.files.atomic_write import whole_file
from keras_largeout.files.table_files import read_json
from keras_largeout.planning.devices import Device, hosts_of_devices
from keras_largeout.planning.pins import pinned
from keras_largeout.planning.placement import SIMPLE_KINDS, Placement
from keras_largeout.planning.row_estimator import DeviceLoad
from keras_largeout.planning.specs import TableSpec

_ABOUT = (
    "Where keras_largeout places tables. You may edit `kind` (replicated, range, modulo, permutation, "
    "columns, table), `storage` (device, host), `device` where the kind is table, and `pin`: rows (of a "
    "tree: classes) such as '7' or '10-19' to a device (its index or name) or to 'all'. Plan.load reads the "
    "file back."
)
_VERSION = 1
_SPEC = ("rows", "dim", "dtype", "slots", "row_slots", "ids_per_example", "like")
_LONG = 32  # longer arrays are packed


def write(path, devices, tables, batch_size):
    """See `Plan.save`."""
    arrays = {}
    content = {
        "about": _ABOUT,
        "version": _VERSION,
        "batch_size": batch_size,
        "devices": [dataclasses.asdict(device) for device in devices],
        "tables": {table.spec.name: _table(table) for table in tables},
        "computed": {table.spec.name: _computed(table, devices, arrays) for table in tables},
        "arrays": arrays,
    }
    text = json.dumps(content, indent=1, default=_python_number)
    # A list of numbers is one line. (No string of JSON has a line break in it.)
    text = re.sub(r"\[\n[^\[\]{}]*?\n *\]", lambda found: re.sub(r"\n *", " ", found[0]), text)
    with whole_file(path) as new, open(new, "w", encoding="utf-8") as file:
        file.write(text)


def _python_number(value):
    """Return JSON knows Python's numbers only, not NumPy's."""
    return value.item()


def _table(table):
    spec = table.spec
    return {
        "kind": table.placement.kind,
        "device": _device(table.placement),
        "storage": spec.storage,
        "pin": table.pins,
        "why": table.reason,
        **{field: getattr(spec, field) for field in _SPEC},
        "tree": None if spec.tree is None else tree_digest(spec.tree),
    }


def _computed(table, devices, arrays):
    spec, placement = table.spec, table.placement
    expected = None
    if table.expected is not None:
        expected = {"of": _digest(placement, spec, devices)}
        for field in dataclasses.fields(DeviceLoad):
            expected[field.name] = np.asarray(getattr(table.expected, field.name)).tolist()
    details = {"kind": placement.kind, "sizes": list(placement.sizes)}
    if placement.kind == "permutation":
        details |= {"multiplier": placement.multiplier, "addend": placement.addend}
    if placement.columns is not None:
        details["columns"] = [list(part) for part in placement.columns]
    if placement.kind == "explicit":  # its hot rows follow from it
        details["owners"] = _packed(placement.owners, f"{spec.name}/owners", arrays)
    elif placement.hot is not None:
        details["hot"] = _packed(placement.hot, f"{spec.name}/hot", arrays)
    return {"expected": expected, "details": details}


def _digest(placement, spec, devices):
    """Return what an expected load is of."""
    digest = placement.digest if spec.storage == "device" else f"{placement.digest} {spec.storage}"
    hosts = hosts_of_devices(devices)
    return digest if len(set(hosts)) == 1 else f"{digest} hosts {' '.join(map(str, hosts))}"


def _device(placement):
    return int(np.argmax(placement.sizes)) if placement.kind == "table" else None


def _packed(array, key, arrays):
    if len(array) <= _LONG:
        return array.tolist()
    packed = zlib.compress(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes(), 6)
    arrays[key] = {"dtype": array.dtype.name, "zlib": base64.b64encode(packed).decode("ascii")}
    return key


def _unpacked(value, arrays, rows):
    """Return an array of at most a number for each row."""
    if not isinstance(value, str):
        return np.array(value, np.int64)
    entry = arrays[value]
    dtype, unpacking = np.dtype(entry["dtype"]), zlib.decompressobj()
    raw = unpacking.decompress(base64.b64decode(entry["zlib"]), rows * dtype.itemsize + 1)
    if len(raw) > rows * dtype.itemsize:
        raise ValueError(
            f"The array {value!r} of a plan must have at most a number for each of {rows} rows. "
            "Received: a longer one"
        )
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)


def tree_digest(tree):
    """Return str: equal trees have equal digests, different ones different digests."""
    found = hashlib.sha256()
    for array in (tree.class_row, tree.node_start, tree.node_row):
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def read(path, specs=None):
    """Return the devices, the tables (a dict of the fields of each `TablePlan`) and the batch size in a
    file.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        version = content.get("version") if isinstance(content, dict) else None
        raise ValueError(f"A file of a plan has version {_VERSION}. Received: {path}, version {version!r}")
    devices = tuple(Device(**device) for device in content["devices"])
    tables = {name: entry | content["computed"][name] for name, entry in content["tables"].items()}
    if specs is None:
        specs = [TableSpec(name, **{k: entry[k] for k in _SPEC}) for name, entry in tables.items()]
    elif {spec.name for spec in specs} != set(tables):
        raise ValueError(
            f"`tables` must be those of the plan, {sorted(tables)}. "
            f"Received: {sorted(spec.name for spec in specs)}"
        )
    return (
        devices,
        _read_tables(specs, tables, devices, content["arrays"]),
        content["batch_size"],
    )


def _read_tables(specs, entries, devices, arrays):
    read = {s.name: _read_table(s, entries[s.name], devices, arrays) for s in specs}
    for spec in specs:
        main = read.get(spec.like)
        if main is not None and read[spec.name]["placement"] != main["placement"]:  # that one was edited
            read[spec.name] |= {"placement": main["placement"], "expected": None}
    return list(read.values())


def _read_table(spec, entry, devices, arrays):
    for field in ("rows", "dim"):
        if getattr(spec, field) != entry[field]:
            raise ValueError(
                f"`{field}` of table {spec.name!r} is {entry[field]} in the plan. "
                f"Received: {field}={getattr(spec, field)}"
            )
    if spec.tree is not None and entry["tree"] != tree_digest(spec.tree):
        raise ValueError(f"The plan is of another tree of table {spec.name!r}.")
    spec = dataclasses.replace(spec, storage=entry.get("storage", "device"))
    placement = _placement(spec, entry, len(devices), arrays)
    reason = entry["why"]
    if entry["pin"]:
        placement = pinned(spec, entry["tree"] is not None, placement, entry["pin"], devices)
    expected = entry["expected"]
    if expected is not None and expected.pop("of") == _digest(placement, spec, devices):
        expected.setdefault("between", [0.0] * len(devices))  # older files are of one host
        expected = DeviceLoad(**{name: np.array(values) for name, values in expected.items()})
    else:
        expected, reason = None, "as edited"
    return {
        "spec": spec,
        "placement": placement,
        "reason": reason,
        "expected": expected,
        "pins": entry["pin"],
    }


def _placement(spec, entry, devices, arrays):
    """Return the placement in the entry of a table: as it was saved, or of the kind that it was edited to."""
    kind, details = entry["kind"], entry["details"]
    if entry["tree"] is not None and kind not in ("explicit", "replicated"):
        raise ValueError(
            f"`kind` of table {spec.name!r}, a tree, must be explicit or replicated. Received: kind={kind!r}"
        )
    if kind == "table":
        placement = Placement.on_device(spec.rows, devices, _device_index(spec, entry["device"], devices))
        if "hot" in details:
            placement = placement.with_hot_rows(_unpacked(details["hot"], arrays, spec.rows))
        return placement
    if kind != details["kind"] or len(details["sizes"]) != devices:
        if kind not in SIMPLE_KINDS:
            raise ValueError(
                f"`kind` of table {spec.name!r} must be table or one of {SIMPLE_KINDS}, "
                f"or explicit as it was saved for {devices} devices. Received: kind={kind!r}"
            )
        return Placement.of_kind(kind, spec.rows, spec.dim, devices)
    if kind == "explicit":
        return Placement.explicit(_unpacked(details["owners"], arrays, spec.rows), devices, details["sizes"])
    columns = details.get("columns")
    placement = Placement(
        kind,
        spec.rows,
        devices,
        tuple(details["sizes"]),
        columns=None if columns is None else tuple(tuple(part) for part in columns),
        multiplier=details.get("multiplier", 1),
        addend=details.get("addend", 0),
    )
    return (
        placement.with_hot_rows(_unpacked(details["hot"], arrays, spec.rows))
        if "hot" in details
        else placement
    )


def _device_index(spec, device, devices):
    if not isinstance(device, int) or not 0 <= device < devices:
        raise ValueError(
            f"`device` of table {spec.name!r} must be an index in [0, {devices}). Received: device={device!r}"
        )
    return device
