"""Servers as real processes: who may take part, where they listen, how they end."""

import contextlib
import pathlib
import shutil
import signal
import socket
import urllib.request

import keras_largeout_ops
import pytest
from _cluster import SERVER, LocalCluster

from keras_largeout.distribute.processes import exit_codes
from keras_largeout.distribute.processes.heartbeat import answers
from keras_largeout.ops import build_info

pytestmark = pytest.mark.processes

CONNECT = """
from keras_largeout.distribute import strategy
strategy()
print("took part", flush=True)
"""

TRAIN = """
import keras
import tensorflow as tf
import keras_largeout as kl

with kl.distribute.strategy().scope():
    ids = keras.Input((2,), dtype="int32")
    x = keras.layers.Flatten()(kl.layers.ShardedEmbedding(50, 4)(ids))
    model = kl.Model(ids, keras.layers.Dense(1)(x))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
rows = tf.data.Dataset.from_tensors((tf.constant([[1, 2], [3, 4]]), tf.constant([[1.0], [2.0]]))).repeat()
model.fit(rows, steps_per_epoch=6, epochs=2, verbose=0)
print("trained", flush=True)
"""

ON_ONE_PROCESSOR = """
import os, runpy
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
runpy.run_module("keras_largeout.distribute.server", run_name="__main__")
"""

BARE = """
import json, os, time
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.distribute.Server(config["cluster"], task["type"], task["index"], protocol="grpc")
print("bare: is ready", flush=True)
time.sleep(1000)
"""


