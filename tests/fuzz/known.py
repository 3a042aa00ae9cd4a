"""Calls that once ended the process, hung, or took all memory; each must answer with an error that says why.

`CALLS[name]()` makes the call. `EXPECTED[name]` is a part of its answer.
"""

import numpy as np
import tensorflow as tf

from tests.fuzz.calls import ERRORS, call

_NONE = np.zeros([0], np.int64)
CALLS, EXPECTED = {}, {}


def _known(expected):
    def add(function):
        CALLS[function.__name__] = function
        EXPECTED[function.__name__] = expected
        return function

    return add


def answer(function):
    """What a call came to: "ok" and the shapes of its outputs, or the error."""
    try:
        outputs = function()
    except ERRORS as error:
        return f"{type(error).__name__}: {error}"
    return f"ok {[list(o.shape) for o in outputs]}"


def _empty(shape, dtype=tf.float32):
    return tf.reshape(tf.zeros([0], dtype), tf.constant(shape, tf.int64))


def _op(name, **arguments):
    return call(f"Largeout>{name}", arguments)


def _lookup(ids, table, **attributes):
    inputs = {"ids": ids, "row_splits": _NONE, "weights": tf.zeros([0])}
    return _op("EmbeddingLookup", table=table.handle, **inputs, **{"dtype": tf.float32, **attributes})


@_known("`ids` and `table` must make an output of at most 254 axes and less than 2^63 elements")
def lookup_of_an_output_of_2_to_64_elements():
    return _lookup(_empty([2**62, 0], tf.int64), tf.Variable(tf.ones([2, 4])), combiner="sum")


@_known("`ids` and `table` must make an output of at most 254 axes")
def lookup_of_ids_of_254_axes():
    return _lookup(tf.zeros([1] * 254, tf.int64), tf.Variable(tf.ones([2, 3])))


@_known("`ids` and `table` must make an output of at most 254 axes and less than 2^63 elements")
def combine_in_a_table_of_wide_rows():
    ids, options = tf.constant([[1, 2]] * 3, tf.int64), {"combiner": "none", "out_of_range": "zero"}
    table = _empty([0, 2**62])
    return _op("EmbeddingCombine", table=table, ids=ids, row_splits=_NONE, weights=tf.zeros([0]), **options)


@_known("ok [[4611686018427387904, 0]]")
def lookup_of_2_to_62_empty_bags():
    return _lookup(_empty([2**62, 0], tf.int64), tf.Variable(tf.zeros([2, 0])), combiner="sum")


@_known("ok [[1099511627776, 0]]")
def lookup_of_2_to_40_empty_bags():
    return _lookup(_empty([2**40, 0], tf.int64), tf.Variable(tf.zeros([2, 0])), combiner="mean")


@_known("ok [[0], [0, 0]]")
def gradient_of_2_to_40_empty_bags():
    ids, grad = _empty([2**40, 0], tf.int64), _empty([2**40, 0])
    inputs = {"ids": ids, "row_splits": _NONE, "weights": tf.zeros([0]), "grad": grad}
    return _op("EmbeddingGrad", **inputs, num_rows=tf.constant(2, tf.int64), combiner="mean")


@_known("ok [[1099511627776, 0]]")
def weights_gradient_of_2_to_40_empty_bags():
    ids, empty = _empty([2**40, 0], tf.int64), _empty([2**40, 0])
    inputs = {"ids": ids, "row_splits": _NONE, "weights": empty, "grad": empty}
    return _op("EmbeddingCombineWeightsGrad", table=tf.zeros([2, 0]), **inputs, combiner="sum")


@_known("`values` must have less than 2^63 elements, one row of `variable` per index")
def row_update_of_wide_rows():
    variable = tf.Variable(_empty([0, 2**62]))
    return _op(
        "RowUpdate",
        variable=variable.handle,
        slots=[],
        indices=tf.zeros([3], tf.int64),
        values=tf.zeros([3, 1]),
        hyper=tf.zeros([2]),
        rounding=_NONE,
        rule="sgd",
        dtype=tf.float32,
    )


def _empty_table(shape, dtype):
    return _op("EmptyTable", shape=tf.constant(shape, tf.int64), dtype=dtype)


@_known("`shape` must be that of a table of at most 2^60 bytes. Received: [9223372036854775807]")
def table_of_2_to_63_elements():
    return _empty_table([2**63 - 1], tf.uint16)


@_known("`shape` must be that of a table of at most 2^60 bytes")
def table_of_2_to_64_bytes():
    return _empty_table([2**30, 2**32 - 1], tf.float32)


@_known("ResourceExhaustedError")
def table_of_2_to_60_bytes():
    return _empty_table([2**58], tf.float32)


@_known("`num_inputs` must be in [0, 2^16] where indices are uint16. Received: 2147483647")
def degrees_of_more_inputs_than_uint16_has():
    indices = tf.Variable(tf.zeros([5, 2], tf.uint16))
    return _degrees(indices, 2**31 - 1)


