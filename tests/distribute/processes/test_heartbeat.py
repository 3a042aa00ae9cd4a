"""A process that stands still is told from one that ended, and from one that answers."""

import socket

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
