"""The one place that touches private parts of TensorFlow, where nothing public does the same.

Each function says why it is needed. Where a version of TensorFlow lacks a name, the function raises an
ImportError that says so.
"""

import contextlib
import functools
import logging
import threading
import warnings
import weakref

import tensorflow as tf

from keras_largeout._private import private
from keras_largeout.files.exit_signals import never_leave_inside
from keras_largeout.ops import _library, export_mode
from keras_largeout.ops.labels import is_on_gpu

# The versions on which the tests have run. pyproject.toml allows no others.
KNOWN = ">=2.21,<2.22"
# What `never_wait_for_other_workers` replaces was read in the sources of these.
_EXECUTORS_READ = ("2.21",)
_LOG = logging.getLogger("keras_largeout")
# C++ of TensorFlow (`EagerTensor_init`) calls this module for each tensor that it makes of Python numbers,
# and does not check whether the call raised: a handler of signals that raises there crashes the process.
never_leave_inside("tensorflow.python.eager.context")
_OPS_ARE_SAVED = (
    "This SavedModel may have ops of keras_largeout, which TensorFlow Serving and other programs without the "
    "package cannot load. `keras_largeout.export_saved_model(model, path)` writes one that has the ops of "
    "TensorFlow alone."
)


def _need(owner, name):
    return private(owner, name, "TensorFlow", tf.__version__, KNOWN)


def resource_variable_class():
    """Return the class of a plain `tf.Variable`.

    Why: `tf.Variable(...)` asks the strategy, which would mirror or move the variable. Constructing the class
    does not.
    """
    return _need("tensorflow.python.ops.resource_variable_ops", "ResourceVariable")


@functools.cache
def unread_variable_class():
    """Return the class of a plain `tf.Variable` that is never read as one tensor. `refusal` is the error's
    text.

    Why: every way of reading ends in one method, which is private; but that of the usual class, which
    TensorFlow's C++ reads by itself. Single rows are read and written by ops that take the handle.
    """
    base = _need("tensorflow.python.ops.resource_variable_ops", "UninitializedVariable")
    _need(base, "_read_variable_op")

    class UnreadVariable(base):
        def __init__(self, initial_value, refusal, **kwargs):
            super().__init__(**kwargs)
            self.refusal = refusal
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=initial_value())

        def _read_variable_op(self, *args, **kwargs):
            raise ValueError(self.refusal)

    return UnreadVariable


def refuse_forward_mode():
    """Have `tf.autodiff.ForwardAccumulator` refuse the ops of this package.

    Why: it differentiates the gradient of an op, and fails with errors of the insides of TensorFlow. Nothing
    public says that an op has no forward mode.
    """
    names = (name for name in dir(_library.ops) if name.startswith("Largeout_"))
    cases = _need("tensorflow.python.eager.forwardprop", "_SPECIAL_CASES")
    cases.update((name.replace("_", ">"), _fail_in_forward_mode) for name in names)


def check_no_tangents(tensor):
    """Raise NotImplementedError where a `tf.autodiff.ForwardAccumulator` follows `tensor`.

    Why: no op stands for a gradient that is written in Python, and accumulators are private.
    """
    if _need("tensorflow.python.eager.forwardprop_util", "pack_tangents")([tensor]).tangents:
        _fail_in_forward_mode()


def _fail_in_forward_mode(*_):
    raise NotImplementedError(
        "`tf.autodiff.ForwardAccumulator` must not meet layers of keras_largeout: their ops have no forward "
        "mode. Take gradients with `tf.GradientTape`."
    )


def in_xla():
    """Return whether a function is being traced for XLA (`jit_compile=True`), which knows none of our ops.

    Why: nothing public tells, and XLA's own message names neither the layer nor what to do.
    """
    inside = _need("tensorflow.python.ops.control_flow_util", "GraphOrParentsInXlaContext")
    return inside(tf.compat.v1.get_default_graph())


