"""Times one library in this process alone: memory, thread pools and caches are its own.

Started by `python -m benchmarks._worker` with two arguments, a JSON file that says what to run and the JSON
file to write. Or by `forked`, where the question is only whether all works (`--quick`): importing TensorFlow
takes 4 to 5 seconds of a processor, so each process is forked from one that has imported the package and
started nothing.
"""

import gc
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path

CHECKED_STEPS = 4


def _memory():
    """Return resident bytes: the peak, now, and now without pages of files.

    VmHWM, not ru_maxrss: that one is inherited from the parent.
    """
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmHWM", "VmRSS", "RssAnon"):
            fields[key] = int(value.split()[0]) * 1024
    return tuple(fields.get(key, 0) for key in ("VmHWM", "VmRSS", "RssAnon"))


def measure(step, seconds, min_steps, max_steps):
    """Return the times of a step: checked and warmed up first, then timed until the budget is spent.

    Beside them the mean time of the processor, of all threads together: other processes disturb it less.
    """
    before = step.before or (lambda i: None)

    def run(i):
        before(i)
        return step.run(i)

    losses = [float(run(i)) for i in range(CHECKED_STEPS)]
    i, times = CHECKED_STEPS, []
    warm_until = time.perf_counter() + 0.2 * seconds
    while time.perf_counter() < warm_until:
        run(i)
        i += 1
    gc.collect()
    gc.disable()
    cpu = time.process_time()
    stop = time.perf_counter() + seconds
    anonymous = 0
    while len(times) < min_steps or (len(times) < max_steps and time.perf_counter() < stop):
        if step.before:
            cpu_before = time.process_time()
            before(i)
            cpu += time.process_time() - cpu_before
        start = time.perf_counter()
        step.run(i)
        times.append((time.perf_counter() - start) / step.per_call)
        i += 1
        if len(times) % 16 == 1:
            anonymous = max(anonymous, _memory()[2])
    gc.enable()
    cpu = (time.process_time() - cpu) / (len(times) * step.per_call)
    return {"times": times, "cpu_seconds": cpu, "losses": losses, "anonymous_bytes": anonymous}


def forked(spec_file, result_file, environment, log):
    """Runs it with this environment, its output in the file `log`. The exit code; minus a signal's number."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["keras_largeout"])
    process = forks.Process(
        target=_forked, args=tuple(map(str, (spec_file, result_file, log))) + (environment,)
    )
    process.start()
    process.join()
    return process.exitcode


def _forked(spec_file, result_file, log, environment):
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "w") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    main(spec_file, result_file)


def main(spec_file, result_file):
    spec = json.loads(Path(spec_file).read_text())
    module, _, function = spec["target"].partition(":")
    try:
        start = time.perf_counter()
        build = getattr(importlib.import_module(module), function)
        step = build(spec["config"], spec["data"])
        built = time.perf_counter() - start
        result = measure(step, spec["seconds"], spec["min_steps"], spec["max_steps"])
        peak, now, _ = _memory()
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
    main(*sys.argv[1:3])
