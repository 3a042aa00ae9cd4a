"""Which tests run: three tiers, and a few cases of each grid.

| tier | run by | what it holds |
|---|---|---|
| unit | `python -m pytest` | no process of its own, at most two devices, seconds per test |
| full | `python -m pytest --full`, with the unit tests | several devices, processes, examples, whole grids |
| processes | the same | the part of the full tier that starts servers and hosts |
| soak | `python -m pytest -m soak` | repetitions, kills, damage, full memory |

The folder of a test decides its tier (`TIERS`); a marker on the test overrules the folder. A file or a test
that the command line names runs whatever its tier is, unless it is a soak test.
"""

import multiprocessing.process
import pathlib
import random
import statistics
import sys
import time

import pytest

TESTS = pathlib.Path(__file__).parent
#: The tier of a folder of tests/ and of the folders below it, unless these have their own line.
TIERS = {
    "": "unit",
    "benchmarks": "full",
    "distribute": "full",
    "distribute/cluster": "processes",
    "distribute/hosts": "processes",
    "examples": "full",
    "fuzz": "full",
    "replicas": "full",
    "tables": "full",
}
#: How many cases of a grid run at the least, where the command line does not say.
DRAWN = 3
#: Of two markers on a test the later one counts.
NAMES = ("unit", "full", "processes", "soak")


def pytest_addoption(parser):
    group = parser.getgroup("tiers")
    group.addoption("--full", action="store_true", help="run the full tier, too: whole grids, processes")
    group.addoption("--tier", choices=NAMES, help="run the tests of this tier alone, and whole grids")
    group.addoption(
        "--cases",
        metavar="N|all|rest",
        help="run at least N cases of each grid, and each value of each of its axes; or the rest: what a run "
        "without options leaves out. Defaults to 3, and to all with --full and --tier",
    )
    group.addoption(
        "--cpu-limit",
        type=float,
        metavar="TIMES",
        help="fail if a unit test takes more than TIMES the processor time of the average unit test",
    )


def tier_of(folder):
    """Return the tier of `folder`, a path below tests/ with "/" between its parts."""
    while folder not in TIERS:
        folder = folder.rpartition("/")[0]
    return TIERS[folder]


def drawn(grid, count, seed):
    """Draw from a grid of cases: each value of each axis at least once, and at least `count` cases.

    Args:
        grid: list of cases, each a dict from the names of the axes to values. (A value is itself alone, not
            what equals it: arrays are values, too.)
        count: int, or "all".
        seed: str. The same seed draws the same cases.

    Returns:
        The sorted positions in `grid` of what was drawn. A grid of one axis is drawn whole.
    """
    if count == "all" or len(grid) <= count:
        return list(range(len(grid)))
    seen, chosen, others = set(), [], []
    for position in random.Random(seed).sample(range(len(grid)), len(grid)):
        values = {(axis, id(value)) for axis, value in grid[position].items()}
        (others if values <= seen else chosen).append(position)
        seen |= values
    return sorted(chosen + others[: max(0, count - len(chosen))])


def _whole_or_drawn(items, count):
    """Yield the items to run, where `count` cases of a grid are drawn by the name of its test.

    count: int, "all", or "rest" for the cases that `DRAWN` would leave out.
    """
    grids = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        # Cases of a device that this machine lacks must not stand for those of one that it has.
        key = (item.nodeid.partition("[")[0], params.get("device"))
        grids.setdefault(key, []).append((item, params))
    for (name, _), cases in grids.items():
        whole = cases[0][0].get_closest_marker("every_case")
        number = DRAWN if count == "rest" else count
        positions = drawn([params for _, params in cases], "all" if whole else number, name)
        if count == "rest":
            positions = sorted({*range(len(cases))} - {*positions})
        for position in positions:
            yield cases[position][0]


def _tier(item):
    """Return the name of an item's tier."""
    marked = [name for name in NAMES if item.get_closest_marker(name)]
    folder = item.path.parent.relative_to(TESTS).as_posix()
    return marked[-1] if marked else tier_of("" if folder == "." else folder)


def pytest_collection_modifyitems(config, items):
    for item in items:
        item.tier = _tier(item)
    if config.option.markexpr:  # a choice of the user's
        return
    chosen, count = {"unit"}, config.option.cases or DRAWN
    if config.option.full or config.option.tier:
        chosen = {config.option.tier} if config.option.tier else set(NAMES) - {"soak"}
        count = config.option.cases or "all"
    named = {
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
        if ".py" in argument
    }
    tiers = [item for item in items if item.tier in chosen or (item.path in named and item.tier != "soak")]
    kept = set(_whole_or_drawn(tiers, count if count in ("all", "rest") else int(count)))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


class _Guard:
    """Refuses processes while a unit test runs. Python cannot remove an audit hook: this one stays."""

    on = False
    events = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")

    def __init__(self):
        sys.addaudithook(lambda event, _: event in self.events and self.check())
        start = multiprocessing.process.BaseProcess.start  # what starts a fork server raises no event

        def checked(process):
            self.check()
            start(process)

        multiprocessing.process.BaseProcess.start = checked

    def check(self):
        if self.on:
            raise RuntimeError("a unit test must not start a process: mark it with @pytest.mark.full")


_guard = _Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _guard.on = item.tier == "unit"
    try:
        return (yield)
    finally:
        _guard.on = False


#: The key of a report's property: processor seconds of a unit test.
CPU_SECONDS = "cpu_seconds"
#: An average of fewer tests says little.
ENOUGH = 100


@pytest.fixture(autouse=True)
def _counted(request):
    """Add the processor seconds of a unit test to its report."""
    began = time.process_time()
    yield
    if request.node.tier == "unit":
        request.node.user_properties.append((CPU_SECONDS, time.process_time() - began))


class CpuLimit:
    """Fails a run in which a unit test takes far more processor time than the others.

    Tests are compared with each other: on a slow or a busy machine a second of processor time does less, and
    by how much less depends on what it does.
    """

    def __init__(self, times):
        self.times, self.seconds = times, {}

    def slow(self):
        """Return a line for each test above the limit, and no line before `ENOUGH` tests have run."""
        if len(self.seconds) < ENOUGH:
            return []
        mean = statistics.fmean(self.seconds.values())
        return [
            f"{test} took {used:.1f} s of processor time. "
            f"--cpu-limit allows {self.times:g} times the average, which is {mean:.2f} s"
            for test, used in self.seconds.items()
            if used > self.times * mean
        ]

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        if report.when == "teardown" and CPU_SECONDS in properties:
            self.seconds[report.nodeid] = properties[CPU_SECONDS]

    @pytest.hookimpl(tryfirst=True)  # the summary prints the status
    def pytest_sessionfinish(self, session):
        if self.slow() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if slow := self.slow():
            terminalreporter.section("unit tests that take too long")
            for line in slow:
                terminalreporter.line(f"FAILED {line}")


def pytest_configure(config):
    # With several workers the process that starts them hears of all tests.
    if config.option.cpu_limit and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CpuLimit(config.option.cpu_limit))
