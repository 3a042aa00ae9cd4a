"""What the results of a run belong to: date, card, driver, CUDA and commit."""

import datetime
import hashlib
import os
import subprocess

_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "compute_cap",
    "clocks.max.sm",
    "clocks.max.memory",
    "power.limit",
)


def _output(*command):
    """Return what a command prints, or None where there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def has_gpu():
    return bool(_output("nvidia-smi", "-L"))


def sources_digest(root):
    """Return of everything below custom_ops: the same for the same kernels, with or without Git."""
    digest = hashlib.sha256()
    for path in sorted(p for p in (root / "custom_ops").rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def describe(root):
    """Return a dict of strings. COMMIT names the commit where a copy of the sources has no history."""
    query = _output("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader") or ""
    values = [value.strip() for value in query.splitlines()[0].split(",")] if query else []
    card = dict(zip(_FIELDS, values)) if len(values) == len(_FIELDS) else {}
    compiler = _output("nvcc", "--version") or ""
    release = [line for line in compiler.splitlines() if "release" in line]
    commit = os.environ.get("COMMIT") or _output(
        "git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"
    )
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "card": card.get("name", "unknown"),
        "driver": card.get("driver_version", "unknown"),
        "memory": card.get("memory.total", "unknown"),
        "compute capability": card.get("compute_cap", "unknown"),
        "highest clocks": f"{card.get('clocks.max.sm', '?')}, memory {card.get('clocks.max.memory', '?')}",
        "power limit": card.get("power.limit", "unknown"),
        "CUDA": release[0].partition("release ")[2] if release else "no nvcc on the PATH",
        "commit": commit or "unknown",
        "sources": sources_digest(root),
        "processors": str(os.cpu_count()),
    }


def same_run(one, other):
    """Return whether the results of two machines' descriptions may stand in one table: same card, same
    kernels.
    """
    return all(one.get(key) == other.get(key) for key in ("card", "sources"))


def text(machine):
    return "".join(f"{key}: {value}\n" for key, value in machine.items())
