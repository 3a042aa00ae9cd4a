"""What a GPU would be waited for in a traced step, found on a machine that has none.

Where a kernel on the host reads what a kernel on a GPU makes, the host waits until the GPU has done all that
it was given, and then the GPU waits for the host. A copy to a GPU waits for nothing. Logical CPUs stand for
GPUs: CPU:0 is the host, CPU:1 the first GPU. An op without a device is where TensorFlow's placer puts it.

TensorFlow itself inlines the graph and lowers its control flow. Its placer is written again here, as far as
a step needs it: kernels and their priorities, colocated ops, ops with a resource, constants, shapes.
"""

import collections
import inspect

import tensorflow as tf
from conformance._gpu_kernels import kernel_for
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import convert_to_constants, op_def_registry

# Ops whose GPU kernels wait inside: the shape of an output is known on the device alone. Of ours, CTest
# counts the waits of the kernels (`OnStream::Waits`), and `late_errors` of the others are False in no
# graph.
INSIDE = {
    "Where": 1,
    "Unique": 1,
    "UniqueWithCounts": 1,
    "DynamicPartition": 1,
    "SegmentSum": 1,
    "Largeout>EmbeddingGrad": 1,
    "Largeout>PartitionIds": 1,
    "Largeout>TreeSoftmaxLoss": 1,
    "Largeout>TreeTopK": 2,
}
_IN_HOST_MEMORY = {types_pb2.DT_STRING, types_pb2.DT_RESOURCE}
_METADATA = {"Shape", "ShapeN", "Size", "Rank"}
HOST = 0


def functions_of(model):
    """Return the functions of one and of several steps that `fit` calls."""
    inside = inspect.getclosurevars(model.make_train_function()).nonlocals
    return inside["next_step"], inside["next_steps"]