def gradients_in(graph, outputs, sources, upstream, stop_gradients):
    """Return `tf.gradients` of tensors of `graph`, whichever graph they are asked for in.

    Why: a loop or condition is differentiated in its own graph. `tf.gradients` looks for what has
    computed the outputs in the current graph only.
    """
    gradients = _need("tensorflow.python.ops.gradients_util", "_GradientsHelper")
    return gradients(outputs, sources, upstream, stop_gradients=stop_gradients, src_graph=graph)


def in_graph_of_replica():
    """Return whether a replica can make a call with others (`merge_call`) here: not in its loops and
    conditions.

    Why: TensorFlow only raises where it can't, and nothing public tells before.
    """
    graph = getattr(threading.current_thread(), "graph", None)
    return graph is not None and graph is tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def cpus_per_host(count):
    """A context in which a `MultiWorkerMirroredStrategy` has replicas on `count` logical CPUs of its host.

    Why: it takes all GPUs of a host, or else one CPU, and no argument says otherwise.
    """
    name = "_initialize_local_devices"
    extended = _need(
        "tensorflow.python.distribute.collective_all_reduce_strategy", "CollectiveAllReduceExtended"
    )
    as_tensorflow = _need(extended, name)

    def devices(self, resolver, worker):
        found, kind = as_tensorflow(self, resolver, worker)
        cpus = tuple(f"{worker}/device:CPU:{i}" for i in range(count))
        return (cpus if kind == "CPU" else found), kind

    setattr(extended, name, devices)
    try:
        yield
    finally:
        setattr(extended, name, as_tensorflow)


@contextlib.contextmanager
def without_callbacks():
    """A context in which `tf.debugging.enable_check_numerics` and its like see no ops.

    Why: they look at the values of each op's output, and memory that waits for its values has none.
    """
    context = _need("tensorflow.python.eager.context", "context")()
    callbacks = list(_need(context, "op_callbacks"))
    for callback in callbacks:
        _need(context, "remove_op_callback")(callback)
    try:
        yield
    finally:
        for callback in callbacks:
            _need(context, "add_op_callback")(callback)


def move_to_host(tensor):
    """Have the host make a tensor of integers that a graph makes of its arguments, and of no variable.

    Why: the batch is in host memory, and what casts, cuts and joins its ids is on the GPU of a replica where
    Keras or a model has put it. `tf.device` is for ops that are not made yet, and nothing public moves one.

    Returns:
        bool, whether the tensor is in host memory. If not, its ops stay where they are.
    """
    ops, left = set(), [tensor] if tf.config.list_logical_devices("GPU") else []
    while left:
        tensor = left.pop()
        op = tensor.op if tf.is_symbolic_tensor(tensor) else None
        if op is None:
            if is_on_gpu(getattr(tensor, "device", None)):
                return False
        elif op.type == "Placeholder":
            left += [outer for outer, inner in getattr(op.graph, "captures", ()) if inner is tensor]
        elif is_on_gpu(op.device) or not op.device:
            if not _makes_integers(op):
                return False
            left += [] if op in ops else op.inputs
            ops.add(op)
    for op in ops:
        spec = tf.DeviceSpec.from_string(op.device).replace(device_type="CPU", device_index=0)
        _need(op, "_set_device")(spec.to_string())
    return True


def _makes_integers(op):
    """Return whether an op makes nothing but integers, bools and strings, of its inputs alone."""
    kinds = {output.dtype.is_integer or output.dtype in (tf.bool, tf.string) for output in op.outputs}
    calls = any("func" in attribute.type for attribute in op.op_def.attr)
    return kinds == {True} and not calls and not op.op_def.is_stateful


def is_host_fed(iterator):
    """Return whether the data of a `tf.distribute.DistributedIterator` are in host memory.

    Why: the `tf.distribute.InputOptions` of its dataset said so, and nothing public of the iterator does.
    """
    devices = (device for of_host in _need(iterator, "_iterators") for device in _need(of_host, "_devices"))
    return not any(map(is_on_gpu, devices))


