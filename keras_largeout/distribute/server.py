"""A worker or a parameter server: `python -m keras_largeout.distribute.server`.

It loads the package's ops into TensorFlow's own server, and serves until SIGTERM. What it is, it reads from
`TF_CONFIG`, or from `--cluster`, `--job` and `--index`.

When its chief ends, the server starts afresh in the same process. No other chief can take over the weights
that it holds, and TensorFlow would keep them for minutes, while the next chief makes its own. When its chief
stands still, the server ends.

TensorFlow's gRPC is neither authenticated nor encrypted: whoever reaches the port can run what they like. A
cluster belongs on a private network. One whose addresses are all loopback (127.0.0.1, localhost) listens on
loopback alone. That keeps the network out, not the other users of the machine: where there are any whom you
would not let run code as you, run no cluster on it.
"""

import argparse
import json
import os
import signal
import sys

import tensorflow as tf

from keras_largeout.distribute.processes.config import cluster_of, from_environment
from keras_largeout.distribute.processes.exit_codes import LOST, SUCCESS
from keras_largeout.distribute.processes.following import follow
from keras_largeout.distribute.processes.heartbeat import Heartbeat, add_heartbeat_option
from keras_largeout.distribute.processes.listening import require_address, require_free_port
from keras_largeout.distribute.processes.metrics_page import ServerMetrics, add_metrics_options
from keras_largeout.ops import build_info


class _Stopped(BaseException):
    """A signal has told this process to end."""


def serve(cluster, metrics=None, heartbeat_timeout=60.0):
    """Runs the server of this process's task until SIGTERM or SIGINT, then ends the process.

    It also ends, with exit code `LOST`, when its chief has stood still for `heartbeat_timeout`.

    Args:
        cluster: `Cluster` whose task is a worker or a parameter server.
        metrics: the `ServerMetrics` of this process, or None.
        heartbeat_timeout: float, seconds within which the chief must answer once it was there.

    Raises:
        ValueError: it is the chief.
        OSError: the port is taken, or may not be.
        RuntimeError: the addresses are loopback, and the port could not be kept to it.
    """
    if not cluster.is_server:
        raise ValueError(
            f"A server must be a worker or a ps (the chief runs the script). Received: {cluster.job}"
        )
    title = cluster.name(cluster.job, cluster.index)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        _serve_one_chief(cluster, title, metrics, heartbeat_timeout)
        print(f"keras_largeout: {title} begins again, its chief has ended", flush=True)
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)
    except _Stopped:
        print(f"keras_largeout: {title} stops", flush=True)
        sys.stderr.flush()
        os._exit(SUCCESS)


def _stop(*_):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise _Stopped


def _serve_one_chief(cluster, title, metrics, heartbeat_timeout):
    sources = build_info()["sources"]
    require_free_port(cluster)
    server = tf.distribute.Server(
        tf.train.ClusterSpec({job: list(hosts) for job, hosts in cluster.addresses.items()}),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=_threads(cluster)),
        start=False,  # it listens, and answers nobody yet
    )
    require_address(cluster)
    server.start()  # it cannot be shut down: its threads end with the process, or where another begins in it
    print(f"keras_largeout: {title} is ready, ops {sources}", flush=True)

    chief = cluster.addresses["chief"][0]

    def seen():
        print(f"keras_largeout: {title} sees its chief", flush=True)
        if metrics is not None:
            metrics.has_chief.set(1)
        Heartbeat(cluster, [("chief", 0, chief)], heartbeat_timeout, silent)

    def silent(*_):
        print(f"keras_largeout: {title} ends, its chief stands still", flush=True)
        sys.stderr.flush()
        os._exit(LOST)

    follow(chief, seen)


def _threads(cluster):
    """Return how many ops of a server may run at once: one for each processor, or more.

    An op may wait for those of another worker. With a thread for each worker and one more, as TensorFlow's
    own clusters in one process have, some op always goes on, also where a process has one processor.
    """
    return max(len(os.sched_getaffinity(0)), len(cluster.addresses["worker"]) + 1)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m keras_largeout.distribute.server", description=__doc__)
    parser.add_argument(
        "--cluster", type=json.loads, help='{"chief": ["host:port"], "worker": [..], "ps": [..]}'
    )
    parser.add_argument("--job", choices=("worker", "ps"))
    parser.add_argument("--index", type=int, default=0, help="number within the job (default: 0)")
    add_metrics_options(parser)
    add_heartbeat_option(parser)
    options = parser.parse_args(arguments)
    try:
        cluster, metrics = _cluster(options), None
        if options.metrics_port is not None:
            metrics = ServerMetrics(cluster, options.metrics_port, options.metrics_address)
            print(f"keras_largeout: metrics on port {metrics.port}", flush=True)
        serve(cluster, metrics, options.heartbeat_timeout)
    except (ValueError, ImportError) as error:
        parser.error(str(error))


def _cluster(options):
    if options.cluster is not None:
        return cluster_of(options.cluster, options.job or "", options.index)
    cluster = from_environment()
    if cluster is None:
        raise ValueError(
            "TF_CONFIG must describe a cluster with parameter servers, or give --cluster and --job"
        )
    return cluster if options.job is None else cluster.task(options.job, options.index)


if __name__ == "__main__":
    main()
