"""A process that stands still is told from one that ended, and from one that answers."""

import socket
import types

import pytest

from keras_largeout.distribute.processes import heartbeat
from keras_largeout.distribute.processes.config import Cluster
from keras_largeout.distribute.processes.heartbeat import answers, disconnect


def test_it_tells_silence_from_an_end_and_from_an_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address, 0.05) is None  # the kernel accepts, nobody greets
        server.accept()[0].close()

        with socket.create_connection(server.getsockname()) as connection, server.accept()[0] as greeter:
            disconnect(address)
            connection.settimeout(5.0)
            assert connection.recv(1) == b"" and greeter.recv(1) == b""
    assert answers(address, 5.0) is False


@pytest.fixture
def beat(monkeypatch):
    """`beat(replies)`: a `Heartbeat` of 20 s polls one server; `(how often it was silent, what was said)`.

    Each of the replies is an answer and the seconds that it took.
    """

    def run(*replies):
        clock, left, silent, said = [0.0], list(replies), [], []

        def answer(*_):
            reply, seconds = left.pop(0)
            clock[0] += seconds
            return reply

        monkeypatch.setattr(heartbeat, "answers", answer)
        monkeypatch.setattr(heartbeat, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
        cluster = Cluster({"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)})
        say = lambda text, *values: said.append(text % values)  # noqa: E731
        beats = heartbeat.Heartbeat(cluster, [], 20.0, lambda *task: silent.append(task), say)
        beats._closed = types.SimpleNamespace(wait=lambda _: not left, is_set=lambda: False)
        beats._watch("ps", 0, "c:1")
        return len(silent), said

    return run


SILENT = "parameter server 0 (c:1) did not answer for 20 s."


def test_silence_is_reported_until_there_is_an_answer(beat):
    said = [SILENT, "parameter server 0 (c:1) answers again."]
    assert beat((True, 1), *[(None, 6)] * 4, (True, 1)) == (1, said)
    assert beat((True, 1), *[(None, 6)] * 3, (True, 1)) == (0, [])


def test_a_process_that_has_ended_does_not_answer_again(beat):
    assert beat(*[(None, 10)] * 3, (False, 1)) == (2, [SILENT])


def test_time_in_which_the_polling_process_stood_still_does_not_count(beat):
    assert beat((True, 1), (None, 1000), (True, 1)) == (0, [])
