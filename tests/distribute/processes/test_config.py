"""What `TF_CONFIG` says, and what is said when it says something else."""

import contextlib
import ipaddress
import json
import socket
import time

import pytest
from _cluster import PATIENCE

from keras_largeout.distribute.processes import listening
from keras_largeout.distribute.processes.config import Cluster, from_environment
from keras_largeout.distribute.processes.listening import free_ports

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


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": " "}, _environment({"worker": ["a:1"]}, "worker")])
def test_one_process_is_no_cluster(environ):
    assert from_environment(environ) is None


def test_hosts_in_step_have_no_parameter_servers():
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]}
    cluster = from_environment(_environment(jobs, "worker", 1))
    assert cluster.is_synchronous and not cluster.is_server
    assert cluster.hosts() == [("chief", 0, "a:1"), ("worker", 0, "b:1"), ("worker", 1, "c:1")]
    assert cluster.others() == cluster.hosts()[:2]
    assert [cluster.name(job, index) for job, index, _ in cluster.hosts()] == [
        "host 0 (a:1)",
        "host 1 (b:1)",
        "host 2 (c:1)",
    ]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG must be JSON"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG must be JSON"),
        ({"TF_CONFIG": json.dumps({"cluster": JOBS})}, "TF_CONFIG must be JSON"),
        (_environment(JOBS, "worker", 2), "must be one of the cluster's. Received: worker 2"),
        (_environment(JOBS, "evaluator"), "must be one of the cluster's"),
        (_environment({"chief": ["a:1"], "ps": ["b:1"]}), "at least one 'worker'"),
        (_environment({**JOBS, "chief": ["a:1", "e:1"]}), "one chief"),
        (_environment({**JOBS, "ps": "d:1"}), r"addresses of 'ps' must be a list.* Received: 'd:1'"),
        (_environment({**JOBS, "ps": {"0": "d:1"}}), r"addresses of 'ps' must be a list"),
        (_environment("d:1"), "TF_CONFIG must be JSON"),
        (_environment({**JOBS, "ps": ["d"]}), r"address of parameter server 0 must be .*Received: 'd'"),
        (_environment({**JOBS, "ps": [":1"]}), r"address of parameter server 0 must be .*Received: ':1'"),
        (_environment({**JOBS, "ps": ["d:"]}), r"address of parameter server 0 must be .*Received: 'd:'"),
        (_environment({**JOBS, "ps": [7]}), r"address of parameter server 0 must be .*Received: 7"),
        (_environment({**JOBS, "worker": ["b:0"]}), r"address of worker 0 must be .* 1 \.\. 65535.*'b:0'"),
        (_environment({**JOBS, "worker": ["b:1", "b:65536"]}), r"address of worker 1 .*'b:65536'"),
        (_environment({**JOBS, "worker": ["b:1", "b:-1"]}), r"address of worker 1 .*'b:-1'"),
        (
            _environment({**JOBS, "worker": ["b:1", "b:1"]}),
            r"different addresses.*'b:1' for worker 0 and ",
        ),
        (_environment({**JOBS, "ps": ["a:1"]}), r"different addresses.*'a:1' for chief 0 and for param"),
        (_environment(JOBS, "worker", "one"), r"index of a task must be an integer.*index='one'"),
        (_environment(JOBS, "worker", -1), r"index of a task must be an integer.*index=-1"),
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
    jobs = {"chief": ("localhost:1",), "worker": ("127.0.0.2:1",), "ps": (f"{host}:2",)}
    assert Cluster(jobs).is_loopback is expected


def test_free_ports_are_different_and_free():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as s:
            s.bind(("127.0.0.1", port))


def _alone_on(port, host="127.0.0.1"):
    return Cluster({"chief": (f"{host}:{port}",), "worker": (f"{host}:1",), "ps": (f"{host}:2",)})


def _device(s):
    return s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0")


def test_keeping_to_loopback():
    with socket.create_server(("", 0)) as s:
        port = s.getsockname()[1]
        for _ in range(2):  # what is restricted already counts, and is left alone
            assert listening.keep_to_loopback(port) == 1
        assert _device(s) == b"lo"
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_server_is_kept_to_loopback_while_it_is_still_starting():
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack, listening.kept_to_address(_alone_on(port)):
        s = stack.enter_context(socket.create_server(("", port)))
        deadline = time.monotonic() + PATIENCE
        while _device(s) != b"lo":
            assert time.monotonic() < deadline
            time.sleep(1e-3)


def test_a_port_that_cannot_be_kept_to_loopback(monkeypatch):
    (port,) = free_ports(1)
    message = rf"chief 0 \(127\.0\.0\.1:{port}\) could not be kept to the loopback"
    with pytest.raises(RuntimeError, match=rf"{message}.*no socket of this process listens"):
        listening.require_address(_alone_on(port))
    with pytest.raises(RuntimeError, match=message), listening.kept_to_address(_alone_on(port)):
        pass

    def refuse(port):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(listening, "keep_to_loopback", refuse)
    with pytest.raises(RuntimeError, match=rf"{message}.*not permitted"):
        listening.require_address(_alone_on(port))


@pytest.mark.parametrize("version", [4, 6])
def test_a_port_answers_on_one_address_of_the_machine(version):
    """Connections to another one that were there before are ended."""
    one, other = ("127.0.0.2", "127.0.0.3") if version == 4 else ("::1", "127.0.0.3")
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = server.getsockname()[1]
    with server, socket.create_connection((other, port)) as early, socket.create_connection((one, port)):
        accepted = [server.accept()[0] for _ in range(2)]
        assert listening.keep_to_addresses(port, [ipaddress.ip_address(one)]) == 1
        assert early.recv(1) == b""  # ended
        for connection in accepted:
            connection.close()
        socket.create_connection((one, port), timeout=PATIENCE).close()
        with pytest.raises(TimeoutError):
            socket.create_connection((other, port), timeout=0.3)


def test_addresses_of_this_machine():
    assert ipaddress.ip_address("127.0.0.1") in listening.addresses_here("localhost")
    assert listening.addresses_here("192.0.2.1") == listening.addresses_here("no.such.host.invalid") == []


def test_a_port_that_cannot_be_kept_to_its_address(caplog):
    """An address of a gateway that forwards it, such as that of a container's machine."""
    (port,) = free_ports(1)
    listening.require_address(_alone_on(port, "192.0.2.1"))
    assert "answers on every interface" in caplog.text and "192.0.2.1" in caplog.text


def test_a_port_in_use_is_named():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does, which would share it
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(OSError, match=rf"chief 0 \(127\.0\.0\.1:{port}\) cannot listen.*in use"):
            listening.require_free_port(_alone_on(port))
    listening.require_free_port(_alone_on(port))
