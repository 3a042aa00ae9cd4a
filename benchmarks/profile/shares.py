"""Which part of a model the time of its training steps belongs to: arithmetic on a recording."""

import functools
import re
from collections import Counter

#: Nothing is at work, and Python has called TensorFlow: it is between two ops, or makes ready for the first.
BETWEEN = "TensorFlow, between ops"
#: Nothing is at work, and Python has not called.
PYTHON = "Python"


def shares(recording, part):
    """Return seconds of all steps together, by part. They sum to the time of the steps.

    Where several ops run at once, each of them gets its part of that time: with two at work, a half.

    Args:
        recording: of `recording.Recorder`: anything with its `steps`, `calls` and `spans`.
        part: `part(span)` is the name of the part that an op belongs to.

    Returns:
        A Counter.
    """
    changes = [(t, 2, d) for begin, end in recording.steps for t, d in ((begin, 1), (end, -1))]
    changes += [(t, 1, d) for begin, end in recording.calls for t, d in ((begin, 1), (end, -1))]
    for begin, end, span in _innermost(recording.spans):
        name = part(span)
        changes += [(begin, 0, (name, 1)), (end, 0, (name, -1))]
    changes.sort(key=lambda change: change[0])
    seconds, active, before = Counter(), Counter(), 0.0
    steps = calls = 0
    for time, what, change in changes:
        if steps and time > before:
            at_work = sum(active.values())
            for name, count in active.items():
                seconds[name] += (time - before) * count / at_work
            if not at_work:
                seconds[BETWEEN if calls else PYTHON] += time - before
        before = time
        if what == 2:
            steps += change
        elif what == 1:
            calls += change
        else:
            name, more = change
            active[name] += more
            if not active[name]:
                del active[name]
    return seconds


def _innermost(spans):
    """Yield (begin, end, span) of each stretch in which a thread is in that span, and in none within it."""
    threads = {}
    for span in spans:
        threads.setdefault(span.thread, []).append(span)
    for own in threads.values():
        own.sort(key=lambda span: (span.begin, -span.end))
        open_spans, now = [], 0.0
        for span in own:
            while open_spans and open_spans[-1].end <= span.begin:
                yield from _stretch(now, open_spans[-1].end, open_spans[-1])
                now = max(now, open_spans.pop().end)
            if open_spans:
                yield from _stretch(now, span.begin, open_spans[-1])
            now = span.begin
            open_spans.append(span)
        while open_spans:
            yield from _stretch(now, open_spans[-1].end, open_spans[-1])
            now = max(now, open_spans.pop().end)


def _stretch(begin, end, span):
    if end > begin:
        yield begin, end, span


def by_scope(parts, otherwise):
    """Return a function of a span: the part of the first scope of its op that has one.

    Args:
        parts: `{scope: part}`; a scope is the name of a layer, for instance. A number that TensorFlow has
            added to it (`gru_1`) doesn't count.
        otherwise: The part of all other ops.
    """

    @functools.cache
    def named(name):
        for scope in name.split("/"):
            for known in (scope, re.sub(r"_\d+$", "", scope)):
                if known in parts:
                    return parts[known]
        return otherwise

    return lambda span: named(span.name)
