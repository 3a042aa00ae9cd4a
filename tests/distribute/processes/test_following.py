"""A process that waits for another's end sees it also where a third one takes its place at once."""

import socket
import threading

import pytest

from keras_largeout.distribute.processes import following


@pytest.fixture
def follower(monkeypatch):
    """Starts to follow an address; `seen` and `ended` are set when it says so."""
    monkeypatch.setattr(following, "_LOOK", 0.01)
    seen, ended = threading.Event(), threading.Event()

    def run(address):
        following.follow(address, seen.set)
        ended.set()

    def start(address):
        threading.Thread(target=run, args=(address,), daemon=True).start()
        return seen, ended

    return start


def _listener():
    one = socket.create_server(("127.0.0.1", 0))
    return one, one.getsockname()[1]


def test_it_waits_for_the_process_and_sees_its_end(follower):
    with socket.socket() as taken:  # bound, not listening: refuses
        taken.bind(("127.0.0.1", 0))
        seen, ended = follower(f"127.0.0.1:{taken.getsockname()[1]}")
        assert not seen.wait(0.1)
        taken.listen()
        assert seen.wait(10.0)
        line, _ = taken.accept()
        assert not ended.wait(0.1)
    line.close()
    assert ended.wait(10.0)


def test_it_does_not_have_to_look_at_the_moment_between_two_processes(follower, monkeypatch):
    monkeypatch.setattr(following, "_LOOK", 1000.0)
    one, port = _listener()
    seen, ended = follower(f"127.0.0.1:{port}")
    line, _ = one.accept()
    assert seen.wait(10.0)
    one.close()
    line.close()
    assert ended.wait(10.0)


def test_a_connection_that_ends_is_not_the_end_of_the_process(follower):
    one, port = _listener()
    seen, ended = follower(f"localhost:{port}")
    for _ in range(3):  # as gRPC does with one that is silent
        line, _ = one.accept()
        line.sendall(b"settings")
        line.close()
    line, _ = one.accept()
    assert seen.is_set() and not ended.wait(0.1)
    one.close()
    line.close()
    assert ended.wait(10.0)
