"""What a step waits for on a GPU: each layer has a budget. `_waits.py` finds it without a GPU."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from conformance._gpu_kernels import SOURCES, own_kernels
from conformance._layers import BATCH, LAYERS
from conformance._waits import Step, functions_of
from tensorflow.python.framework import op_def_registry

import keras_largeout as kl
from keras_largeout.ops.embedding.wrapper import embedding_combine
from keras_largeout.ops.exchange import partition_ids
from keras_largeout.ops.labels import on_the_host
from keras_largeout.planning.placement import Placement
from keras_largeout.replicas.collectives import AllToAll
from keras_largeout.replicas.host_fed import HostFed
from keras_largeout.replicas.hosts import Hosts
from keras_largeout.tables.hierarchical_exchange import HostDedupExchange, partition_positions

# Waits, and their reasons. "op > op that reads it.argument": what the first makes on a GPU the second reads
# on the host.

# Keras's mse: TensorFlow computes the shape of the gradient of a mean over the last axis on the device.
# None where the size of a batch is static.
MEAN = ["DynamicStitch > Reshape.shape"]
# How many pairs of token and node there are, which the sizes of outputs are.
TREE = ["Largeout>TreeSoftmaxLoss, inside"]
# Which tokens count: those that do not are left out of the products, which costs less than they would.
ACTIVE = ["Where, inside"]
# Targets are checked, and candidates are drawn until enough of them are different. Seeds of stateless
# random numbers are in host memory.
CANDIDATES = [
    "ArgMax > AddV2.x",
    "LogicalAnd > LoopCond.input",
    "Squeeze > Less.x",
    "StatelessRandomUniformFullIntV2 > Pack.values",
    "Switch > StatelessRandomGetKeyCounter.seed",
    "Unique > Equal.x",
    "Unique, inside",
    "Unique, inside",
    "UniqueWithCounts, inside",
]
# No logQ, for which the number of draws is counted. A sum over the candidates has the gradient of a mean.
COMPARED = [*MEAN, *(wait for wait in CANDIDATES if not wait.startswith(("ArgMax >", "Unique >")))]
# The margin looks up the rows of the targets, which are checked; their gradient is summed by class.
MARGIN = [
    "Largeout>EmbeddingGrad, inside",
    "Squeeze > Less.x",
    "StridedSlice > UnsortedSegmentSum.num_segments",
]
# Ids are checked, and items that were not given left out; which rows those are is found twice, and the sizes
# of a global batch are on the device.
ITEMS = [
    "DynamicStitch > Reshape.shape",
    "Maximum > ResourceGather.indices",
    "Prod > Pack.values",
    "Prod > Pack.values",
    "Reshape > Less.x",
    "Where, inside",
    "Where, inside",
]
# Keras's own Embedding, of 32-bit ids: its gradient has their number.
KERAS_EMBEDDING = ["SelectV2 > Size.input"]
# Rows and slots are in host memory: gradients go there, and so does the learning rate.
OFFLOADED = [
    "Pack > Largeout>RowUpdate.hyper",
    "Reshape > Largeout>RowUpdate.indices",
    "Reshape > Largeout>RowUpdate.values",
]
# Ids are mapped on the host.
VOCABULARY = ["Reshape > Reshape.tensor"]

WAITS = {
    "ShardedEmbedding": MEAN,
    "DistributedEmbedding": MEAN,
    "HierarchicalSoftmax": TREE,
    "FullSoftmax": ACTIVE,
    "SampledSoftmax": MEAN + ACTIVE + CANDIDATES,
    "FullSoftmax, vocabulary": ACTIVE + VOCABULARY,
    "FullSoftmax, cosine": MEAN + ACTIVE + MARGIN,
    "SampledSoftmax, cosine": MEAN + ACTIVE + CANDIDATES,
    "SampledSoftmax, contrastive": MEAN + ACTIVE + COMPARED,
    "Retrieval": MEAN + ITEMS,
    "SparseOutput": [],
    "SparseOutput, fused": [],
    "HierarchicalSoftmax, fused": TREE,
    "ShardedEmbedding, fused": MEAN,
    "SparseDense": MEAN,
    "SparseDense, fused": MEAN,
    "CategoryHashing": MEAN,
    "Positions": MEAN + KERAS_EMBEDDING,
    "GroupBy": MEAN,
    "ShardedEmbedding, max": MEAN,
    "ShardedEmbedding, host": MEAN + OFFLOADED,
    "ShardedEmbedding, vocabulary": MEAN + VOCABULARY,
    "DistributedEmbedding, fused": MEAN,
}
# On two GPUs: (waits, tensors from GPU to GPU, nodes). For ids that a GPU makes of weights, random numbers or
# floats, each replica waits for the sizes of what it sends.
MIRRORED = {
    "ShardedEmbedding": (2, 11, 720),
    "DistributedEmbedding": (2, 11, 950),
    "HierarchicalSoftmax": (24, 28, 1160),
    "FullSoftmax": (6, 29, 1180),
    "SampledSoftmax": (40, 25, 1710),
    "FullSoftmax, vocabulary": (7, 39, 1360),
    "FullSoftmax, cosine": (4, 43, 1600),
    "SampledSoftmax, cosine": (24, 15, 1540),
    "SampledSoftmax, contrastive": (22, 15, 1530),
    "Retrieval": (16, 24, 1500),
    "SparseOutput": (0, 27, 1020),
    "SparseOutput, fused": (0, 24, 1060),
    "HierarchicalSoftmax, fused": (24, 31, 1290),
    "ShardedEmbedding, fused": (2, 14, 840),
    "SparseDense": (2, 13, 820),
    "SparseDense, fused": (2, 16, 940),
    "CategoryHashing": (2, 11, 810),
    "Positions": (8, 13, 840),
    "GroupBy": (2, 11, 720),
    "ShardedEmbedding, max": (2, 11, 910),
    "ShardedEmbedding, host": (7, 6, 720),
    "ShardedEmbedding, vocabulary": (3, 15, 860),
    "DistributedEmbedding, fused": (2, 19, 1340),
}


def model_on(row, strategy):
    case = LAYERS[row]
    with strategy.scope():
        keras.utils.set_random_seed(7)
        model = case.model()
        model.compile(kl.optimizers.LazyAdam(0.01), loss=case.loss(model))
        model.optimizer.build(model.trainable_variables)
    return model


def step_of(row, devices=1, several=False, first=1, drop_remainder=False):
    strategy = strategy_of(devices, beside_host=devices > 1 and first == 1)
    dataset = tf.data.Dataset.from_tensor_slices(LAYERS[row].data()).batch(BATCH, drop_remainder)
    with tf.device("CPU:1") if devices == 1 else strategy.scope():
        model = model_on(row, strategy)
        one, many = functions_of(model)
        with tf.device(None):
            iterator = iter(model.distribute_strategy.experimental_distribute_dataset(dataset))
        traced = (many, iterator, tf.constant(5)) if several else (one, iterator)
        return Step(traced[0].get_concrete_function(*traced[1:]), first)


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("several", [False, True], ids=["one step", "several steps"])
@pytest.mark.parametrize("row", LAYERS)
def test_waits_of_a_step(row, several, gpus):
    """Where a wait is gone, its line goes; a new one needs a reason."""
    assert step_of(row, several=several).waits() == sorted(WAITS[row])


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("row", LAYERS)
def test_predict_waits_for_its_outputs_alone(row, gpus):
    """The function is Keras's own."""
    x = LAYERS[row].data()[0]
    with tf.device("CPU:1"):
        model = model_on(row, strategy_of(1))
        model.make_predict_function()
        batch = tf.TensorSpec((None, *x.shape[1:]), x.dtype)
        waits = Step(model.predict_function.get_concrete_function([(batch,)])).waits()
    # Ids that a vocabulary maps on the host are cast first.
    others = ["Cast > Reshape.tensor"] if row == "ShardedEmbedding, vocabulary" else []
    assert [wait for wait in waits if not wait.endswith("> Python")] == others


