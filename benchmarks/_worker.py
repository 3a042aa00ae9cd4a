"""Times one library in this process alone: memory, thread pools and caches are its own.

Started by `python -m benchmarks._worker` with two arguments, a JSON file that says what to run and the JSON
file to write.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

_CHECKED_STEPS = 4


def _memory():
    """(peak, current) resident bytes. VmHWM, not ru_maxrss: that one is inherited from the parent."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmHWM", "VmRSS"):
            fields[key] = int(value.split()[0]) * 1024
    return fields.get("VmHWM", 0), fields.get("VmRSS", 0)


def measure(step, seconds, min_steps, max_steps):
    """The times of a step: checked and warmed up first, then timed until the budget is spent.

    Beside them the mean time of the processor, of all threads together: other processes disturb it less.
    """
    losses = [float(step.run(i)) for i in range(_CHECKED_STEPS)]
    i, times = _CHECKED_STEPS, []
    warm_until = time.perf_counter() + 0.2 * seconds
    while time.perf_counter() < warm_until:
        step.run(i)
        i += 1
    gc.collect()
    gc.disable()
    cpu = time.process_time()
    stop = time.perf_counter() + seconds
    while len(times) < min_steps or (len(times) < max_steps and time.perf_counter() < stop):
        start = time.perf_counter()
        step.run(i)
        times.append(time.perf_counter() - start)
        i += 1
    gc.enable()
    cpu = (time.process_time() - cpu) / len(times)
    return {"times": times, "cpu_seconds": cpu, "losses": losses}


def main():
    spec_file, result_file = sys.argv[1:3]
    spec = json.loads(Path(spec_file).read_text())
    module, _, function = spec["target"].partition(":")
    try:
        start = time.perf_counter()
        build = getattr(importlib.import_module(module), function)
        step = build(spec["config"], spec["data"])
        built = time.perf_counter() - start
        result = measure(step, spec["seconds"], spec["min_steps"], spec["max_steps"])
        peak, now = _memory()
        result.update(build_seconds=built, peak_bytes=peak, resident_bytes=now, notes=step.notes)
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip() or "no message").splitlines()[0]
        result = {"error": f"{type(error).__name__}: {first_line}"[:200]}
    Path(result_file).write_text(json.dumps(result))
    sys.stdout.flush()
    # Interpreter shutdown of several large frameworks costs seconds and tells nothing.
    os._exit(0)


if __name__ == "__main__":
    main()
