"""The strategy of a cluster: TensorFlow's own, with its servers checked and its weights spread by bytes."""

import contextlib

import tensorflow as tf

from keras_largeout.distribute.cluster.errors import ServerLostError, WorkersSilentError
from keras_largeout.distribute.cluster.server_watch import ServerWatch
from keras_largeout.distribute.processes.exit_codes import exit_as_lost
from keras_largeout.distribute.processes.listening import kept_to_address, require_free_port
from keras_largeout.distribute.processes.waiting import telling_who_is_missing
from keras_largeout.files.exit_signals import leave_on_sigterm
from keras_largeout.ops import build_info
from keras_largeout.replicas import devices


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` of a `Cluster`, for its chief.

    It waits for the servers and says which one it waits for, refuses servers that have another build of this
    package's ops or none, and places each weight on the server that holds the fewest bytes.

    Args:
        cluster: `distribute.cluster.Cluster`; this process is its chief.
        exchange_dtype: None, or the dtype in which float32 rows and hidden vectors travel.
        heartbeat_timeout: float, seconds without an answer after which a worker or server is given up.

    Raises:
        OSError: the port of this process is taken, or may not be.
        RuntimeError: a server has other ops than this process, or none; or the addresses are loopback, and
            this process's port could not be kept to it.
    """

    def __init__(self, cluster, exchange_dtype=None, heartbeat_timeout=60.0):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({job: list(hosts) for job, hosts in cluster.addresses.items()}),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
        require_free_port(cluster)
        with telling_who_is_missing(cluster), kept_to_address(cluster):
            super().__init__(resolver)
        check_servers(cluster)
        self.cluster, self.exchange_dtype = cluster, exchange_dtype
        self.watch = ServerWatch(cluster, heartbeat_timeout)
        self._anchors = {}
        with super().scope():
            servers = devices.table_devices()
        for server in servers:
            with tf.device(server):
                self._anchors[server] = tf.Variable(0, trainable=False, name="anchor")

    def scope(self):
        """Return TensorFlow's scope, in which variables are spread over the parameter servers by their
        bytes.
        """
        return _scopes(super().scope(), tf.variable_creator_scope(self._place))

    def _place(self, next_creator, **kwargs):
        # A slot that must be beside its weight comes with a place already.
        if kwargs.get("colocate_with") is None:
            kwargs["colocate_with"] = self._anchors[devices.least_loaded_server(0)]
        variable = next_creator(**kwargs)
        if variable.shape.is_fully_defined():
            devices.reserve(variable.device, variable.shape.num_elements() * variable.dtype.size)
        return variable


_connected = {}


def connect(cluster, exchange_dtype=None, heartbeat_timeout=60.0):
    """Return the strategy of a cluster, made once: a process can connect only once.

    Raises:
        ValueError: it was made with another `exchange_dtype`.
    """
    key = cluster.to_tf_config()
    if key not in _connected:
        _connected[key] = ParameterServerStrategy(cluster, exchange_dtype, heartbeat_timeout)
        leave_on_sigterm()
        exit_as_lost(lambda error: isinstance(error, (ServerLostError, WorkersSilentError)))
    made = _connected[key]
    if made.exchange_dtype != exchange_dtype:
        raise ValueError(
            f"`exchange_dtype` must be what this process connected with, {made.exchange_dtype!r}. "
            f"Received: exchange_dtype={exchange_dtype!r}"
        )
    return made


def check_servers(cluster):
    """Asks every worker and parameter server for the build of its ops.

    Raises:
        RuntimeError: one has another build than this process, or has not loaded the package.
    """
    own = build_info()
    for job, index, _ in cluster.servers():
        title = cluster.name(job, index)
        try:
            with tf.device(f"/job:{job}/replica:0/task:{index}/device:CPU:0"):
                theirs = build_info()
        except tf.errors.NotFoundError:
            raise RuntimeError(
                f"{title} runs without keras_largeout. Start it with "
                "`python -m keras_largeout.distribute.server`."
            ) from None
        if theirs.get("sources") != own["sources"] or _minor(theirs) != _minor(own):
            raise RuntimeError(
                f"{title} has another build of keras_largeout than this process. "
                f"Install the same one everywhere. Received: {_describe(theirs)}, here {_describe(own)}"
            )


def _minor(info):
    return info["tensorflow"].split(".")[:2]


def _describe(info):
    return f"ops {info.get('sources', 'without a digest')} for TensorFlow {info['tensorflow']}"


@contextlib.contextmanager
def _scopes(*scopes):
    with contextlib.ExitStack() as stack:
        entered = [stack.enter_context(scope) for scope in scopes]
        yield entered[0]
