"""Calls that an op accepts, so that the fuzzer reaches the depth of its kernels: one function per op.

`RECIPES[name](draw)` returns all arguments, inputs and attributes. An op without a recipe is called by its
OpDef alone.
"""

import numpy as np
import tensorflow as tf

FLOATS = (tf.float32, tf.bfloat16)
INTS = (tf.int32, tf.int64)


def _floats(d, shape, dtype=tf.float32):
    return tf.cast(tf.constant(d.rng.normal(size=shape).astype("float32")), dtype)


def _ids(d, shape, limit, dtype):
    return tf.constant(d.rng.integers(0, max(1, limit), shape), dtype)


def _splits(d, n, bags):
    inner = np.sort(d.rng.integers(0, n + 1, max(0, bags - 1)))
    return tf.constant(np.concatenate([[0], inner, [n]]) if bags else [0], tf.int64)


# Embedding.


def _bags(d, rows):
    """The bag inputs, their attributes, and the shape of what they are combined into."""
    ids_type, combiner = d.pick(INTS), d.pick(["none", "sum", "mean", "sqrtn"])
    ragged = combiner != "none" and d.chance(0.5)
    if ragged:
        bags = d.size(1, 20)
        shape = (d.size(0, 60),)
        splits, leading = _splits(d, shape[0], bags), (bags,)
    else:
        shape = tuple(d.size(0, 12) for _ in range(d.pick([1, 2, 3])))
        splits, leading = tf.zeros([0], tf.int64), shape if combiner == "none" else shape[:-1]
    ids = _ids(d, shape, rows, ids_type)
    weights = _floats(d, shape) if d.chance(0.4) else tf.zeros([0])
    inputs = {"ids": ids, "row_splits": splits, "weights": weights}
    return inputs, {"combiner": combiner, "out_of_range": d.pick(["error", "zero"])}, leading


def _embedding(variable, grad):
    def make(d):
        rows, dim, dtype = d.size(1, 50), d.size(0, 70), d.pick(FLOATS)
        inputs, attributes, leading = _bags(d, rows)
        table = _floats(d, (rows, dim), dtype)
        inputs["table"] = d.variable(table) if variable else table
        if grad:
            inputs["grad"] = _floats(d, (*leading, dim), dtype)
        elif variable:
            attributes["dtype"] = dtype
        return {**inputs, **attributes}

    return make


def _embedding_grad(d):
    rows, dim = d.size(1, 50), d.size(0, 70)
    inputs, attributes, leading = _bags(d, rows)
    grad = _floats(d, (*leading, dim), d.pick(FLOATS))
    return {**inputs, **attributes, "grad": grad, "num_rows": tf.constant(rows, tf.int64)}