def peer_answers(job, index, seconds):
    """Return whether another host of a `MultiWorkerMirroredStrategy` answers within `seconds`.

    Why: TensorFlow waits forever for one that stands still, and has no public way to ask.

    Returns:
        True; False where its process has ended; None where it is there and does not answer.
    """
    context = _need("tensorflow.python.eager.context", "context")()
    try:
        _need(context, "check_collective_ops_peer_health")(
            f"/job:{job}/replica:0/task:{index}", timeout_in_ms=int(1000 * seconds)
        )
    except tf.errors.DeadlineExceededError:
        return None
    except (tf.errors.UnavailableError, tf.errors.FailedPreconditionError):
        return False
    return True


def tokens_of_dense_sums(strategy, device_type):
    """Return the variables by which a `MultiWorkerMirroredStrategy` orders its sums of dense gradients.

    Why: NCCL can hang where two hosts launch the collectives of two communicators in different orders. Rows
    between GPUs therefore share the token of the dense sums, which is private: all collectives of a GPU run
    in the order in which they were traced.

    Args:
        strategy: `tf.distribute.MultiWorkerMirroredStrategy`.
        device_type: str, the type of the devices in question.

    Returns:
        dict of `(replica, device)` to a variable, for the devices of this host that are of `device_type`.
    """
    launchers = _need(_need(strategy.extended, "_cross_device_ops"), "_launchers")
    return {
        (replica, device): _need(launchers[replica], "_ordering_token")
        for replica, device in enumerate(strategy.extended.worker_devices)
        if tf.DeviceSpec.from_string(device).device_type == device_type
    }


def abort_collectives(message):
    """Ends what this process waits for together with other hosts, in a `tf.errors.UnavailableError`.

    Why: nothing public does.
    """
    context = _need("tensorflow.python.eager.context", "context")()
    _need(context, "abort_collective_ops")(tf.errors.UNAVAILABLE, message)


def stop_before_data_goes(iterator):
    """Have a `tf.distribute.DistributedIterator` stop reading its data before TensorFlow frees them.

    Why: a thread of TensorFlow reads ahead for several devices. When the iterator is deleted, TensorFlow 2.21
    frees the dataset first and waits for the thread afterwards. A thread that is in the middle of a batch
    then reads freed memory, and the process crashes, the more often the slower the data are. TensorFlow
    waits in time where the iterator gets another dataset, so an empty one takes the place of the data.

    Args:
        iterator: any. Other iterators, and one that was given before, stay as they are.
    """
    if not isinstance(iterator, tf.distribute.DistributedIterator) or iterator in _STOPPING:
        return
    _STOPPING.add(iterator)
    for of_host in _need(iterator, "_iterators"):
        reader = _need(of_host, "_iterator")
        resource = getattr(reader, "_multi_device_iterator_resource", None)  # not on one device
        if resource is not None:
            worker, data = _need(of_host, "_worker"), _need(of_host, "_dataset")
            weakref.finalize(reader, _read_nothing, resource, worker, data)


_STOPPING = weakref.WeakSet()


def _read_nothing(resource, worker, data):
    # The garbage collector calls it at any time, also while a graph is traced, which must not get these ops.
    # An OpError is of a host that is gone.
    with tf.init_scope(), contextlib.suppress(tf.errors.OpError), tf.device(worker):
        nothing = tf.data.experimental.to_variant(data.take(0))
        tf.raw_ops.MultiDeviceIteratorInit(dataset=nothing, multi_device_iterator=resource, max_buffer_size=1)


def never_wait_for_other_workers():
    """Keep the workers of a `ClusterCoordinator` running when one of them stands still.

    Why: after every call a thread of the coordinator drops a Python handle of TensorFlow's default executor,
    and dropping it waits for everything under way there, such as the freeing of results on a worker that does
    not answer. All threads share that executor, so one worker that stands still (a swapping machine, a paused
    container) stops them all. Nothing needs this wait: a handle is no executor, and executors that end wait
    by themselves.

    It changes a class of TensorFlow for the whole process, so it is called where a cluster is connected, and
    changes nothing in a version of TensorFlow whose class nobody has read: a worker that stands still then
    stops the others, as it does without this package.
    """
    if tf.__version__.rpartition(".")[0] not in _EXECUTORS_READ:
        _LOG.warning(
            "One worker that stands still will stop the others: keras_largeout prevents this with TensorFlow "
            "%s only. Installed: TensorFlow %s",
            ", ".join(_EXECUTORS_READ),
            tf.__version__,
        )
        return
    drop = _need("tensorflow.python.pywrap_tfe", "TFE_DeleteExecutor")
    executor = _need("tensorflow.python.eager.executor", "Executor")
    _need(executor, "__del__")

    def delete(self):
        try:
            drop(self._handle)
        except TypeError:  # the interpreter is ending, and parts of it are gone
            return

    executor.__del__ = delete


