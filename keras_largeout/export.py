"""Export: a SavedModel of stock TensorFlow ops, which any server can load without this package."""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_largeout._keras import all_layers
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model, written_by_first
from keras_largeout.files.atomic_write import put, scratch_in
from keras_largeout.ops import export_mode
from keras_largeout.replicas.devices import plain_variable
from keras_largeout.tables.export_proxy import write_tables

_LARGEST_CONSTANT = 16 * 2**20
_AUTOMATIC_NAME = "keras_tensor"


def export_saved_model(
    serving: keras.Model,
    path: str | os.PathLike,
    input_signature: Any = None,
    overwrite: bool = True,
    table_dtype: str | None = None,
) -> None:
    """Writes `serving` as a SavedModel that consists of stock TensorFlow ops alone.

    Layers of this package take their path of stock ops while the model is traced (inference mode). Variables
    are streamed to disk once each, only those that the model reads; no table is copied in memory, and one
    that is on several devices is written as the one variable that it is elsewhere. The folder appears under
    its name when it is complete.

    The signatures `serving_default` and `serve`, which are the same, take the model's inputs by their names
    (`inputs`, or `inputs_0`, `inputs_1`, ..., where they were not named) and return a dict: the keys of a
    model that returns a dict, else `output_0`, `output_1`, ... The attribute `serve` of the loaded object
    takes the inputs in order, in a list, or in a dict by their names.

    An input that is ragged in `serving` is dense in the signatures: `[batch, n]`, each row filled up at its
    end with -1 (strings with "", floats with NaN), n of any size. The graph takes the padding away, so the
    answers are those of the ragged rows.

    `tf.lite.TFLiteConverter.from_saved_model` converts it to TFLite's own ops, but for a tree of more than 50
    thousand classes, the search of which has ops that TFLite lacks.

    Args:
        serving: `keras.Model`, built. Functional, sequential or subclassed. Its inputs are dense, or ragged
            of rank 2, `[batch, (n)]`.
        path: the folder to write.
        input_signature: `tf.TensorSpec` or a list, tuple or dict of them, as the model takes them. Needed
            where the model does not know its inputs (a subclassed one); otherwise the model's own. Defaults
            to `None`.
        overwrite: whether an existing SavedModel at `path` is replaced. Anything else never is. Defaults to
            `True`.
        table_dtype: None, the tables as they are; or "int8": rows of embeddings, of trees and of the kernels
            of softmax heads in int8, each with a float32 scale. A quarter of the bytes; a value is off by
            1/254 of the largest one of its row at most. They are quantized in memory, which takes half the
            bytes of a float32 table. Defaults to `None`.

    Raises:
        ValueError: the inputs are unknown, sparse, or ragged of another rank; the graph holds an op of this
            package, or a constant above 16 MB; the model reads state that it does not own.
        FileExistsError: `path` exists and must not be replaced.

    Example:

    ```python
    serving = head.predictor(model, k=10)
    kl.export_saved_model(serving, "export/1")
    served = tf.saved_model.load("export/1")  # in any process, without keras_largeout
    served.serve(tokens)["ids"]
    ```
    """
    if table_dtype not in (None, "int8"):
        raise ValueError(f"`table_dtype` must be None or 'int8'. Received: table_dtype={table_dtype!r}")
    if not isinstance(serving, keras.Model):
        raise ValueError(f"`serving` must be a keras.Model. Received: {type(serving).__name__}")
    path, hosts = pathlib.Path(path), hosts_of_model(serving)
    if hosts.is_first:
        _check_target(path, overwrite)
    structure, specs, ragged = _input_specs(serving, input_signature)

    def serve(*inputs):
        inputs = [_without_padding(x) if is_ragged else x for x, is_ragged in zip(inputs, ragged)]
        outputs = serving(tf.nest.pack_sequence_as(structure, inputs), training=False)
        return _named_outputs(outputs)

    # The context covers saving, which may trace again.
    with export_mode.stock_ops(int8=table_dtype == "int8"):
        module = tf.Module()
        core = tf.function(serve, input_signature=specs, autograph=False)
        concrete = core.get_concrete_function()
        module.serve = _in_every_way(core, specs)
        _check_ops(concrete)
        _check_captures(concrete)
        module.state = _captured_state(serving, concrete)
        # By it a delta finds what it was made for: `serving/apply.py`.
        module.version = plain_variable(secrets.token_hex(16), trainable=False, name="version")
        # In the order in which they were met, which is that of all hosts: they read them together.
        arrays = {id(variable): array for array, variable in export_mode.stand_ins().values()}
        order = {key: number for number, key in enumerate(arrays)}
        owners = [(i, id(owner)) for i, owner in enumerate(module.state) if id(owner) in arrays]
        tables = {
            f"state/{i}/.ATTRIBUTES/VARIABLE_VALUE": arrays[owner]
            for i, owner in sorted(owners, key=lambda pair: order[pair[1]])
        }
        with written_by_first(hosts, path) as there:
            _write(module, concrete, tables, pathlib.Path(there))


