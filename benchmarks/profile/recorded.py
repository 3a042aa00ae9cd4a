"""The worker's side: a step is timed, then recorded."""

import importlib
import resource
import statistics

from benchmarks._step import Step
from benchmarks._worker import measure
from benchmarks.profile.parts import summary
from benchmarks.profile.recording import Recorder

_MOST_STEPS = 100


def record(config, data):
    """Builds the step of another benchmark; what was measured of it is in the notes of the Step returned."""
    module, _, function = config["target"].partition(":")
    step = getattr(importlib.import_module(module), function)(config["config"], data)
    plain = measure(step, config["seconds"], 3, _MOST_STEPS)
    median = statistics.median(plain["times"])
    count = max(3, min(_MOST_STEPS, int(config["seconds"] / median)))
    faults = _page_faults()
    for i in range(3):
        step.run(i)
    faults = _page_faults() - faults
    recorder = Recorder()
    recorder.start()
    for i in range(count):
        recorder.step()
        step.run(3 + i)
    notes = dict(step.notes)
    found = summary(recorder.stop(), notes.pop("layers", None))
    found |= {
        "plain_ms": 1e3 * median,
        "plain_steps": len(plain["times"]),
        "cpu_ms": 1e3 * plain["cpu_seconds"],
    }
    found |= {"page_faults": faults / 3}
    return Step(lambda i: 0.0, {**notes, "profile": found})


def _page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
