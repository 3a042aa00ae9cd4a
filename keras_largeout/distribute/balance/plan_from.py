"""`plan_from`: a sharding plan for the tables of a model, from a sample of its training data."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_largeout._keras import all_layers
from keras_largeout.distribute.balance.recording import Recorder, recording
from keras_largeout.planning.devices import Device
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.planner import plan
from keras_largeout.replicas.hosts import current_hosts


def plan_from(
    dataset: Iterable,
    model: keras.Model,
    devices: int | Sequence[Device] | None = None,
    steps: int = 100,
    memory_per_device: float | None = None,
    **options: Any,
) -> Plan:
    """Makes a sharding plan for the tables of `model`, from the ids in a sample of batches.

    It calls the model on the sample, eagerly and without training it, and computes its losses. So it also
    counts ids that the model makes itself. Then it calls `plan` with the counts.

    Args:
        dataset: iterable of batches as `model.fit` takes them: `x`, `(x, y)` or `(x, y, sample_weight)`.
        model: a built `keras.Model`. One that has output heads must be compiled.
        devices: int, or a list of `Device`s. None: those of the current strategy and its hosts. Defaults to
            `None`.
        steps: int, how many batches the sample has. Defaults to `100`.
        memory_per_device: None, or bytes; see `plan`. Defaults to `None`.
        **options: other arguments of `plan`. `batch_size` is by default that of the sample.

    Returns:
        A `Plan`. Make the model again with `placement=plan` in its layers. Or move the rows of this model
        by `rebalance(model, plan)`, if the plan has the same shard sizes and replicated rows.

    Raises:
        ValueError: the model has no tables, the dataset has no batches, or the tables do not fit.

    Example:

    ```python
    plan = kl.distribute.plan_from(dataset, make_model(), devices=8, steps=100)
    with kl.distribute.strategy(8).scope():
        model = make_model(placement=plan)   # make_model hands it to its layers
    ```
    """
    specs = table_specs(model)
    if not specs:
        raise ValueError(f"`model` must have layers with large tables. Received: {model!r}")
    recorder, examples, batches = Recorder(), 0, 0
    with recording(recorder):
        for batch in itertools.islice(dataset, steps):
            x, y, weights = _unpack(batch)
            outputs = model(x, training=False)
            if y is not None and getattr(model, "compiled", False):
                model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weights, training=False)
            examples += int(tf.shape(tf.nest.flatten(x, expand_composites=True)[0])[0])
            batches += 1
    if not batches:
        raise ValueError("`dataset` must have at least one batch. Received: none")
    counted = []
    for spec in specs:
        size = spec.rows if spec.tree is None else spec.tree.num_classes
        counts = recorder.counts(spec.name, size)
        if counts is not None:
            spec = dataclasses.replace(spec, counts=counts, ids_per_example=counts.sum() / examples)
        counted.append(spec)
    options.setdefault("batch_size", max(1, examples // batches))
    if not devices:
        devices, hosts = tf.distribute.get_strategy().num_replicas_in_sync, current_hosts()
        options.setdefault("hosts", hosts.count)
    return plan(counted, devices, memory_per_device=memory_per_device, **options)


def table_specs(model):
    """List of the `TableSpec`s of all tables of a model, with the slots of its optimizer."""
    layers = [layer for layer in all_layers(model) if hasattr(layer, "table_specs")]
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    slots, row_slots = getattr(optimizer, "slots_of_a_table", (0, 0))
    specs = [spec for layer in layers for spec in layer.table_specs()]
    return [dataclasses.replace(spec, slots=slots, row_slots=row_slots) for spec in specs]


def _unpack(batch):
    if not isinstance(batch, tuple):
        return batch, None, None
    return (*batch, None, None)[:3]