@contextlib.contextmanager
def stock_ops() -> Iterator[None]:
    """A context in which layers of this package use TensorFlow's own ops, so that others can export them.

    For what saves models in other ways than `export_saved_model` does: `model.export`,
    `keras.export.ExportArchive`, `tf.saved_model.save`, a converter. Functions that were traced before keep
    the ops that they have, so trace and save within the context.

    Tables must be in one piece: those on several devices only `export_saved_model` writes.

    Example:

    ```python
    with kl.stock_ops():
        model.export("export/1")
    ```
    """
    with export_mode.stock_ops(stand_ins=False):
        yield


def _in_every_way(core, specs):
    """Return a function that takes what `core` takes in order, in a list, or in a dict by names."""
    names = [spec.name for spec in specs]

    def serve(*inputs):
        if len(inputs) == 1 and isinstance(inputs[0], dict):
            inputs = [inputs[0][name] for name in names]
        elif len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
            inputs = inputs[0]
        return core(*inputs)

    every = tf.function(serve, autograph=False)
    every.get_concrete_function(*specs)
    every.get_concrete_function(specs)
    every.get_concrete_function(dict(zip(names, specs)))
    return every


def _input_specs(serving, input_signature):
    """Return the structure of the model's inputs; for each a dense, named spec, and whether it is ragged."""
    if input_signature is None:
        if not getattr(serving, "inputs", None):
            raise ValueError(
                "`input_signature` must be given for a model that does not know its inputs (a subclassed "
                f"one). Received: input_signature=None for the model {serving.name!r}"
            )
        # A functional model knows the structure of its inputs; a sequential one has a single input.
        input_signature = serving.input if not isinstance(serving, keras.Sequential) else serving.inputs[0]
    leaves = tf.nest.flatten(input_signature)
    names = [getattr(leaf, "name", None) for leaf in leaves]
    if isinstance(input_signature, dict):
        names = sorted(input_signature)
    ragged = [isinstance(leaf, tf.RaggedTensorSpec) or getattr(leaf, "ragged", False) for leaf in leaves]
    specs = []
    for i, (leaf, name, is_ragged) in enumerate(zip(leaves, names, ragged)):
        sparse = isinstance(leaf, tf.SparseTensorSpec) or getattr(leaf, "sparse", False)
        if sparse or (is_ragged and len(leaf.shape) != 2):
            raise ValueError(f"The inputs of `serving` must be dense, or ragged of rank 2. Received: {leaf}")
        if not name or name.startswith(_AUTOMATIC_NAME):
            # Automatic names count all tensors of a process: another run would have another signature.
            name = "inputs" if len(leaves) == 1 else f"inputs_{i}"
        specs.append(tf.TensorSpec(leaf.shape, leaf.dtype, name))
    if len({spec.name for spec in specs}) < len(specs):
        raise ValueError(f"The inputs must have different names. Received: {[s.name for s in specs]}")
    return input_signature, specs, ragged


