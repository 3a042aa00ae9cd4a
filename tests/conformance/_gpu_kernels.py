"""Which kernels a GPU has, read on any machine: TensorFlow's from its registry, ours from their sources.

The wheel of TensorFlow registers its CUDA kernels where there is no GPU, too. Our library does not, unless
it was built with CUDA: so `REGISTER_KERNEL_BUILDER` is read in `custom_ops/`, its macros expanded.
"""

import collections
import functools
import pathlib
import re
from typing import NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels

SOURCES = pathlib.Path(__file__).parents[2] / "custom_ops"
_TYPES = {
    "float": types_pb2.DT_FLOAT,
    "Eigen::bfloat16": types_pb2.DT_BFLOAT16,
    "int32_t": types_pb2.DT_INT32,
    "int64_t": types_pb2.DT_INT64,
    "uint16_t": types_pb2.DT_UINT16,
    "uint32_t": types_pb2.DT_UINT32,
    "tensorflow::ResourceHandle": types_pb2.DT_RESOURCE,
}


class Kernel(NamedTuple):
    """A registered kernel: what arguments are in host memory, and which types it takes, by attribute."""

    device: str
    priority: int
    host: tuple
    types: dict


def kernel_for(node, device):
    """Return the `Kernel` that a node has on a device ("GPU", "CPU"), or None."""
    for kind in (device, "DEFAULT"):
        for kernel in _kernels(node.op):
            if kernel.device == kind and all(_takes(node, *types) for types in kernel.types.items()):
                return kernel
    return None


def _takes(node, attribute, allowed):
    value = node.attr[attribute]
    return not allowed or allowed.issuperset(value.list.type or [value.type])


@functools.cache
def _kernels(op):
    registered = kernels.get_registered_kernels_for_op(op).kernel
    ours = [] if any(kernel.device_type == "GPU" for kernel in registered) else own_kernels().get(op, [])
    return ours + [
        Kernel(
            kernel.device_type,
            kernel.priority,
            tuple(kernel.host_memory_arg),
            {c.name: set(c.allowed_values.list.type) for c in kernel.constraint},
        )
        for kernel in registered
        if not kernel.label
    ]


@functools.cache
def own_kernels():
    """Return the GPU kernels of our ops: name of the op -> list of `Kernel`."""
    found = collections.defaultdict(list)
    for path in sorted(SOURCES.rglob("op/*_op.cc")):
        text = path.read_text()
        if "DEVICE_GPU" not in text:
            continue
        text = re.sub(r"//.*", "", _with_headers(text)).replace("\\\n", " ")
        macros = {
            name: (parameters and [p.strip() for p in parameters.split(",")], body)
            for name, parameters, body in re.findall(r"^#define (\w+)(?:\((.*?)\))? *(.*)$", text, re.M)
        }
        text = _expanded(re.sub(r"^#.*$", "", text, flags=re.M), macros)
        for part in text.split("REGISTER_KERNEL_BUILDER(")[1:]:
            builder = _arguments(part)[0][0]
            if "DEVICE_GPU" not in builder:
                continue
            name = "".join(re.findall(r'"(.*?)"', re.search(r"Name\((.*?)\)", builder)[1]))
            types = re.findall(r'TypeConstraint<([\w:]+)>\("(\w+)"\)', builder)
            host = tuple(re.findall(r'HostMemory\("(\w+)"\)', builder))
            found[name].append(Kernel("GPU", 0, host, {attr: {_TYPES[kind]} for kind, attr in types}))
    return dict(found)


def _with_headers(text):
    """Return a source below the headers of `op/` folders that it includes, which have macros."""
    names = [SOURCES / name for name in re.findall(r'#include "(.*_op\.h)"', text)]
    return "".join(_with_headers(path.read_text()) for path in names) + text


def _expanded(text, macros):
    """Return a source in which macros are replaced, as the preprocessor does."""
    done = ""
    while match := re.search(r"\b[A-Z_]{4,}\b", text):
        done, text = done + text[: match.start()], text[match.end() :]
        if match[0] not in macros:
            done += match[0]
            continue
        parameters, body = macros[match[0]]
        if parameters:
            values, text = _arguments(text.lstrip()[1:])
            for name, value in zip(parameters, values):
                body = re.sub(rf'"[^"]*"|\b{name}\b', lambda m, v=value: m[0] if m[0][0] == '"' else v, body)
        text = body + text
    return done + text


def _arguments(text):
    """Return the arguments of a call, of a text that begins behind its "(", and the text behind its ")"."""
    depth, arguments, begin = 1, [], 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 or (depth == 1 and character == ","):
            arguments.append(text[begin:at].strip())
            begin = at + 1
        if depth == 0:
            return arguments, text[begin:]
    raise ValueError(f"no closing parenthesis: {text[:80]!r}")
