"""The arithmetic of the hosts benchmark: its predictions, and how it reads its measurements."""

import dataclasses
import socket

import numpy as np
import pytest

from benchmarks._processes import bytes_sent
from benchmarks.hosts import __main__ as report
from benchmarks.hosts import prediction
from benchmarks.hosts.prediction import Cluster, Work
from keras_largeout.replicas.collectives import _sizes

WORK = Work(
    tables=((1000, 1), (500, 8)),
    exponent=1.1,
    dim=16,
    slots=1,
    dense=300,
    top_rows=20,
    top_rows_of_all=30,
    below=0.5,
    path_rows=40.0,
    exchanges=10,
)


def test_unique_rows():
    weights = np.arange(1, 301) ** -1.1
    draw = np.random.default_rng(0).choice(300, (400, 64), p=weights / weights.sum())
    drawn = np.mean([len(np.unique(row)) for row in draw])
    assert prediction.unique_rows(300, 1.1, 64) == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize("mean", [30, 1000])
@pytest.mark.parametrize("hosts", [2, 4, 64])
def test_padding(mean, hosts):
    rng = np.random.default_rng(0)
    means = mean * np.exp(rng.uniform(-0.5, 0.5, 300))
    largest = np.array([rng.poisson(m, hosts**2).max() for m in means])
    sent = _sizes()[np.searchsorted(_sizes(), largest)]
    found = prediction.padding(mean, hosts)
    assert found == pytest.approx(np.mean(sent / means), rel=0.06)


def test_no_padding_without_other_hosts():
    assert prediction.padding(100, 1) == 1.0


def test_bytes_between():
    parts = prediction.bytes_between(WORK, 32, hosts=4, gpus=2, padded=False)
    unique = prediction.unique_rows(1000, 1.1, 2 * 32) + prediction.unique_rows(500, 1.1, 2 * 32 * 8)
    assert parts["rows"] == pytest.approx(3 / 4 * unique * (8 + 2 * 64))
    assert parts["hidden"] == pytest.approx(2 * 3 / 4 * 16 * (2 * 64 + 8 + 8))
    assert parts["top"] == pytest.approx(3 * (20 + 30) / 4 * (64 + 4 + 16))
    three = prediction.bytes_between(WORK, 32, hosts=3, gpus=2, padded=False)
    assert three["top"] == 2 * 20 * (64 + 4 + 16)
    padded = prediction.bytes_between(WORK, 32, hosts=4, gpus=2)
    assert all(padded[part] > parts[part] for part in parts)
    assert not any(prediction.bytes_between(WORK, 32, hosts=1, gpus=2).values())


def test_one_gpu_is_the_measure():
    found = prediction.predicted(WORK, 32, Cluster(1, 1))
    assert found["efficiency"] == 1.0
    assert found["seconds"] == found["compute"] > Cluster(1, 1).launch
    assert not any(found[part] for part in ("within", "between", "waits", "all-reduce"))


def test_a_step_is_the_sum_of_its_parts():
    cluster = Cluster(8, 8)
    parts = prediction.step_seconds(WORK, 32, cluster)
    found = prediction.predicted(WORK, 32, cluster)
    assert found["seconds"] == pytest.approx(sum(parts.values()))
    assert found["examples_per_second"] == pytest.approx(64 * 32 / found["seconds"])
    faster = dataclasses.replace(cluster, between=4 * cluster.between)
    faster = prediction.step_seconds(WORK, 32, faster)
    assert faster["between"] == pytest.approx(parts["between"] / 4)
    assert faster["compute"] == parts["compute"] and faster["all-reduce"] < parts["all-reduce"]


def test_padding_of_what_was_counted():
    blocks = [[16, "float32", 2, 100, 110, 125], [1, "int64", 1, 10, 10, 10]]
    needed, largest, sent = report.padding_of(blocks)
    assert (needed, largest, sent) == (6480, 7120, 8080)


def test_the_goal_decides_how_it_ends(monkeypatch):
    keys = ("examples_per_second", "wire_bytes", "processor_seconds", "exchange_seconds")
    found = dict.fromkeys(keys, 10.0)
    monkeypatch.setattr(report, "measure", lambda *_: found)
    for sent, code in ((124, 0), (126, 1)):
        found["blocks"] = [[16, "float32", 2, 100, 110, sent]]
        assert report.main(["--quick"]) == code
    found = {"error": "no memory"}
    assert report.main(["--quick"]) == 1


def test_bytes_of_connections():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, server.accept()[0] as other:
            before = bytes_sent([port])
            one.sendall(bytes(1000))
            other.sendall(bytes(500))
            other.recv(1000, socket.MSG_WAITALL)
            one.recv(500, socket.MSG_WAITALL)
            assert bytes_sent([port]) - before == 1500
            assert bytes_sent([port + 1 if port < 65535 else 1]) == 0