def _partition(d):
    rows, devices, ids_type = d.size(1, 60), d.size(1, 6), d.pick(INTS)
    kind = d.pick(["identity", "modulo", "permutation", "explicit"])
    hot = np.sort(d.rng.permutation(rows)[: d.size(0, rows)]) if kind != "explicit" else np.zeros(0, int)
    sizes = np.array([rows // devices + (s < rows % devices) + d.size(0, 2) for s in range(devices)])
    position_of = d.rng.permutation(rows) if kind == "explicit" else np.zeros(0, int)
    factors = [m for m in range(1, rows + 1) if np.gcd(m, rows) == 1]
    return {
        "ids": _ids(d, tuple(d.size(0, 30) for _ in range(d.pick([1, 2]))), rows, ids_type),
        "offsets": tf.constant(np.concatenate([[0], np.cumsum(sizes)]) + len(hot), tf.int64),
        "position_of": tf.constant(position_of, tf.int64),
        "hot": tf.constant(hot, tf.int64),
        "kind": kind,
        "rows": rows,
        "devices": devices,
        "multiplier": int(d.pick(factors)),
        "addend": int(d.rng.integers(rows)),
        "out_of_range": d.pick(["error", "zero"]),
    }


# Row update: rule -> (slots, numbers).
_RULES = {
    "sgd": (0, 2),
    "momentum": (1, 3),
    "nesterov": (1, 3),
    "adagrad": (1, 3),
    "row_wise_adagrad": (1, 3),
    "lazy_adam": (2, 5),
    "ftrl": (2, 6),
}


def _rounding(d, dtype):
    """Nothing, or how rows of bfloat16 are rounded stochastically."""
    if dtype != tf.bfloat16 or d.chance(0.5):
        return tf.zeros([0], tf.int64)
    return tf.constant(d.rng.integers(-(2**63), 2**63, 6) >> d.pick([0, 40, 63]), tf.int64)


def _row_update(d):
    rule = d.pick(sorted(_RULES))
    slots, hyper = _RULES[rule]
    shape = (d.size(1, 40), *(d.size(0, 40) for _ in range(d.pick([0, 1, 1, 2]))))
    dtype, n = d.pick(FLOATS), d.size(0, 60)
    indices = d.rng.integers(0, shape[0], n)
    return {
        "variable": d.variable(_floats(d, shape, dtype)),
        "slots": [d.variable(tf.ones(shape[:1] if "row_wise" in rule else shape)) for _ in range(slots)],
        "indices": tf.constant(np.unique(indices) if d.chance(0.3) else indices, d.pick(INTS)),
        "values": _floats(d, (n, *shape[1:]), d.pick(FLOATS)),
        "hyper": tf.constant([0.1] * hyper),
        "rounding": _rounding(d, dtype),
        "rule": rule,
        "dtype": dtype,
        "copy_on_read": d.chance(0.5),
    }


def _embedding_update(d):
    rule = d.pick(sorted(_RULES))
    slots, hyper = _RULES[rule]
    rows, dim, dtype = d.size(1, 50), d.size(0, 70), d.pick(FLOATS)
    inputs, attributes, leading = _bags(d, rows)
    slot_shape = (rows,) if "row_wise" in rule else (rows, dim)
    return {
        **inputs,
        **attributes,
        "variable": d.variable(_floats(d, (rows, dim), dtype)),
        "slots": [d.variable(tf.ones(slot_shape)) for _ in range(slots)],
        "grad": _floats(d, (*leading, dim), dtype),
        "hyper": tf.constant([0.1] * hyper),
        "rounding": _rounding(d, dtype),
        "rule": rule,
    }


# Tree softmax.


def tree(d, classes):
    """A random tree, nodes breadth first: a dict of int32 arrays."""
    groups, inner = [list(range(classes))], []
    starts, row_child, node_row, node_parent, hints = [0], [], [-1], [-1], []
    for node, members in enumerate(groups):  # grows on the way
        count = min(len(members), d.size(1, 8))
        parts = np.array_split(d.rng.permutation(members), count) if count > 1 else [[m] for m in members]
        for part in parts:
            if len(row_child) % 16 == 0:
                hints.append(node)
            if len(part) == 1:
                row_child.append(int(part[0]))
                continue
            inner.append(node)
            node_row.append(len(row_child))
            node_parent.append(node)
            row_child.append(~len(groups))
            groups.append(list(part))
        starts.append(len(row_child))
    class_row = np.argsort([c if c >= 0 else classes for c in row_child], kind="stable")[:classes]
    arrays = {"class_row": class_row, "node_start": starts, "node_row": node_row, "node_parent": node_parent}
    arrays = {**arrays, "row_hint": hints, "row_child": row_child}
    return {name: tf.constant(np.asarray(a, np.int32)) for name, a in arrays.items()}


def _tree_problem(d):
    arrays, dim, dtype = tree(d, d.size(1, 60)), d.size(0, 40), d.pick(FLOATS)
    rows, tokens = arrays["row_child"].shape[0], d.size(0, 40)
    use_bias = d.chance(0.6)
    inputs = {
        "hidden": _floats(d, (tokens, dim), d.pick(FLOATS)),
        "table": d.variable(_floats(d, (rows, dim), dtype)),
        "bias": d.variable(tf.zeros([rows] if use_bias else [0])),
    }
    return inputs, arrays, {"dtype": dtype, "use_bias": use_bias}


def _tree_loss(d):
    inputs, arrays, attributes = _tree_problem(d)
    tokens = inputs["hidden"].shape[0]
    row_child = arrays.pop("row_child")
    classes = arrays["class_row"].shape[0]
    weights = tf.constant(d.rng.integers(0, 3, tokens), tf.float32) if d.chance(0.5) else tf.zeros([0])
    del row_child
    return {
        **inputs,
        **arrays,
        **attributes,
        "targets": _ids(d, (tokens,), classes, d.pick(INTS)),
        "weights": weights,
        "max_saved_bytes": d.pick([0, 100, 2**28]),
        "forest": d.chance(0.1),
        "num_classes": d.pick([0, 0, classes]),
    }


def _tree_grad(d):
    from tests.fuzz.calls import call  # the loss op says what the gradient gets

    arguments = _tree_loss(d)
    saved = call("Largeout>TreeSoftmaxLoss", arguments)[1:]
    names = ("pair_token", "pair_row", "group_node", "group_start", "pair_lse", "probs")
    kept = ("hidden", "weights", "table", "bias", "node_start", "node_parent", "dtype", "use_bias")
    return {
        **{name: arguments[name] for name in kept},
        **dict(zip(names, saved)),
        "grad_loss": _floats(d, arguments["hidden"].shape[:1]),
        "max_saved_bytes": d.pick([0, 100, 2**28]),
    }


def _tree_update(d):
    arguments = _tree_grad(d)
    rule = d.pick(sorted(_RULES))
    slots, hyper = _RULES[rule]
    dim, rows = arguments["hidden"].shape[1], arguments["node_start"].numpy()[-1]
    slot_shape = (rows,) if "row_wise" in rule else (rows, dim)
    return {
        **{name: value for name, value in arguments.items() if name != "table"},
        "variable": arguments["table"],
        "slots": [d.variable(tf.ones(slot_shape)) for _ in range(slots)],
        "hyper": tf.constant([0.1] * hyper),
        "rounding": _rounding(d, arguments["dtype"]),
        "rule": rule,
    }


def _tree_top_k(d):
    inputs, arrays, attributes = _tree_problem(d)
    classes = arrays["class_row"].shape[0]
    return {
        **inputs,
        **attributes,
        "k": tf.constant(d.size(0, classes), tf.int32),
        "node_start": arrays["node_start"],
        "row_child": arrays["row_child"],
        "out_type": d.pick(INTS),
    }


RECIPES = {
    "EmbeddingLookup": _embedding(True, False),
    "EmbeddingGrad": _embedding_grad,
    "EmbeddingWeightsGrad": _embedding(True, True),
    "EmbeddingCombine": _embedding(False, False),
    "EmbeddingCombineGrad": _embedding_grad,
    "EmbeddingCombineWeightsGrad": _embedding(False, True),
    "PartitionIds": _partition,
    "RowUpdate": _row_update,
    "EmbeddingUpdate": _embedding_update,
    "TreeSoftmaxLoss": _tree_loss,
    "TreeSoftmaxGrad": _tree_grad,
    "TreeSoftmaxUpdate": _tree_update,
    "TreeTopK": _tree_top_k,
}
