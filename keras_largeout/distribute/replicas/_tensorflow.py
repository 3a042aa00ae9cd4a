"""The one place that touches private parts of TensorFlow, where nothing public does the same."""

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, executor
from tensorflow.python.framework.ops import get_default_graph
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

__all__ = ["ResourceVariable", "in_xla", "is_alive", "never_wait_for_other_workers"]


def never_wait_for_other_workers():
    """Lets the workers of a `ClusterCoordinator` run when one of them stands still.

    After every call a thread of the coordinator drops a Python handle of TensorFlow's default executor, and
    dropping it waits for everything under way there, such as the freeing of results on a worker that does not
    answer. All threads share that executor, so one worker that stands still (a swapping machine, a paused
    container) stops them all. Nothing needs this wait: a handle is no executor, and executors that end wait
    by themselves.
    """

    def delete(self):
        try:
            pywrap_tfe.TFE_DeleteExecutor(self._handle)
        except TypeError:  # the interpreter is ending, and parts of it are gone
            return

    executor.Executor.__del__ = delete


def in_xla():
    """Whether a function is being traced for XLA (`jit_compile=True`), which knows none of our ops."""
    return GraphOrParentsInXlaContext(get_default_graph())


def is_alive(job, index):
    """Whether a process of the cluster answers, and is still the one that this process connected to."""
    return context.context().check_alive(f"/job:{job}/replica:0/task:{index}")
