"""The process that makes the calls: it may die, and says before each call which one it is.

    python -m tests.fuzz.child --progress FILE --seed 0 --start 0 --stop 1000 [--known]

Prints a line of JSON after the known calls, and one at the end.
"""

import argparse
import collections
import faulthandler
import json
import os
import resource
import time
import traceback

import tensorflow as tf

from tests.fuzz import known
from tests.fuzz.calls import Call, registered

PATIENCE = 20  # seconds for a call
GIGABYTES = 2  # of address space that a call may take beyond what the process has
KEPT_GIGABYTES = 1.5  # of memory that a process may have gained after a call
WIDTH = 4000


def _pages(which):
    with open("/proc/self/statm") as file:
        return int(file.read().split()[which]) * resource.getpagesize()


class Progress:
    """Says in a file what is under way: who reads it when this process has died knows the last call."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def say(self, index, text):
        os.pwrite(self._file, f"{index} {text}"[:WIDTH].ljust(WIDTH).encode()[:WIDTH], 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--progress", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--stop", type=int, default=0)
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--no-limit", action="store_true", help="of memory: sanitizers reserve terabytes")
    options = parser.parse_args()
    faulthandler.enable()
    tf.random.set_seed(0)
    progress, counts, defects = Progress(options.progress), collections.Counter(), []
    registered()
    tf.Variable(tf.zeros([1])).assign_add(tf.ones([1]))  # TensorFlow's threads and arenas are there
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    least = _pages(1)

    def guarded(index, text, function):
        progress.say(index, text)
        if not options.no_limit:
            resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + GIGABYTES * 2**30, hard))
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            return function()
        except Exception:
            defects.append({"index": index, "call": text, "what": traceback.format_exc(limit=-4)})
            return "defect"
        finally:
            faulthandler.cancel_dump_traceback_later()

    answers = {}
    if options.known:
        for name, function in known.CALLS.items():
            answers[name] = guarded(-1, name, lambda function=function: known.answer(function))
    print(json.dumps({"answers": answers}), flush=True)
    for index in range(options.start, options.stop):
        progress.say(index, "being drawn")
        made = Call(options.seed, index)
        text = str(made)
        answer = guarded(index, text, made.run)
        counts[f"{made.op.name} {answer}"] += 1
        counts[answer] += 1
        counts[made.mode] += 1
        kept = _pages(1) - least
        if kept > KEPT_GIGABYTES * 2**30 and not options.no_limit:
            defects.append({"index": index, "call": text, "what": f"{kept >> 20} MB are kept"})
            least += kept
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "counts": counts,
                "defects": defects,
                "ops": list(registered()),
                "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
                "peak_megabytes": usage.ru_maxrss >> 10,
                "seconds": round(time.process_time(), 1),
            }
        ),
        flush=True,
    )
    os._exit(0)  # nothing of it is needed now


if __name__ == "__main__":
    main()