def _without_padding(x):
    """Return the ragged rows `[batch, (n)]` of a dense tensor that padding fills up at the end."""
    if x.dtype.is_floating:
        kept = ~tf.math.is_nan(x)
    else:
        kept = x != ("" if x.dtype == tf.string else tf.constant(-1, x.dtype))
    lengths = tf.reduce_max(tf.where(kept, tf.range(1, tf.shape(x)[1] + 1), 0), axis=1)
    return tf.RaggedTensor.from_tensor(x, tf.maximum(lengths, 0))


def _named_outputs(outputs):
    if isinstance(outputs, dict):
        return outputs
    return {f"output_{i}": tensor for i, tensor in enumerate(tf.nest.flatten(outputs))}


def _check_ops(concrete):
    graph = concrete.graph.as_graph_def()
    nodes = list(graph.node) + [node for function in graph.library.function for node in function.node_def]
    ours = sorted({f"{node.op} (node {node.name!r})" for node in nodes if node.op.startswith("Largeout>")})
    if ours:
        raise ValueError(
            "The exported graph must consist of stock TensorFlow ops, and some layer has none for what the "
            f"model asks of it. Received: {', '.join(ours)}"
        )
    for node in nodes:
        if node.op == "Const" and node.attr["value"].tensor.ByteSize() > _LARGEST_CONSTANT:
            _fail_large(node.name, node.attr["value"].tensor.ByteSize())


def _check_captures(concrete):
    for tensor in concrete.captured_inputs:
        if tensor.dtype not in (tf.resource, tf.variant, tf.string):
            size = tensor.shape.num_elements() * tensor.dtype.size
            if size > _LARGEST_CONSTANT:
                _fail_large(f"of shape {tensor.shape}", size)


def _fail_large(what, size):
    raise ValueError(
        f"Constants must be at most {_LARGEST_CONSTANT >> 20} MB: they are stored in the graph, which cannot "
        f"exceed 2 GB. Keep large arrays in variables. Received: constant {what}, {size / 2**20:.0f} MB"
    )


def _captured_state(serving, concrete):
    """Return the variables and lookup tables that the graph reads: what the SavedModel must own.

    They are in the order in which the graph met them, which is the same in every export of a model.
    """
    needed = {id(tensor): tensor for tensor in concrete.captured_inputs if tensor.dtype == tf.resource}
    order, state = list(needed), {}

    def take(owner, handle):
        if needed.pop(id(handle), None) is not None:
            state[id(handle)] = owner

    for variable in concrete.graph.variables:
        take(variable, variable.handle)
    for layer in all_layers(serving):
        for value in vars(layer).values():
            if isinstance(value, tf.saved_model.experimental.TrackableResource):  # such as a vocabulary
                take(value, value.resource_handle)
    if needed:
        raise ValueError(
            "The model must own the state that it reads: a resource is held by none of its layers. "
            f"Received: {[str(tensor) for tensor in needed.values()]}"
        )
    return [state[key] for key in order]


def _check_target(path, overwrite):
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "saved_model.pb").is_file():
        raise FileExistsError(f"`path` must be new, or a SavedModel to replace. Received: {path}")
    if not overwrite:
        raise FileExistsError(f"`path` exists, and overwrite=False. Received: {path}")


def _write(module, concrete, tables, path):
    """Writes in the folder of `path`, then renames: nobody ever sees half a model there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_in(path.parent) as scratch:
        new = pathlib.Path(scratch, "new")
        tf.saved_model.save(module, str(new), signatures={"serving_default": concrete, "serve": concrete})
        if tables:
            write_tables(new / "variables" / "variables", tables, pathlib.Path(scratch, "parts"))
        put(str(new), str(path))