def _outside_address():
    """An address of this machine that is not loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address = s.getsockname()[0]
    return None if address.startswith("127.") else address


def test_servers_with_one_processor_train(tmp_path):
    """A scheduler may give a process one processor: ops that wait for each other need more threads."""
    cluster = LocalCluster(tmp_path, workers=3, ps=2)
    with contextlib.closing(cluster):
        cluster.start(command=("-c", ON_ONE_PROCESSOR))
        script = cluster.run(TRAIN)
        script.wait_for("trained")
        assert script.ended() == 0


def test_serves_on_loopback_alone_begins_anew_and_stops(new_cluster):
    cluster = new_cluster(1, 1)
    port = cluster.address("ps", 0).rsplit(":", 1)[1]
    assert answers(f"127.0.0.1:{port}", 60.0)
    outside = _outside_address()
    if outside is not None:
        assert not answers(f"{outside}:{port}", 1.0)

    for chief in (1, 2):  # the second one at once: no server has served another before
        script = cluster.run(CONNECT + "import time; time.sleep(1000)")
        script.wait_for("took part")
        for server in cluster.servers.values():
            server.wait_for("sees its chief", times=chief)
        script.send(signal.SIGTERM)
        assert script.ended() == 128 + signal.SIGTERM
    for server in cluster.servers.values():
        server.wait_for("begins again, its chief has ended", times=2)
        server.wait_for("is ready", times=3)

    for server in cluster.servers.values():
        server.send(signal.SIGTERM)
    for server in cluster.servers.values():
        assert server.ended() == exit_codes.SUCCESS
        assert "stops" in server.lines[-1]


def test_a_server_with_a_wrong_description_ends_as_misconfigured(running):
    server = running(["-m", "keras_largeout.distribute.server"], forked=True, TF_CONFIG="{}")
    assert server.ended() == exit_codes.MISCONFIGURED
    assert "TF_CONFIG must describe a cluster with parameter servers" in server.text
    server = running(["-m", "keras_largeout.distribute.server"], forked=True, TF_CONFIG="none")
    assert server.ended() == exit_codes.MISCONFIGURED
    assert "TF_CONFIG must be JSON" in server.text


def test_a_server_serves_metrics(new_cluster):
    pytest.importorskip("prometheus_client")
    cluster = new_cluster(1, 1, start=False)
    cluster.start(command=(*SERVER, "--metrics-port", "0"))
    server = cluster.servers["ps", 0]
    url = f"http://127.0.0.1:{server.wait_for('metrics on port ([0-9]+)').group(1)}"
    with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
        assert answer.status == 200 and answer.read().startswith(b"the last sign of progress is ")
    assert "\nkeras_largeout_has_chief 0.0\n" in urllib.request.urlopen(url, timeout=60).read().decode()
    script = cluster.run(CONNECT + "import time; time.sleep(1000)")
    server.wait_for("sees its chief")
    script.wait_for("took part")
    assert "\nkeras_largeout_has_chief 1.0\n" in urllib.request.urlopen(url, timeout=60).read().decode()


def test_a_chief_that_stands_still_ends_its_servers(new_cluster):
    cluster = new_cluster(1, 1, start=False)
    cluster.start(command=(*SERVER, "--heartbeat-timeout", "10"))
    script = cluster.run(CONNECT + "import time; time.sleep(1000)")
    script.wait_for("took part")
    for server in cluster.servers.values():
        server.wait_for("sees its chief")
    script.send(signal.SIGSTOP)
    for server in cluster.servers.values():
        assert server.ended() == exit_codes.LOST, server.text
        server.wait_for("^chief 0 .* did not answer for 10 s")
        server.wait_for(" ends, its chief stands still")


def test_a_server_without_the_package_is_refused(new_cluster, tmp_path):
    cluster = new_cluster(1, 1, start=False)
    cluster.start(("ps", 0))
    (tmp_path / "bare.py").write_text(BARE)
    cluster.start(("worker", 0), command=[str(tmp_path / "bare.py")], forked=False)
    script = cluster.run(CONNECT)
    assert script.ended() == 1
    name = f"worker 0 ({cluster.address('worker', 0)})"
    assert f"RuntimeError: {name} runs without keras_largeout. Start it with" in script.text
    assert "took part" not in script.text


def test_a_server_with_another_build_is_refused(new_cluster, tmp_path):
    other_path = tmp_path / "other"  # not beside the script, which would import it
    shutil.copytree(pathlib.Path(keras_largeout_ops.__file__).parent, other_path / "keras_largeout_ops")
    library = other_path / "keras_largeout_ops/_largeout_ops.so"
    digest = build_info()["sources"]
    other = digest[::-1]
    library.write_bytes(library.read_bytes().replace(digest.encode(), other.encode()))
    cluster = new_cluster(1, 1, start=False)
    cluster.start(("worker", 0))
    serve = other_path / "serve.py"  # its folder comes first on the path
    serve.write_text("from keras_largeout.distribute.server import main\nmain()\n")
    cluster.start(("ps", 0), command=[str(serve)], forked=False)
    script = cluster.run(CONNECT)
    assert script.ended() == 1
    name = f"parameter server 0 ({cluster.address('ps', 0)})"
    assert f"{name} has another build of keras_largeout than this process" in script.text
    assert digest in script.text and other in script.text


def test_the_chief_waits_and_says_for_whom(new_cluster):
    cluster = new_cluster(1, 1, start=False)
    cluster.start(("worker", 0))
    patient = CONNECT.replace(
        "strategy()\n",
        "from keras_largeout.distribute.processes import waiting as p\np._PATIENCE = 0.5\nstrategy()\n",
        1,
    )
    script = cluster.run(patient)
    line = script.wait_for("Waiting for")
    assert f"parameter server 0 ({cluster.address('ps', 0)})" in line.string and "worker" not in line.string
    cluster.start(("ps", 0))
    assert script.ended() == 0, script.text


def test_one_script_may_be_the_command_of_every_process(new_cluster, tmp_path):
    cluster = new_cluster(1, 1, start=False)
    (tmp_path / "all.py").write_text(CONNECT)
    cluster.start(command=[str(tmp_path / "all.py")])
    script = cluster.run(CONNECT)
    assert script.ended() == 0, script.text
    assert all("took part" not in server.text for server in cluster.servers.values())
