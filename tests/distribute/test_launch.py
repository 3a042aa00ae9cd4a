"""`python -m keras_largeout.distribute.launch`: what it starts it shows, keeps, names and ends."""

import json
import os
import pathlib
import re
import signal
import time
import urllib.request

import pytest

from keras_largeout.distribute.processes import exit_codes

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
        *("--workers", "1", "--ps", "1", "--max-restarts", "2"),
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
    assert launcher.ended() == exit_codes.LOST


def test_a_script_that_lost_a_server_begins_again_and_a_silent_server_with_it(launch, tmp_path):
    """The older name of the option works, too."""
    launcher = launch(
        "import os, sys, time\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    print('began', flush=True); time.sleep(0.5)\n"
        "os.remove(sys.argv[1]); sys.exit(75)",
        *("--workers", "1", "--ps", "1", "--restarts", "2"),
        arguments=(str(tmp_path / "lost"),),
    )
    launcher.wait_for("`--restarts` is now called `--max-restarts`")
    launcher.wait_for("began")
    os.kill(_children(launcher)["ps 0"], signal.SIGSTOP)
    (tmp_path / "lost").touch()
    launcher.wait_for(r"parameter server 0 \(.*\) was killed by SIGKILL")
    launcher.wait_for(r"the script is started again \(0 more restarts\)")
    launcher.wait_for(r"\[ps 0\] .* is ready", 2)
    (tmp_path / "lost").touch()
    assert launcher.ended() == exit_codes.LOST


