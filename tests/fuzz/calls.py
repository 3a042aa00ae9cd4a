"""Random calls of every op of the compiled library, made from a seed and a number alone.

The ops come from TensorFlow's registry after the library was loaded, so a new one joins by itself.
"""

import functools
import importlib.util
import pathlib
import re

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from tests.fuzz import (  # noqa: F401  (they add theirs)
    recipes_common,
    recipes_fan_in,
    recipes_full_softmax,
    recipes_hashing,
    recipes_records,
    recipes_vocabulary,
)
from tests.fuzz.draws import WILD_SHAPES, Draw, free_attributes
from tests.fuzz.recipes import RECIPES

PREFIX = "Largeout>"
MODES = ("eager",) * 13 + ("constants", "captured", "unknown")
#: What an op may answer. InternalError, UnknownError and all other exceptions are defects.
ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.FailedPreconditionError,
    tf.errors.ResourceExhaustedError,
    tf.errors.NotFoundError,
    tf.errors.UnimplementedError,
    tf.errors.OutOfRangeError,
    ValueError,
    TypeError,
)


@functools.cache
def _library():
    folder = pathlib.Path(importlib.util.find_spec("keras_largeout_ops").origin).parent
    return tf.load_op_library(str(folder / "_largeout_ops.so"))


@functools.cache
def registered():
    """`{name: OpDef}` of the library's ops."""
    _library()
    listed = op_def_pb2.OpList()
    listed.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {op.name: op for op in sorted(listed.op, key=lambda op: op.name) if op.name.startswith(PREFIX)}


@functools.cache
def _function(name):
    plain = re.sub("[>_]", "", name).lower()
    (found,) = [f for f in dir(_library()) if f.replace("_", "") == plain and f == f.lower()]
    return getattr(_library(), found)


def call(name, arguments):
    """One call: its outputs as a list of tensors."""
    return [output for output in tf.nest.flatten(_function(name)(**arguments)) if tf.is_tensor(output)]


class Call:
    """The call number `index` of a seed: `op`, `mode`, `inputs` and `attributes`."""

    def __init__(self, seed, index):
        self.index = index
        rng = np.random.default_rng([seed, index])
        names = list(registered())
        self.op = registered()[names[int(rng.integers(len(names)))]]
        self.mode = MODES[int(rng.integers(len(MODES)))]
        self._draw = d = Draw(rng)
        recipe = RECIPES.get(self.op.name.removeprefix(PREFIX))
        inputs, attributes = d.arguments(self.op)
        if recipe and d.chance(0.7):
            made = recipe(d)
            drawn = inputs
            inputs = {name: made[name] for name in drawn}
            attributes = {name: made.get(name) for name in attributes}
            attributes = {name: value for name, value in attributes.items() if value is not None}
            self._mutate(inputs, attributes, drawn)
        self.inputs, self.attributes = inputs, attributes

    def _mutate(self, inputs, attributes, drawn):
        """Changes none, one or several arguments of a call that would be accepted."""
        d, attrs = self._draw, {a.name: a for a in self.op.attr}
        for _ in range(d.pick([0, 0, 0, 1, 1, 2])):
            names = [*inputs, *free_attributes(self.op)]
            if not names:
                return
            name = d.pick(names)
            if name in attrs:
                attributes[name] = d.attribute(attrs[name])
            elif d.chance(0.3):
                inputs[name] = drawn[name]
            elif isinstance(inputs[name], list):
                inputs[name] = inputs[name][1:] if d.chance(0.5) else [*inputs[name], *inputs[name][:1]]
            else:
                inputs[name] = self._changed(inputs[name])

    def _changed(self, tensor):
        d = self._draw
        if tensor.dtype == tf.resource:
            return d.handle([tf.float32, tf.bfloat16, tf.uint16, tf.uint32])
        kind = 1.0 if _not_constant(tensor) else d.rng.random()
        if kind < 0.35 and tensor.shape.num_elements():  # one other value
            flat = np.array(tensor.numpy()).reshape(-1)
            flat[int(d.rng.integers(len(flat)))] = d.values(tensor.dtype, (1,))[0]
            return tf.constant(flat.reshape(tensor.shape), tensor.dtype)
        if kind < 0.6 and tensor.shape.rank:  # one more or less along an axis
            axis = int(d.rng.integers(tensor.shape.rank))
            before = (slice(None),) * axis
            if d.chance(0.5):
                return tf.concat([tensor, tensor[(*before, slice(0, 1))]], axis)
            return tensor[(*before, slice(1, None))]
        if kind < 0.7:
            return tf.expand_dims(tensor, 0) if d.chance(0.5) else tf.reshape(tensor, [-1])
        return d.tensor(tensor.dtype, d.pick(WILD_SHAPES) if d.chance(0.4) else None)

    def __str__(self):
        parts = [f"{name}={_short(value)}" for name, value in {**self.inputs, **self.attributes}.items()]
        return f"{self.op.name}({', '.join(parts)}) [{self.mode}]"

    def run(self):
        """Calls it. Returns "ok", or "error" where the op has said what is wrong; raises what it must not."""
        try:
            outputs, shapes = self._outputs()
        except ERRORS:
            return "error"
        for output, shape in zip(outputs, shapes):
            if not output.shape.is_compatible_with(shape):
                raise AssertionError(f"the shape function said {shape}, and the op returned {output.shape}")
        return "ok"

    def _outputs(self):
        """The outputs, and what the shape function said of their shapes."""
        name, inputs, attributes = self.op.name, self.inputs, self.attributes
        if self.mode == "eager":
            outputs = call(name, {**inputs, **attributes})
            return outputs, [o.shape for o in outputs]
        tensors = tf.nest.flatten(inputs)
        given = tensors if self.mode == "unknown" else []

        def step(*given):
            made = list(given) or tensors
            if self.mode == "constants":  # values that the shape function sees
                made = [t if _not_constant(t) else tf.constant(t.numpy(), t.dtype) for t in tensors]
            return call(name, {**tf.nest.pack_sequence_as(inputs, made), **attributes})

        specs = [tf.TensorSpec(None, t.dtype) for t in given]
        function = tf.function(step, autograph=False).get_concrete_function(*specs)
        outputs = tf.nest.flatten(function(*given))
        return outputs, [o.shape for o in tf.nest.flatten(function.structured_outputs)]


def _not_constant(tensor):
    return tensor.dtype == tf.resource or tensor.shape.rank > 6 or max([0, *tensor.shape]) >= 2**31


def _short(value):
    if isinstance(value, list):
        return f"[{', '.join(_short(v) for v in value[:6])}{', ...' if len(value) > 6 else ''}]"
    if not tf.is_tensor(value):
        return repr(value)
    shape = [int(s) for s in value.shape]
    if len(shape) > 8:
        shape = f"{len(shape)} axes"
    if value.dtype == tf.resource or _not_constant(value):
        said = getattr(value, "_handle_data", None)
        if said and said.shape_and_type:
            of = said.shape_and_type[0]
            return f"handle{shape} of {tf.as_dtype(of.dtype).name}{[d.size for d in of.shape.dim]}"
        return f"{value.dtype.name}{shape}"
    flat = np.asarray(value.numpy()).reshape(-1)
    values = ", ".join([str(v) for v in flat[:8]] + ["..."] * (len(flat) > 8))
    return f"{value.dtype.name}{shape}{{{values}}}"
