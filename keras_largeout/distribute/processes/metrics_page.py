"""Metrics of a process in the text format of Prometheus, and whether it makes progress, over HTTP."""

import argparse
import contextlib
import socket
import socketserver
import threading
import time
from wsgiref import simple_server

from keras_largeout.distribute.processes.heartbeat import answers

HEALTHY_SECONDS = 60.0  # for a server and the launcher
_ASKS = 5.0  # seconds between two questions of a server to itself


def prometheus(caller):
    """Return the package `prometheus_client`.

    Args:
        caller: str, what needs it.

    Raises:
        ImportError: it is not installed; the error names the extra that brings it.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(
            f"`{caller}` needs prometheus_client: pip install keras-largeout[metrics]"
        ) from error
    return prometheus_client


def add_metrics_options(parser):
    """Add the options of a page of metrics to an `argparse.ArgumentParser`."""
    parser.add_argument(
        "--metrics-port", type=_port, metavar="PORT", help="serve /metrics and /healthz there; 0: a free port"
    )
    parser.add_argument(
        "--metrics-address", default="127.0.0.1", metavar="ADDRESS", help="(default: %(default)s)"
    )


def _port(text):
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535. Received: {text}")
    return int(text)


class MetricsPage:
    """An HTTP server in a thread: `/healthz` answers 200 or 503, every other path gives the metrics.

    It listens on one address, and ends with the process.

    Args:
        caller: str, what an error calls the argument for the port.
        port: int; 0 for a free one.
        address: str, an address or the name of one.
        age: function that returns the seconds since the last sign of progress, or None if there is nothing to
            wait for.
        limit: float, the age from which on `/healthz` answers 503.

    Attributes:
        registry: the `prometheus_client.CollectorRegistry` of the page. It has the metrics of the process:
            memory, processor time, open files.
        port: int, where it listens.

    Raises:
        ImportError: `prometheus_client` is not installed.
        OSError: the address cannot be listened on.
    """

    def __init__(self, caller, port, address, age, limit):
        client = prometheus(caller)
        self.registry = client.CollectorRegistry()
        client.ProcessCollector(registry=self.registry)
        self._metrics, self._age, self._limit = client.make_wsgi_app(self.registry), age, limit
        try:
            family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            kind = type("Server", (_Server,), {"address_family": family})
            self._server = simple_server.make_server(*place[:2], self._answer, kind, _Silent)
        except OSError as error:
            raise OSError(
                error.errno, f"`{caller}` cannot listen on port {port} of {address}: {error.strerror}"
            ) from None
        self.port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, name="keras_largeout_metrics", daemon=True
        ).start()

    def close(self):
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ, start_response):
        if environ["PATH_INFO"] != "/healthz":
            return self._metrics(environ, start_response)
        age = self._age()
        healthy = age is None or age < self._limit
        text = "nothing is under way" if age is None else f"the last sign of progress is {age:.1f} s old"
        start_response("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{text}\n".encode()]


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)  # `WSGIServer` asks for the machine's name, for minutes
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()


class _Silent(simple_server.WSGIRequestHandler):
    def log_message(self, *_):
        """Log nothing."""


class LauncherMetrics:
    """The page of the launcher: which processes run, and how often one was started again.

    Args:
        launcher: `Launcher`.
        port, address: as for `MetricsPage`.
    """

    def __init__(self, launcher, port, address):
        self._launcher = launcher
        page = MetricsPage("--metrics-port", port, address, self._age, HEALTHY_SECONDS)
        page.registry.register(self)
        self.port = page.port

    def _age(self):
        return time.monotonic() - self._launcher.console.looked

    def collect(self):
        """Yield the metrics, as `prometheus_client` asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        up = GaugeMetricFamily(
            "keras_largeout_process_up", "1 for each process that runs", labels=["process"]
        )
        for child in list(self._launcher.children.values()):
            up.add_metric([child.name], 1)
        yield up
        yield CounterMetricFamily(
            "keras_largeout_restarts", "Restarts of --max-restarts", value=self._launcher.restarted
        )


class ServerMetrics:
    """The page of a worker or a parameter server, which asks itself whether its gRPC answers.

    Args:
        cluster: `Cluster` whose task is this process.
        port, address: as for `MetricsPage`.
    """

    def __init__(self, cluster, port, address):
        self._answered = time.monotonic()
        page = MetricsPage("--metrics-port", port, address, self.age, HEALTHY_SECONDS)
        gauge = prometheus("--metrics-port").Gauge
        heartbeat = gauge(
            "keras_largeout_heartbeat_age_seconds",
            "Seconds since the gRPC of this process has answered",
            registry=page.registry,
        )
        heartbeat.set_function(self.age)
        self.has_chief = gauge(
            "keras_largeout_has_chief", "1 while a chief is connected", registry=page.registry
        )
        self.port = page.port
        threading.Thread(target=self._ask, args=(cluster.address,), daemon=True).start()

    def age(self):
        """Return the seconds since the gRPC of this process has answered."""
        return time.monotonic() - self._answered

    def _ask(self, address):
        while True:
            with contextlib.suppress(OSError):
                if answers(address, _ASKS):
                    self._answered = time.monotonic()
            time.sleep(_ASKS)
