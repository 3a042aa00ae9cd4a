"""Training steps as TensorFlow's profiler sees them: which op ran when, on which thread."""

import pathlib
import re
import tempfile
from typing import NamedTuple

import tensorflow as tf

OP = re.compile(r"[^\s:]+:[^\s:]+")  # the name of an op at work: scopes, and its type
_STEP = "profiled step"
_CALL = "KernelAndDeviceFunc::Run"


class Span(NamedTuple):
    """An op at work. `name` begins with the scopes that it was made in; `kind` is its type, "Input" for what
    `tf.data` does in threads of its own. Times are in seconds."""

    thread: int
    begin: float
    end: float
    name: str
    kind: str


class Recording(NamedTuple):
    """`steps`, `calls`: (begin, end) of each step, and of each call of TensorFlow by Python."""

    steps: list
    calls: list
    spans: list


class Recorder:
    """Call `step()` at the begin of each step, after `start()`; the last one ends with `stop()`."""

    def start(self):
        self._folder = tempfile.TemporaryDirectory()
        self._step = None
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        tf.profiler.experimental.start(self._folder.name, options)

    def step(self):
        self._end_step()
        self._step = tf.profiler.experimental.Trace(_STEP)
        self._step.__enter__()

    def stop(self):
        """Returns the Recording."""
        self._end_step()
        tf.profiler.experimental.stop()
        with self._folder:
            (file,) = pathlib.Path(self._folder.name).rglob("*.xplane.pb")
            return read(file)

    def _end_step(self):
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def read(file):
    """Return the Recording in a file of the profiler."""
    found = Recording([], [], [])
    for _, line, name, event in events(file):
        reads_data = line.name.startswith("tf_data_")
        begin = 1e-9 * line.timestamp_ns + 1e-12 * event.offset_ps
        end = begin + 1e-12 * event.duration_ps
        if name == _STEP:
            found.steps.append((begin, end))
        elif name == _CALL:
            found.calls.append((begin, end))
        elif event.duration_ps and (reads_data or OP.fullmatch(name)):
            kind = "Input" if reads_data else name.rpartition(":")[2]
            found.spans.append(Span(line.id, begin, end, name.rpartition(":")[0] or name, kind))
    return found


def events(file):
    """Yield the plane (a device), the line (a thread or stream), the name and the event, of all in such a
    file.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(pathlib.Path(file).read_bytes())
    for plane in space.planes:
        names = {key: value.name for key, value in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                yield plane, line, names[event.metadata_id], event
