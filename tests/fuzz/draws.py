"""Random arguments for an op, from its OpDef alone: types, shapes, values, handles of variables."""

import ml_dtypes
import numpy as np
import tensorflow as tf

# Sizes at which sums and products overflow, and ranks at which shapes end. All such tensors have no elements.
WILD_SHAPES = (
    (2**62, 0),
    (0, 2**62),
    (2**40, 0),
    (0, 2**40),
    (2**31, 0),
    (0, 2**31 - 1),
    (2**63 - 1, 0),
    (0, *((1,) * 252)),
    (0, 2**31, 2**31),
)
_LONG_SHAPES = ((1,) * 254, (1,) * 253)
_WILD_INTS = (-1, 0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
_WILD_FLOATS = (0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 1e20)
_NUMPY = {tf.bfloat16: ml_dtypes.bfloat16}
_ANY_TYPE = (tf.float32, tf.bfloat16, tf.int32, tf.int64, tf.uint8, tf.float64, tf.bool, tf.string)


def numpy_type(dtype):
    return _NUMPY.get(dtype, dtype.as_numpy_dtype)


def fitting(values, dtype):
    """The integers among `values` that the dtype has."""
    info = np.iinfo(numpy_type(dtype))
    return [v for v in values if info.min <= v <= info.max]


class Draw:
    """The random choices of one call.

    Args:
        rng: NumPy generator.
    """

    def __init__(self, rng):
        self.rng = rng
        # Few different sizes in one call, so that shapes often fit each other.
        some = [int(rng.integers(0, top)) for top in (3, 6, 12, 40)]
        self.sizes = some + [some[0] + 1, some[1] + 1]
        self.handles = []  # (variable's handle), of this call
        self._alive = []

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, things):
        return things[int(self.rng.integers(len(things)))]

    def size(self, low=0, high=40):
        """Small ones more often."""
        return int(self.rng.integers(low, self.pick([min(low + 3, high), min(low + 10, high), high]) + 1))

    def shape(self, ranks=(0, 1, 1, 1, 2, 2, 2, 3)):
        if self.chance(0.03):
            return self.pick(WILD_SHAPES)
        if self.chance(0.005):
            return self.pick(_LONG_SHAPES)
        return tuple(self.pick(self.sizes) for _ in range(self.pick(ranks)))

    def values(self, dtype, shape):
        """An array of a style that is drawn too: small, ascending, wild, all the same."""
        shape = tuple(shape)
        n = int(np.prod([float(s) for s in shape]))
        kind, rng = numpy_type(dtype), self.rng
        if n == 0:
            return (shape, kind) if len(shape) > 32 or max(shape) >= 2**31 else np.zeros(shape, kind)
        if dtype == tf.string:
            out = np.full(n, b"/nowhere/x", object)  # no path that a call could write to
        elif dtype == tf.bool:
            out = rng.random(n) < 0.5
        elif dtype.is_integer:
            style = self.pick(["small", "small", "small", "ascending", "constant", "wild"])
            if style == "wild":
                out = np.array([self.pick(fitting(_WILD_INTS, dtype)) for _ in range(min(n, 100))], kind)
                out = np.resize(out, n)
            elif style == "constant":
                out = np.full(n, self.pick([0, 1, 2, *self.sizes]), kind)
            elif style == "ascending":
                out = np.minimum(np.cumsum(rng.integers(0, 4, n)) - self.pick([0, 0, 1]), 200)
            else:
                out = rng.integers(-1 if self.chance(0.2) else 0, max(1, self.pick(self.sizes)) + 1, n)
            out = np.maximum(out, 0) if np.iinfo(kind).min == 0 else out
        else:
            out = rng.normal(size=n)
            if self.chance(0.15):
                out[rng.random(n) < 0.3] = self.pick(_WILD_FLOATS)
        out = np.asarray(out).astype(kind)
        return out.reshape(shape) if len(shape) <= 32 else (shape, out)

    def tensor(self, dtype, shape=None):
        value = self.values(dtype, self.shape() if shape is None else shape)
        if isinstance(value, tuple):  # more axes or larger ones than NumPy has
            shape, value = value
            value = tf.constant(np.zeros([0], value) if isinstance(value, type) else value, dtype)
            if len(shape) < 254:
                return tf.reshape(value, tf.constant(shape, tf.int64))
            return tf.expand_dims(tf.reshape(value, shape[1:]), 0)  # which goes further than Reshape
        return tf.constant(value, dtype)

    # Handles.

    def variable(self, value):
        """The handle of a new variable."""
        return self.kept(tf.Variable(value))

    def kept(self, made):
        """The handle of a variable, which lives as long as this call."""
        self._alive.append(made)
        self.handles.append(made.handle)
        return made.handle

    def handle(self, dtypes):
        """A handle that an op might get: mostly of a variable of one of `dtypes`, else of something else."""
        kind = self.rng.random()
        if self.handles and kind < 0.05:
            return self.pick(self.handles)  # the same variable twice
        if kind < 0.86:
            return self.variable(self.tensor(self.pick(dtypes), self.shape((1, 2, 2, 2, 3, 0))))
        if kind < 0.89:
            return self.variable(self.tensor(self.pick(_ANY_TYPE)))
        if kind < 0.93:
            return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2, 3], shared_name=f"unset{self.size()}")
        if kind < 0.96:
            return tf.stack([self.variable(tf.zeros([3, 2]))] * 2)[: self.pick([0, 1, 2])]
        self._alive.append(tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0))
        return self._alive[-1].resource_handle

    # What an OpDef says.

    def attribute(self, attr):
        """A value of an attribute, now and then one that is not allowed."""
        if attr.HasField("default_value") and self.chance(0.4):
            return _plain(attr.type, attr.default_value)
        allowed = attr.allowed_values.list
        if attr.type == "type":
            types = [tf.as_dtype(t) for t in allowed.type] or list(_ANY_TYPE)
            return self.pick(types) if self.chance(0.98) else self.pick(_ANY_TYPE)
        if attr.type == "list(type)":
            types = [tf.as_dtype(t) for t in allowed.type] or list(_ANY_TYPE)
            return [self.pick(types) for _ in range(self.count(attr))]
        if attr.type == "string":
            return (
                self.pick([s.decode() for s in allowed.s] or ["", "a", "fuzz"]) if self.chance(0.99) else "?"
            )
        if attr.type == "bool":
            return self.chance(0.5)
        if attr.type == "int":
            low = attr.minimum if attr.has_minimum else -2
            if self.chance(0.1):
                return int(self.pick([v for v in _WILD_INTS if self.chance(0.2) or v >= low] or [low]))
            return int(low + self.size(0, 12))
        if attr.type == "float":
            return float(self.rng.normal())
        if attr.type == "shape":
            return list(self.shape())
        if attr.type == "list(int)":
            return [self.size() for _ in range(self.count(attr))]
        raise NotImplementedError(f"attributes of type {attr.type}: teach tests/fuzz/draws.py to draw them")

    def count(self, attr):
        return max(attr.minimum if attr.has_minimum else 0, self.pick([0, 1, 1, 2, 3, 5]))

    def arguments(self, op):
        """Inputs and attributes by name, from the OpDef alone: `(arguments, attributes)`."""
        attrs = {a.name: a for a in op.attr}
        numbers = {a.number_attr for a in op.input_arg if a.number_attr}
        chosen = {
            name: self.count(attr) if name in numbers else self.attribute(attr)
            for name, attr in attrs.items()
        }
        types = [t for t in chosen.values() if isinstance(t, tf.DType) and t != tf.resource] or [tf.float32]
        inputs = {arg.name: self.argument(arg, chosen, types) for arg in op.input_arg}
        return inputs, {name: chosen[name] for name in free_attributes(op)}

    def argument(self, arg, chosen, types):
        if arg.type_list_attr:
            return [self.one(t, types) for t in chosen[arg.type_list_attr]]
        dtype = chosen[arg.type_attr] if arg.type_attr else tf.as_dtype(arg.type)
        if arg.number_attr:
            return [self.one(dtype, types) for _ in range(chosen[arg.number_attr])]
        return self.one(dtype, types)

    def one(self, dtype, types=(tf.float32,)):
        return self.handle([*types, tf.float32]) if dtype == tf.resource else self.tensor(dtype)


def free_attributes(op):
    """The names of the attributes that do not follow from the inputs."""
    args = op.input_arg
    follow = {getattr(a, field) for a in args for field in ("type_attr", "number_attr", "type_list_attr")}
    return [a.name for a in op.attr if a.name not in follow]


def _plain(kind, value):
    if kind == "type":
        return tf.as_dtype(value.type)
    if kind == "string":
        return value.s.decode()
    if kind.startswith("list"):
        return [tf.as_dtype(t) for t in value.list.type] or list(value.list.i)
    return {"int": value.i, "bool": value.b, "float": value.f}[kind]
