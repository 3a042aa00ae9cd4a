"""`plan_from`: a plan for the tables of a model, from a sample of the data that it will be trained on."""

import dataclasses
import itertools

import tensorflow as tf

from keras_largeout._keras import all_layers
from keras_largeout.distribute.balance.recording import Recorder, recording
from keras_largeout.distribute.planning.planner import plan


def plan_from(dataset, model, devices=None, steps=100, memory_per_device=None, **options):
    """Plans where the tables of `model` go by the ids that a sample of batches uses.

    The model computes its outputs and losses on the sample, eagerly and untrained, so that ids that are
    made inside of it are seen as well.

    Args:
        dataset: batches as `model.fit` takes them, `x`, `(x, y)` or `(x, y, sample_weight)`.
        model: a built `keras.Model`, compiled where it has output heads.
        devices: int or list of `Device`s; by default so many as the current strategy has.
        steps: int, how many batches are looked at.
        memory_per_device: bytes, see `plan`.
        **options: of `plan`; `batch_size` is by default that of the dataset.

    Returns:
        A `Plan`. Build the model again with it (`placement=plan` in its layers), or move the rows of the one
        that is there (`rebalance(model, plan)`).

    Raises:
        ValueError: the model has no tables, the dataset no batches, or the tables do not fit.
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
    devices = devices or tf.distribute.get_strategy().num_replicas_in_sync
    return plan(counted, devices, memory_per_device=memory_per_device, **options)


def table_specs(model):
    """The `TableSpec`s of all tables of a model, with the slots that its optimizer keeps for them."""
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
