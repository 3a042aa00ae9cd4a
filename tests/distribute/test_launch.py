"""`python -m keras_largeout.distribute.launch`: what it starts it shows, keeps, names and ends."""

import os
import pathlib
import re
import signal
import time

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
print("task", config["task"]["type"], {k: len(v) for k, v in config["cluster"].items()}, flush=True)
print("arguments", sys.argv[1:], flush=True)
"""


@pytest.fixture
def launch(running, tmp_path):
    """`launch(source, *options)`: the launcher, running; its logs are in `tmp_path / "logs"`.

    What it starts are processes of their own.
    """

    def start(source, *options, arguments=(), **environment):
        script = tmp_path / "script.py"
        script.write_text(source)
        module = ["-m", "keras_largeout.distribute.launch", "--logs", str(tmp_path / "logs")]
        return running([*module, *options, str(script), *arguments], forked=True, **environment)

    return start


def _children(launcher):
    """The processes that a launcher started, by what it calls them (`"ps 0"`)."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int(re.search(r"\) \w (\d+)", (folder / "stat").read_text()).group(1))
            environment = (folder / "environ").read_bytes().decode()
        except (OSError, AttributeError):
            continue
        if parent == launcher.process.pid and "TF_CONFIG" in environment:
            task = re.search(r'"type": "(\w+)", "index": (\d)', environment)
            found[f"{task.group(1)} {task.group(2)}"] = int(folder.name)
    return found


def _wait_until(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()


def test_a_script_runs_as_chief_and_its_exit_code_is_the_launchers(launch, tmp_path):
    launcher = launch(
        SCRIPT + "print('half a line', end=''); sys.exit(7)",
        *("--workers", "1", "--ps", "1"),
        arguments=("--epochs", "3"),
    )
    assert launcher.ended() == 7, launcher.text
    assert "[chief] task chief {'chief': 1, 'worker': 1, 'ps': 1}" in launcher.lines
    assert "[chief] arguments ['--epochs', '3']" in launcher.lines
    assert "[chief] half a line" in launcher.lines
    assert "[worker 0] keras_largeout: worker 0" in launcher.text  # is ready
    assert "[ps 0] keras_largeout: parameter server 0" in launcher.text
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert set(logs) == {"chief.log", "worker_0.log", "ps_0.log"}
    assert "arguments ['--epochs', '3']" in logs["chief.log"] and logs["chief.log"].endswith("half a line")
    assert "is ready" in logs["ps_0.log"] and "stops" in logs["ps_0.log"]


def test_who_dies_is_named_and_started_again(launch):
    launcher = launch(
        "import time; print('began', flush=True); time.sleep(1000)",
        *("--workers", "1", "--ps", "1", "--restarts", "2"),
    )
    launcher.wait_for("began")
    os.kill(_children(launcher)["worker 0"], signal.SIGKILL)
    assert launcher.wait_for(
        r"\[launch\] worker 0 \(127.0.0.1:\d+\) was killed by SIGKILL; its output is in .*"
    )
    launcher.wait_for(r"worker 0 \(.*\) is started again \(1 more restarts\)")
    launcher.wait_for(r"\[worker 0\] .* is ready", 2)
    os.kill(_children(launcher)["chief 0"], signal.SIGKILL)
    launcher.wait_for(r"the script is started again \(0 more restarts\)")
    launcher.wait_for("began", 2)
    os.kill(_children(launcher)["worker 0"], signal.SIGKILL)
    launcher.wait_for("no worker is left")
    assert launcher.ended() == 1


def test_a_server_that_cannot_start_ends_it_with_its_last_words(launch, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os\n"
        "if '\"ps\", \"index\"' in os.environ.get('TF_CONFIG', ''): raise SystemExit('out of order')\n"
    )
    path = os.pathsep.join(filter(None, [str(broken), os.environ.get("PYTHONPATH")]))
    launcher = launch(SCRIPT, "--workers", "1", "--ps", "1", PYTHONPATH=path)
    assert launcher.ended() == 1
    assert re.search(r"\[launch\] parameter server 0 \(.*\) ended with exit code 1", launcher.text), (
        launcher.text
    )
    assert "[launch] SystemExit: out of order" in launcher.lines
    assert "task chief" not in launcher.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(launch, number):
    launcher = launch(
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "print('began', flush=True); time.sleep(1000)",
        *("--workers", "1", "--ps", "1"),
    )
    launcher.wait_for("began")
    children = _children(launcher)
    assert set(children) == {"chief 0", "worker 0", "ps 0"}
    (grandchild,) = (
        int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*") if _parent(p) == children["chief 0"]
    )
    launcher.send(number)
    assert launcher.ended() == (-9 if number == signal.SIGKILL else 128 + number)
    for name, pid in children.items():
        _wait_until(lambda pid=pid: not _alive(pid), f"{name} lives on")
    if number == signal.SIGKILL:  # nobody was left to end what the script had started
        os.kill(grandchild, signal.SIGKILL)
    _wait_until(lambda: not _alive(grandchild), "what the script started lives on")


def _parent(folder):
    try:
        return int(re.search(r"\) \w (\d+)", (folder / "stat").read_text()).group(1))
    except (OSError, AttributeError):
        return None


def test_refusals(launch):
    launcher = launch(SCRIPT, "--workers", "0")
    assert launcher.ended() == 2
    assert "`--workers` must be at least 1. Received: 0" in launcher.text