@pytest.mark.full
def test_averages_of_tables(gpus, monkeypatch):
    """They take the rows of the gradient, which are not fused into the update: no other wait."""
    averaging = functools.partial(kl.optimizers.LazyAdam, use_ema=True)
    monkeypatch.setattr(kl.optimizers, "LazyAdam", averaging)
    waits = step_of("ShardedEmbedding").waits()
    assert waits == [*MEAN, "Largeout>EmbeddingGrad, inside"]


LISTS = {
    kl.layers.FullSoftmax: [
        "DynamicStitch > Reshape.shape",
        "Largeout>EmbeddingGrad, inside",
        "StridedSlice > UnsortedSegmentSum.num_segments",
    ],
    kl.layers.HierarchicalSoftmax: TREE,
}


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("weights", [None, (9,), (9, 3)], ids=["no weights", "of tokens", "of targets"])
@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_targets(kind, weights, gpus):
    """Which pairs of token and target count is found where the targets are, whatever weighs them."""
    data = [np.ones([9, 4], "float32"), np.ones([9, 3], "int32")]
    data += [] if weights is None else [np.ones(weights, "float32")]
    iterator = iter(tf.data.Dataset.from_tensor_slices(tuple(data)).batch(4))
    with tf.device("CPU:1"):
        inputs, head = keras.Input((4,)), kind(20)
        model = kl.Model(inputs, head(keras.layers.Dense(4)(inputs)))
        model.compile(kl.optimizers.LazyAdam(0.1), head.loss)
        waits = Step(functions_of(model)[0].get_concrete_function(iterator)).waits()
    assert waits == LISTS[kind]


@pytest.mark.parametrize("devices", [1, 2])
def test_batches_of_a_static_size(devices, gpus):
    for row in ("ShardedEmbedding", "DistributedEmbedding"):
        assert not step_of(row, devices, drop_remainder=True).waits()


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("row", MIRRORED)
def test_strategies(row, gpus):
    """Waits, tensors that go from GPU to GPU, and nodes: on two GPUs none is above its budget."""
    step = step_of(row, devices=2)
    found = len(step.waits()), step.crossing(), len(step.nodes)
    assert all(np.less_equal(found, MIRRORED[row])), (found, step.waits())