@pytest.mark.parametrize("servers", ["1", "0"])
def test_a_line_is_a_json_object_on_the_console_and_in_the_files(servers, launch, tmp_path):
    launcher = launch(
        "import os, sys\n"
        "if '\"index\": 1' in os.environ['TF_CONFIG']: sys.exit()\n"
        "print('W0000 00:00:00.1 1 a.cc:1] careful'); print('a \"b\"'); print('ERROR:x:half', end='')",
        *("--workers", "2", "--ps", servers, "--log-format", "json"),
    )
    assert launcher.ended() == exit_codes.SUCCESS, launcher.text
    lines = [json.loads(line) for line in launcher.lines]
    assert all(list(line) == ["time", "process", "level", "text"] for line in lines)
    assert all(re.fullmatch(r"\d{4}(-\d\d){2}T\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)
    script = "chief" if servers == "1" else "host 0"
    expected = [
        ("WARNING", "W0000 00:00:00.1 1 a.cc:1] careful"),
        ("INFO", 'a "b"'),
        ("ERROR", "ERROR:x:half"),
    ]
    assert [(line["level"], line["text"]) for line in lines if line["process"] == script] == expected
    assert ("launch", f"logs: {tmp_path / 'logs'}") in [(line["process"], line["text"]) for line in lines]
    kept = (tmp_path / "logs" / f"{script.replace(' ', '_')}.log").read_text().splitlines()
    assert [(line["level"], line["text"]) for line in map(json.loads, kept)] == expected


def test_the_launcher_serves_metrics(launch):
    pytest.importorskip("prometheus_client")
    launcher = launch(
        "import time; print('began', flush=True); time.sleep(1000)",
        *("--workers", "1", "--ps", "1", "--max-restarts", "1", "--metrics-port", "0"),
    )
    url = f"http://127.0.0.1:{launcher.wait_for('metrics on port ([0-9]+)').group(1)}"
    launcher.wait_for("began")
    assert urllib.request.urlopen(f"{url}/healthz", timeout=60).status == 200
    os.kill(_children(launcher)["chief 0"], signal.SIGKILL)
    launcher.wait_for("began", 2)
    text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
    for line in ("restarts_total 1.0", *(f'process_up{{process="{p}"}} 1.0' for p in ("chief", "ps 0"))):
        assert f"\nkeras_largeout_{line}\n" in text


MEASURED = """
import urllib.request
import keras, numpy as np, keras_largeout as kl
metrics = kl.callbacks.PrometheusMetrics(0)
with kl.distribute.strategy().scope():
    ids = keras.Input((), dtype="int64")
    model = kl.Model(ids, kl.layers.ShardedEmbedding(100, 4, placement="modulo", name="rows")(ids))
    model.compile(kl.optimizers.Adagrad(0.1), "mse")
model.fit(np.arange(8), np.ones((8, 4)), batch_size=2, verbose=0, callbacks=[metrics])
page = urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics").read().decode()
print(*(line for line in page.splitlines() if line.startswith("keras_largeout")), sep="\\n")
"""


@pytest.mark.parametrize("servers, rows", [("2", [50, 50]), ("0", [50])], ids=["chief", "host"])
def test_a_chief_and_a_host_serve_metrics(servers, rows, launch):
    pytest.importorskip("prometheus_client")
    launcher = launch(MEASURED, "--workers", "2", "--ps", servers)
    assert launcher.ended() == exit_codes.SUCCESS, launcher.text
    assert re.search(r'keras_largeout_steps_total{loop="train"} 4.0', launcher.text), launcher.text
    for what, times in (("rows", 1), ("bytes", 2 * 4 * 4)):
        found = re.findall(rf"keras_largeout_{what}{{.*}} (.*)", launcher.text)
        assert [float(value) for value in found] == [times * n for n in rows], launcher.text
    up = re.findall(r'keras_largeout_process_up{process="(.*)"} 1.0', launcher.text)
    assert up == (["worker 0", "worker 1", "ps 0", "ps 1"] if servers == "2" else [])


def test_all_hosts_begin_again_together(launch, tmp_path):
    launcher = launch(
        "import json, os, sys, time\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "print('began', flush=True)\n"
        "if os.path.exists(sys.argv[1]): sys.exit()\n"
        "if index == 1: open(sys.argv[1], 'w').close(); sys.exit(7)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.1)\n"
        "sys.exit(75)",
        *("--workers", "2", "--max-restarts", "1"),
        arguments=(str(tmp_path / "lost"),),
    )
    launcher.wait_for(r"all hosts are started again \(0 more restarts\)")
    launcher.wait_for(r"\[host 0\] began", 2)
    assert launcher.ended() == exit_codes.SUCCESS, launcher.text


@pytest.mark.parametrize("servers, name", [("1", "chief 0"), ("0", "host 0")], ids=["chief", "host"])
def test_a_script_that_stands_still_is_named_and_ended(servers, name, launch):
    script = (
        "import json, os, signal\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    launcher = launch(
        script, "--workers", "2", "--ps", servers, "--heartbeat-timeout", "3", "--max-restarts", "1"
    )
    assert launcher.ended() == exit_codes.LOST, launcher.text
    launcher.wait_for(rf"^\[launch\] {name} \(.*\) did not answer for 3 s", times=2)
    launcher.wait_for(rf"^\[launch\] {name} \(.*\) is killed", times=2)
    assert not _children(launcher)


def test_a_server_that_cannot_start_ends_it_with_its_last_words(launch, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os\n"
        "if '\"ps\", \"index\"' in os.environ.get('TF_CONFIG', ''): raise SystemExit('out of order')\n"
    )
    path = os.pathsep.join(filter(None, [str(broken), os.environ.get("PYTHONPATH")]))
    launcher = launch(SCRIPT, "--workers", "1", "--ps", "1", PYTHONPATH=path)
    assert launcher.ended() == exit_codes.FAILED
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
    assert launcher.ended() == (-9 if number == signal.SIGKILL else exit_codes.SIGNAL + number)
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


@pytest.mark.parametrize("option", ["workers", "max-restarts"])
def test_refusals(option, launch):
    launcher = launch(SCRIPT, f"--{option}", "-1")
    assert launcher.ended() == exit_codes.MISCONFIGURED
    assert f"`--{option}` must be at least {int(option == 'workers')}. Received: -1" in launcher.text


def test_a_script_that_is_not_there_starts_nothing(running, tmp_path):
    launcher = running(["-m", "keras_largeout.distribute.launch", str(tmp_path / "none.py")], forked=True)
    assert launcher.ended() == exit_codes.MISCONFIGURED
    assert f"`script` must be the path of a script. Received: {tmp_path / 'none.py'}" in launcher.text
