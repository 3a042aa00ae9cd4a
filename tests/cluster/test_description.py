"""What `TF_CONFIG` says, and what is said when it says something else."""

import json
import socket

import pytest

from keras_largeout.distribute.cluster import config as clusters
from keras_largeout.distribute.cluster.config import Cluster, from_environment, keep_to_loopback
from keras_largeout.distribute.launch import free_ports

JOBS = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def _environment(cluster, kind="chief", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_round_trip():
    cluster = from_environment(_environment(JOBS, "worker", 1))
    assert (cluster.job, cluster.index, cluster.address, cluster.is_server) == ("worker", 1, "c:1", True)
    assert from_environment({"TF_CONFIG": cluster.to_tf_config()}) == cluster
    assert [s[:2] for s in cluster.servers()] == [("worker", 0), ("worker", 1), ("ps", 0)]
    assert cluster.name("ps", 0) == "parameter server 0 (d:1)"


def test_master_is_an_old_name_of_the_chief():
    jobs = {**JOBS, "master": JOBS["chief"]}
    del jobs["chief"]
    assert from_environment(_environment(jobs, "master")).address == "a:1"


@pytest.mark.parametrize(
    "environ", [{}, {"TF_CONFIG": " "}, _environment({"worker": ["a:1", "b:1"]}, "worker")]
)
def test_no_parameter_servers_is_no_cluster_of_this_kind(environ):
    assert from_environment(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG must be JSON"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG must be JSON"),
        ({"TF_CONFIG": json.dumps({"cluster": JOBS})}, "TF_CONFIG must be JSON"),
        (_environment(JOBS, "worker", 2), "must be one of the cluster's. Received: worker 2"),
        (_environment(JOBS, "evaluator"), "must be one of the cluster's"),
        (_environment({"chief": ["a:1"], "ps": ["b:1"]}), "at least one 'worker'"),
        (_environment({**JOBS, "chief": ["a:1", "b:1"]}), "one chief"),
    ],
)
def test_refusals(environ, message):
    with pytest.raises(ValueError, match=message):
        from_environment(environ)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("10.0.0.7", False), ("ps-0.jobs", False)],
)
def test_loopback_addresses(host, expected):
    jobs = {"chief": ("localhost:1",), "worker": ("127.0.0.2:1",), "ps": (f"{host}:1",)}
    assert Cluster(jobs).is_loopback is expected


def test_free_ports_are_different_and_free():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as s:
            s.bind(("127.0.0.1", port))


def test_who_accepts_and_who_refuses():
    with socket.create_server(("127.0.0.1", 0)) as s:
        address = f"127.0.0.1:{s.getsockname()[1]}"
        assert clusters.accepts(address) and not clusters.refuses(address)
    assert clusters.refuses(address) and not clusters.accepts(address)


def test_keeping_to_loopback():
    with socket.create_server(("", 0)) as s:
        port = s.getsockname()[1]
        assert keep_to_loopback(port) == 1
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"
        assert clusters.accepts(f"127.0.0.1:{port}")