@pytest.mark.full
def test_several_steps_on_several_devices(gpus):
    """TensorFlow hands the next batch from turn to turn by a GPU."""
    waits = step_of("ShardedEmbedding", devices=2, several=True).waits()
    assert waits == [*2 * MEAN, "Identity > NextIteration.data"]


@pytest.mark.full
def test_seven_devices_beside_the_host(gpus):
    step = step_of("ShardedEmbedding", devices=7)
    assert step.crossing() <= 126 and len(step.nodes) <= 2980


@pytest.mark.full
def test_eight_devices():
    """They grow with the square of the devices. (The host is one of them here.)"""
    step = step_of("ShardedEmbedding", devices=8, first=0)
    assert step.crossing() <= 266 and len(step.nodes) <= 3550


@pytest.mark.full
def test_rows_between_hosts(gpus):
    """The exchange of two hosts of two GPUs, as one of them traces it. The test itself reads a sum."""
    strategy, placement = strategy_of(2, beside_host=True), Placement.by_modulo(40, 4)
    hosts = Hosts(2, 0, strategy.extended.worker_devices)

    def gradient(ids, table):
        with on_the_host():
            partition = partition_ids(ids, placement.offsets, "modulo", placement.rows, placement.devices)
        with tf.GradientTape() as tape:
            tape.watch(table)
            exchange = HostDedupExchange(hosts, placement, partition)
            route = AllToAll(hosts, exchange.send)
            with on_the_host():
                here = partition_positions(placement, route.forward(exchange.positions))
            rows = route.reverse(embedding_combine(tf.gather(table, here.local), here.inverse))
            output = embedding_combine(exchange.scatter(rows), partition.inverse, combiner="sum")
        return tape.gradient(output, table).values

    @tf.function
    def step(iterator):
        found = strategy.run(gradient, next(iterator))
        return tf.add_n(map(tf.reduce_sum, strategy.experimental_local_results(found)))

    data = np.zeros((8, 3), "int64"), np.zeros((8, 4), "float32")
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(8, drop_remainder=True)
    iterator = iter(HostFed(strategy).experimental_distribute_dataset(dataset))
    found = Step(step.get_concrete_function(iterator))
    assert found.waits() == ["AddN > Python"]


class Planted(keras.layers.Layer):
    """Waits for nothing that its name does not say."""

    def __init__(self, wait):
        super().__init__()
        self.wait = wait

    def call(self, x):
        if self.wait == "where":
            return tf.gather(x, tf.where(x[:, 0] < 9.0)[:, 0])
        if self.wait == "cond":
            return tf.cond(tf.reduce_all(x < 9.0), lambda: x, lambda: 2.0 * x)
        if self.wait == "no kernel":
            return tf.strings.to_number(tf.strings.as_string(x))
        if self.wait == "shape":
            return tf.reshape(x, [tf.cast(tf.reduce_sum(tf.zeros([tf.shape(x)[0]])), tf.int32) - 1, 3])
        return tf.reshape(x, [tf.shape(x)[0], 3])


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("wait", "found"),
    [
        ("nothing", []),
        ("where", ["Where, inside"]),
        ("cond", ["All > Switch.pred"]),
        ("no kernel", ["BiasAdd > AsString.input"]),
        ("shape", ["Cast > Sub.x"]),
    ],
)
def test_planted_waits_are_found(wait, found, gpus):
    x = np.zeros((8, 3), "float32")
    iterator = iter(tf.data.Dataset.from_tensor_slices((x, x)).batch(4, drop_remainder=True))
    with tf.device("CPU:1"):
        inputs = keras.Input((3,))
        model = kl.Model(inputs, Planted(wait)(keras.layers.Dense(3)(inputs)))
        model.compile("sgd", lambda y, y_pred: tf.reduce_sum(tf.stop_gradient(y_pred)) + tf.reduce_sum(y))
        model.layers[1].trainable = False
        waits = Step(functions_of(model)[0].get_concrete_function(iterator)).waits()
    assert waits == found


def test_kernels_of_our_ops_are_read():
    """All that a source registers for GPUs is found, with the arguments that are in host memory."""
    sources = "".join(path.read_text() for path in SOURCES.rglob("op/*_gpu_op.cc"))
    sources = re.sub(r'TypeConstraint<[^>]*>\("\w+"\)', "", sources)
    found = own_kernels()
    named = set(re.findall(r'"(?:Largeout>)?([A-Z]\w+)"', sources)) - {"Tindices"}
    assert named <= {name.partition(">")[2] for name in found}
    assert {kernel.host for kernel in found["Largeout>EmbeddingLookup"]} == {("table",)}
    assert {kernel.host for kernel in found["Largeout>FullSoftmax"]} == {("table", "bias"), ()}
    for name, kernels in found.items():
        known = op_def_registry.get(name)
        arguments = {argument.name for argument in [*known.input_arg, *known.output_arg]}
        attributes = {attribute.name for attribute in known.attr}
        for kernel in kernels:
            assert arguments.issuperset(kernel.host) and attributes.issuperset(kernel.types), name