@_known("ResourceExhaustedError")
def degrees_of_2_to_31_inputs():
    return _degrees(tf.Variable(tf.zeros([5, 2], tf.uint32)), 2**31 - 1)


def _degrees(indices, num_inputs):
    inputs = {"indices": indices.handle, "num_inputs": tf.constant(num_inputs, tf.int64)}
    return _op("FanInDegrees", **inputs, Tindices=indices.dtype)


@_known("ResourceExhaustedError")
def connections_whose_free_inputs_fill_the_memory():
    sizes = {"num_rows": 1, "fan_in": 15 * 10**7, "num_inputs": 15 * 10**7, "first_class": 0}
    sizes = {name: tf.constant(size, tf.int64) for name, size in sizes.items()}
    return _op("FanInConnections", **sizes, seed=tf.constant([0, 0], tf.int64), dtype=tf.uint32)


@_known("`first_class` must be in [0, 2^62]. Received: 9223372036854775807")
def connections_of_classes_beyond_all_numbers():
    sizes = {"num_rows": 3, "fan_in": 1, "num_inputs": 3, "first_class": 2**63 - 1}
    sizes = {name: tf.constant(size, tf.int64) for name, size in sizes.items()}
    return _op("FanInConnections", **sizes, seed=tf.constant([0, 0], tf.int64), dtype=tf.uint32)


@_known("ok [[0, 2147483647], [0, 2147483647], [0]]")
def gradients_of_no_classes_of_many_connections():
    many = 2**31 - 1
    operands = {"weights": _variable([0, many], tf.float32), "indices": _variable([0, many], tf.uint32)}
    return _op(
        "FanInLogitsGrad",
        inputs=_empty([0, many]),
        **operands,
        bias=operands["weights"],
        d_logits=tf.zeros([0, 0]),
        dtype=tf.float32,
        Tindices=tf.uint32,
        use_bias=False,
    )


_kept = []


def _variable(shape, dtype):
    _kept.append(tf.Variable(_empty(shape, dtype)))
    return _kept[-1].handle


def _partition(devices):
    return _op(
        "PartitionIds",
        ids=tf.constant([0], tf.int64),
        offsets=tf.constant([0, 5], tf.int64),
        position_of=_NONE,
        hot=_NONE,
        kind="identity",
        rows=5,
        devices=devices,
    )


@_known("`devices` must be less than 2^31 - 1. Received: devices=9223372036854775807")
def partition_among_2_to_63_devices():
    return _partition(2**63 - 1)


@_known("`devices` must be less than 2^31 - 1. Received: devices=9223372036854775807")
def partition_among_2_to_63_devices_in_a_graph():
    return tf.function(lambda: _partition(2**63 - 1), autograph=False)()


@_known("`node_start` and `row_child` must describe one tree")
def top_k_on_a_graph_of_2_to_60_paths():
    nodes = 60  # each has two rows, and both lead to the next node
    row_child = [~min(n + 1, nodes - 1) for n in range(nodes - 1) for _ in range(2)] + [0, 1]
    return _op(
        "TreeTopK",
        hidden=tf.ones([1, 1]),
        k=tf.constant(2, tf.int32),
        table=tf.Variable(tf.zeros([2 * nodes, 1])).handle,
        bias=tf.Variable(tf.zeros([0])).handle,
        node_start=tf.range(0, 2 * nodes + 1, 2),
        row_child=tf.constant(row_child, tf.int32),
        dtype=tf.float32,
        use_bias=False,
    )


@_known("must be outputs of the loss op for the same tree")
def gradient_whose_nodes_share_rows():
    rows = {"table": tf.Variable(tf.zeros([4, 1])).handle, "bias": tf.Variable(tf.zeros([0])).handle}
    ints = {
        "node_start": [0, 3, 1, 4],
        "node_parent": [-1, 0, 0],
        "pair_token": [0, 0],
        "pair_row": [0, 2],
        "group_node": [0, 2],
        "group_start": [0, 1, 2],
    }
    return _op(
        "TreeSoftmaxGrad",
        hidden=tf.ones([1, 1]),
        weights=tf.zeros([0]),
        grad_loss=tf.ones([1]),
        **rows,
        **{name: tf.constant(values, tf.int32) for name, values in ints.items()},
        pair_lse=tf.zeros([2]),
        probs=tf.zeros([0]),
        dtype=tf.float32,
        use_bias=False,
    )


@_known("mpty resource handle")
def a_tensor_of_no_handles():
    handles = tf.stack([tf.Variable(tf.zeros([2, 1])).handle])[:0]
    inputs = {"ids": _NONE, "row_splits": _NONE, "weights": tf.zeros([0])}
    return _op("EmbeddingLookup", table=handles, **inputs, dtype=tf.float32)