class Step:
    """The graph of a traced function of steps, each of its nodes placed.

    Args:
        function: `ConcreteFunction` whose first output Python reads after each call.
        first: int, the CPU that an op without a device is on: 1, or 0 where the host is a device, too.

    Attributes:
        nodes: name -> NodeDef: those that run.
        device: name -> int.
    """

    def __init__(self, function, first=1):
        self.first, self._read = first, function.outputs[0].op.name
        graph = convert_to_constants._run_inline_graph_optimization(function, True, True)
        inputs = {n.name: [source.strip("^").partition(":")[0] for source in n.input] for n in graph.node}
        run, wanted = set(), [output.op.name for output in function.outputs]
        while wanted:
            name = wanted.pop()
            if name not in run:
                run.add(name)
                wanted += inputs[name]
        self.nodes = {node.name: node for node in graph.node if node.name in run}
        self.device = {}
        for outer, inner in function.graph.captures:
            self.device[inner.op.name] = _number(outer.device) if _of_gpus(outer) else HOST
        self._edges = [edge for node in self.nodes.values() for edge in self._inputs(node)]
        for tensor in function.inputs:  # of an iterator: where it is asked for its data
            asked = {
                self.nodes[node].device for source, _, node, _ in self._edges if source == tensor.op.name
            }
            asked = {_number(device) for device in asked if device}
            self.device.setdefault(tensor.op.name, asked.pop() if len(asked) == 1 else HOST)
        self._place()

    def _inputs(self, node):
        """Yield `(source, its output, node, its input)` of each tensor that it reads: names and numbers."""
        tensors = [source for source in node.input if source[0] != "^"]
        for number, source in enumerate(tensors):
            source, _, output = source.partition(":")
            yield source, int(output or 0), node.name, number

    def _place(self):
        groups = _Groups()
        consumers = collections.defaultdict(set)
        for source, _, node, number in self._edges:
            consumers[source].add(node)
            if self._argument(node, "input", number)[1] == types_pb2.DT_RESOURCE:
                groups.join(source, node)
        for node in self.nodes.values():
            for spec in node.attr["_class"].list.s if "_class" in node.attr else ():
                groups.join(spec.decode().removeprefix("loc:@"), node.name)
        members = collections.defaultdict(list)
        for node in self.nodes.values():
            members[groups.of(node.name)].append(node)
        constants = []
        for node in self.nodes.values():
            if node.name not in self.device:
                self._place_one(node, members[groups.of(node.name)], constants)
        for node in constants:  # with what reads them, where that is on one device
            near = {self.device[name] for name in consumers[node.name] if name in self.device}
            self.device[node.name] = near.pop() if len(near) == 1 else self.first

    def _place_one(self, node, group, constants):
        known = [self.device[other.name] for other in group if other.name in self.device]
        asked = [_number(other.device) for other in group if other.device]
        on_gpus = all(kernel_for(other, "GPU") for other in group if other.name not in self.device)
        source = node.input[0].partition(":")[0] if node.input else None
        if known or asked:
            self.device[node.name] = (known or asked)[0] if on_gpus else HOST
        elif not on_gpus:
            self.device[node.name] = HOST
        elif source is None or source[0] == "^":
            constants.append(node)
        elif node.op in _METADATA and source in self.device:
            self.device[node.name] = self.device[source]
        else:
            cpu, gpu = kernel_for(node, "CPU"), kernel_for(node, "GPU")
            self.device[node.name] = HOST if cpu and cpu.priority > gpu.priority else self.first

    def _argument(self, node, side, number):
        """Return the name and the type of an input or output."""
        node = self.nodes[node]
        return _arguments(node, getattr(op_def_registry.get(node.op), f"{side}_arg"))[number]

    def _is_on_host(self, node, side, number):
        name, kind = self._argument(node, side, number)
        if self.device[node] == HOST or kind in _IN_HOST_MEMORY:
            return True
        kernel = kernel_for(self.nodes[node], "GPU")
        return kernel is None or name in kernel.host

    def _made_by(self, source, output):
        """Return what makes a tensor: TensorFlow removes an Identity between nodes of one device."""
        while self.nodes[source].op == "Identity":
            before = next(self._inputs(self.nodes[source]))
            if self.device[before[0]] != self.device[source]:
                break
            source, output = before[:2]
        return source, output

    def waits(self):
        """Return the names of a call's waits, sorted: "op > op that reads it.argument", or "op, inside"."""
        reads = {}
        for source, output, node, number in self._edges:
            if self.nodes[node].op == "Identity" and self.device[node] != HOST:
                continue
            made = self._made_by(source, output)
            if not self._is_on_host(*made[:1], "output", made[1]) and self._is_on_host(node, "input", number):
                name = self._argument(node, "input", number)[0]
                reads.setdefault(made, f"{self.nodes[made[0]].op} > {self.nodes[node].op}.{name}")
        made = self._made_by(self._read, 0)
        if not self._is_on_host(made[0], "output", made[1]):
            reads[made] = f"{self.nodes[made[0]].op} > Python"
        inside = [node for node in self.nodes.values() if self.device[node.name] != HOST]
        return sorted(
            [*reads.values(), *(f"{n.op}, inside" for n in inside for _ in range(INSIDE.get(n.op, 0)))]
        )

    def crossing(self):
        """Return how many tensors go from one device to another, the host not being one."""
        pairs = {
            (source, output, self.device[node])
            for source, output, node, _ in self._edges
            if self.device[source] != self.device[node]
            and min(self.device[source], self.device[node]) >= self.first
        }
        return len(pairs)


class _Groups:
    """Disjoint sets of names."""

    def __init__(self):
        self._above = {}

    def of(self, name):
        while name in self._above:
            name = self._above[name]
        return name

    def join(self, first, second):
        first, second = self.of(first), self.of(second)
        if first != second:
            self._above[second] = first


def _number(device):
    return tf.DeviceSpec.from_string(device).device_index or 0


def _of_gpus(tensor):
    """Return whether a captured tensor may be a GPU's: variables of int32 are never."""
    handle = getattr(tensor, "_handle_data", None)
    if handle is None or not handle.shape_and_type:
        return True
    node = node_def_pb2.NodeDef(op="VarHandleOp")
    node.attr["dtype"].type = handle.shape_and_type[0].dtype
    return kernel_for(node, "GPU") is not None


def _arguments(node, arguments):
    """Return the `(name, type)` of each tensor of a node."""
    found = []
    for argument in arguments:
        if argument.type_list_attr:
            types = node.attr[argument.type_list_attr].list.type
        else:
            kind = node.attr[argument.type_attr].type if argument.type_attr else argument.type
            types = [kind] * (node.attr[argument.number_attr].i if argument.number_attr else 1)
        found += [(argument.name, kind) for kind in types]
    return found
