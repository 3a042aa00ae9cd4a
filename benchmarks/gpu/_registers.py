"""Registers, stack and spills of every kernel, out of what `ptxas -v` said during the build."""

import re
import subprocess

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse(log):
    """Return a dict for each kernel and architecture: registers, and bytes of stack, spills and shared
    memory.
    """
    found, current = [], None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            current = {"kernel": match[1], "arch": match[2]}
        elif current is None:
            continue
        elif match := _PROPERTIES.search(line):
            current.update(zip(("stack", "spill_stores", "spill_loads"), map(int, match.groups())))
        elif match := _USED.search(line):
            current["registers"] = int(match[1])
            shared = _SHARED.search(line)
            current["shared"] = int(shared[1]) if shared else 0
            found.append({"stack": 0, "spill_stores": 0, "spill_loads": 0, **current})
            current = None
    names = _demangled([one["kernel"] for one in found])
    return [{**one, "kernel": name} for one, name in zip(found, names)]


def _demangled(names):
    for tool in ("cu++filt", "c++filt"):
        try:
            done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = done.stdout.splitlines()
        if done.returncode == 0 and len(lines) == len(names):
            return [_short(line) for line in lines]
    return names


def _short(name):
    """Return `void largeout::(anonymous namespace)::Fill<float>(float*, long)` becomes `Fill<float>`."""
    name = name.replace("(anonymous namespace)::", "").replace("largeout::", "").removeprefix("void ")
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def spilling(kernels):
    return [one for one in kernels if one["spill_stores"] or one["spill_loads"]]


def text(kernels):
    """Return a table, the kernels that spill first."""
    lines = [f"{'registers':>9} {'stack':>6} {'spilled':>8} {'reloaded':>8} {'shared':>7} arch    kernel"]
    for one in sorted(kernels, key=lambda k: (-k["spill_stores"], -k["registers"], k["kernel"])):
        lines.append(
            f"{one['registers']:9d} {one['stack']:6d} {one['spill_stores']:8d} {one['spill_loads']:8d} "
            f"{one['shared']:7d} {one['arch']:7} {one['kernel']}"
        )
    return "\n".join(lines) + "\n"