def concrete_function(function, *args):
    """Return the `ConcreteFunction` that `ClusterCoordinator.schedule` runs for a `tf.function` and its
    arguments.

    Why: it looks it up at every call, which takes as long as the rest of scheduling, and nothing public
    tells the specs of per-worker arguments.

    Args:
        function: `tf.function` that the coordinator has run with such arguments, within the same scope.
        args: structures of tensors, or per-worker values.
    """
    module = "tensorflow.python.distribute.coordinator.cluster_coordinator"
    one_of, spec_of = _need(module, "_select_worker_slice"), _need(module, "_maybe_as_type_spec")
    return function.get_concrete_function(*tf.nest.map_structure(spec_of, one_of(0, args)))


class SavesState:
    """A base, before a Keras layer or optimizer, that puts its state into TensorFlow's checkpoints.

    Why: `tf.train.Checkpoint` and `tf.saved_model.save` follow attributes that are variables. Parts of tables
    are in lists, which Keras hides from them, and a part says nothing about which rows it has. So all that
    `save_state` writes is one object for a checkpoint, with the rows in their logical order.

    A subclass calls `track_state` when it is built. It has `built`, `initialized`, `save_state`, `load_state`
    and `state_variables`.
    """

    #: TensorFlow finds it in this attribute, once it is set.
    largeout_state = None

    def save_state(self, store):
        """Write arrays to `store`, a dict."""
        raise NotImplementedError

    def load_state(self, store):
        """Read what `save_state` wrote."""
        raise NotImplementedError

    def state_variables(self):
        """Return a dict from names to the `tf.Variable`s that a SavedModel must have."""
        return {}

    def track_state(self):
        """Make the state known to checkpoints, once there is one. What was restored before is read now.

        (In the graph of a symbolic build nothing would be read: a layer asks again when it is called.)
        """
        if self.largeout_state is None and self.built and self.initialized:
            with tf.init_scope():
                self.largeout_state = _State(self)

    def tracked(self, children):
        """Choose from `children`, the objects that TensorFlow has found by name, those for a checkpoint."""
        return children

    def track_list(self, name, objects):
        """Make the layers or optimizers in a list known to checkpoints."""
        for index, found in enumerate(objects):
            _need(self, "_track_trackable")(found, f"{name}_{index}", overwrite=True)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = self.tracked(dict(_need(super(), "_trackable_children")(save_type, **kwargs)))
        if save_type == "savedmodel":
            if not export_mode.is_exporting():
                warnings.warn(_OPS_ARE_SAVED, stacklevel=1)  # the same line each time: Python shows it once
            if children.pop("largeout_state", None) is not None:
                children.update(self.state_variables())
        return children


class _State(tf.__internal__.tracking.Trackable):
    """The state of a `SavesState`."""

    def __init__(self, owner):
        self.owner = weakref.ref(owner)

    def _serialize_to_tensors(self):
        store = {}
        self.owner().save_state(store)
        return {key: tf.convert_to_tensor(value) for key, value in store.items()}

    def _restore_from_tensors(self, restored_tensors):
        keys, tensors = list(restored_tensors), list(restored_tensors.values())

        def load(*values):
            self.owner().load_state({key: value.numpy() for key, value in zip(keys, values)})

        # Where several processes have variables, TensorFlow restores in a graph.
        return load(*tensors) if tf.executing_eagerly() else tf.py_function(load, tensors, [])
