"""Fixtures that start real processes: servers of a cluster, synchronous hosts, scripts."""

import os

import pytest
from _cluster import LocalCluster, Running

from tests.distribute.hosts._local import LocalHosts


@pytest.fixture
def new_cluster(tmp_path):
    """`new_cluster(workers, ps)`: a `LocalCluster`, its servers up (`start=False`: not yet)."""
    made = []

    def make(workers=2, ps=2, start=True):
        made.append(LocalCluster(tmp_path, workers, ps))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def running():
    """`running(command)`: a `Running` process (`command` follows `python`), ended with the test."""
    made = []

    def make(command, forked=False, **environment):
        made.append(Running(command, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"} | environment, forked))
        return made[-1]

    yield make
    for process in made:
        process.close()


@pytest.fixture
def run_alone(running, tmp_path):
    """`run_alone(source)`: the script in a process without a cluster, when it has ended."""

    def run(source, **environment):
        path = tmp_path / "alone.py"
        path.write_text(source)
        process = running([str(path)], forked=True, **environment)
        assert process.ended() == 0, process.text
        return process

    return run


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def new_hosts(tmp_path):
    """`new_hosts(source, count, *arguments)`: `LocalHosts` that run a script; they end with the test."""
    made = []

    def make(source, count, *arguments, **environment):
        script = tmp_path / "script.py"
        script.write_text(source)
        made.append(LocalHosts(script, count, arguments, **environment))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()
