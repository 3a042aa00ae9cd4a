"""A worker or a parameter server: `python -m keras_largeout.distribute.server`.

It loads the package's ops into TensorFlow's own server, and serves until SIGTERM. What it is, it reads from
`TF_CONFIG`, or from `--cluster`, `--job` and `--index`.

When its chief ends, the server starts afresh in the same process. No other chief can take over the weights
that it holds, and TensorFlow would keep them for minutes beside those of the next chief.

TensorFlow's gRPC is neither authenticated nor encrypted: whoever reaches the port can run what they like. A
cluster belongs on a private network; one whose addresses are all of this machine listens on loopback alone.
"""

import argparse
import json
import os
import signal
import sys
import threading

import tensorflow as tf

from keras_largeout.distribute.cluster.config import Cluster, from_environment, keep_to_loopback, refuses
from keras_largeout.ops import build_info

_LOOK = 1.0  # seconds between two looks at the chief


def serve(cluster):
    """Runs the server of this process's task until SIGTERM or SIGINT, then ends the process.

    Args:
        cluster: `Cluster` whose task is a worker or a parameter server.
    """
    if not cluster.is_server:
        raise ValueError(
            f"A server must be a worker or a ps (the chief runs the script). Received: {cluster.job}"
        )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = tf.distribute.Server(
        tf.train.ClusterSpec({job: list(hosts) for job, hosts in cluster.addresses.items()}),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
    )
    if cluster.is_loopback:
        keep_to_loopback(int(cluster.address.rsplit(":", 1)[1]))
    title = cluster.name(cluster.job, cluster.index)
    print(f"keras_largeout: {title} is ready, ops {build_info()['sources']}", flush=True)
    chief = cluster.addresses["chief"][0]
    seen = False
    while not stopped.wait(_LOOK):
        gone = refuses(chief)
        if seen and gone:
            print(f"keras_largeout: {title} begins anew, its chief has ended", flush=True)
            sys.stderr.flush()
            os.execv(sys.executable, sys.orig_argv)
        if not seen and not gone:
            seen = True
            print(f"keras_largeout: {title} sees its chief", flush=True)
    print(f"keras_largeout: {title} stops", flush=True)
    sys.stderr.flush()
    del server  # TensorFlow's server cannot be shut down: its threads end with the process.
    os._exit(0)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m keras_largeout.distribute.server", description=__doc__)
    parser.add_argument(
        "--cluster", type=json.loads, help='{"chief": ["host:port"], "worker": [..], "ps": [..]}'
    )
    parser.add_argument("--job", choices=("worker", "ps"))
    parser.add_argument("--index", type=int, default=0, help="number within the job (default: 0)")
    options = parser.parse_args(arguments)
    if options.cluster is not None:
        addresses = {job: tuple(hosts) for job, hosts in options.cluster.items()}
        cluster = Cluster(addresses, options.job or "", options.index)
    else:
        cluster = from_environment()
        if cluster is None:
            parser.error(
                "TF_CONFIG must describe a cluster with parameter servers, or give --cluster and --job"
            )
        if options.job is not None:
            cluster = cluster.task(options.job, options.index)
    serve(cluster)


if __name__ == "__main__":
    main()
