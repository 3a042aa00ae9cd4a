"""Stages: the calls of a functional model, one run of them per device, with micro-batches in between.

All of the model is one computation with its own gradient. So the gradients of a weight, of several
micro-batches or of several stages, are summed on the device where it is, before anybody else sees them.
TensorFlow runs what does not depend on one another at the same time, and that is the pipeline: no schedule is
written down. All micro-batches go forward, then all go backward, as in
[Huang et al., 2019](https://arxiv.org/abs/1811.06965).
"""

import keras
import tensorflow as tf

from keras_largeout import _head_annotations
from keras_largeout._keras import (
    all_layers,
    compute_graph_by,
    graph_calls,
    mask_of,
    uncast,
    with_mask,
)
from keras_largeout.distribute.parallel.losses import losses_collected
from keras_largeout.distribute.parallel.microbatches import concat_microbatches, microbatches
from keras_largeout.distribute.parallel.on_device import (
    own,
    penalised_weights,
    penalties_known,
    refuse_replicas,
)
from keras_largeout.distribute.parallel.recording import Recorded, sum_there, with_gradients_there
from keras_largeout.distribute.parallel.transfers import note_transfer
from keras_largeout.ops import export_mode


def run_in_stages(model, plan, microbatches=1, remat=False):
    """Make a functional model compute its outputs in the stages of a plan. Its weights move to their devices.

    Args:
        model: functional model; it is changed.
        plan: `StagePlan` of its calls.
        microbatches: int, into how many parts each batch is cut.
        remat: bool, whether the backward pass computes again what else a stage would keep.
    """
    calls = graph_calls(model)
    stages = [
        _Stage(device.name, [calls[i] for i in stage]) for device, stage in zip(plan.devices, plan.stages)
    ]
    wanted = {id(tensor) for tensor in model.outputs}
    for stage in reversed(stages):
        made = {id(t): t for call in stage.calls for t in call.outputs}
        takes = {id(t): t for call in stage.calls for t in call.inputs if id(t) not in made}
        stage.gives = [tensor for key, tensor in made.items() if key in wanted]
        stage.takes = list(takes.values())
        wanted |= set(takes)
    known = set()
    for stage in stages:
        for call in stage.calls:
            if isinstance(call.operation, keras.layers.Layer) and id(call.operation) not in known:
                known.add(id(call.operation))
                own(call.operation, stage.device)
                stage.layers.append(call.operation)
    compute_graph_by(model, _Pipeline(model, stages, microbatches, remat).run)


class _Stage:
    """Attributes: `takes` and `gives`, the `KerasTensor`s that come from and go to others; `layers`, those
    whose weights are here, in the order of their first calls."""

    def __init__(self, device, calls):
        self.device, self.calls = device, calls
        self.layers, self.takes, self.gives = [], [], []

    def variables(self):
        """Return the trainable `tf.Variable`s that its calls use; some may be in a stage before."""
        return _values(self.called())

    def own_variables(self):
        """Return those that are here."""
        return _values(self.layers)

    def penalised(self):
        """Return weights that are here, whose penalties no call of the same graph has computed."""
        return penalised_weights(self.layers)

    def called(self):
        """Return the layers that are called here, of other stages too."""
        layers = {id(call.operation): call.operation for call in self.calls}
        return [layer for layer in layers.values() if isinstance(layer, keras.layers.Layer)]


def _values(layers):
    seen = {id(w): uncast(w) for layer in layers for w in getattr(layer, "trainable_variables", ())}
    return list(seen.values())


class _Pipeline:
    """The model's calls, as a pipeline."""

    def __init__(self, model, stages, microbatches, remat):
        self.inputs, self.outputs = list(model.inputs), list(model.outputs)
        self.stages, self.microbatches, self.remat = stages, microbatches, remat
        self._made_in = {id(t): stage for stage in stages for call in stage.calls for t in call.outputs}

    def run(self, values, with_context):
        """See `compute_graph_by`."""
        if export_mode.is_exporting():
            return self._plainly(values, with_context)
        refuse_replicas("A model in stages")
        return _Step(self, values, with_context).outputs

    def device_of(self, tensor):
        """Return the device on which an output of the model is made; None for one that is an input too."""
        stage = self._made_in.get(id(tensor))
        return None if stage is None else stage.device

    def _plainly(self, values, with_context):
        known = dict(zip(map(id, self.inputs), values))
        for stage in self.stages:
            for call in stage.calls:
                args, kwargs = call.arguments(known)
                flat = keras.tree.flatten(with_context(call.operation)(*args, **kwargs))
                known.update(zip(map(id, call.outputs), flat))
        return [known[id(tensor)] for tensor in self.outputs]


class _Run:
    """One stage on one micro-batch.

    Attributes:
        taken, given: ids of the `KerasTensor`s that stand for the floating tensors it takes and gives.
        losses: for each loss that a layer added, the layer.
        recorded: `Recorded`; its values are those of `given`, of `losses`, and penalties of weights.
    """

    def __init__(self, stage, known, with_context, penalised, remat):
        self.stage = stage
        tensors = {id(t): known[id(t)] for t in stage.takes}
        self.taken = [key for key, value in tensors.items() if _is_floating(value)]
        self.given, self.losses, made = [], [], {}

        def compute(*inner):
            here = dict(tensors)
            for key, value in zip(self.taken, inner):
                here[key] = _noted(value, tensors[key])
            with losses_collected(
                [inside for layer in stage.called() for inside in all_layers(layer)]
            ) as added:
                for call in stage.calls:
                    args, kwargs = call.arguments(here)
                    flat = keras.tree.flatten(with_context(call.operation)(*args, **kwargs))
                    here.update(zip(map(id, call.outputs), flat))
            made.update((id(t), here[id(t)]) for t in stage.gives)
            self.given = [key for key, value in made.items() if _is_floating(value)]
            self.losses = [layer for layer, _ in added]
            return [
                *(made[key] for key in self.given),
                *(value for _, value in added),
                *(weight.regularizer.inside(weight) for weight in penalised),
            ]

        inputs = [tensors[key] for key in self.taken]
        again = stage.called() if remat else None
        self.recorded = Recorded(stage.device, compute, inputs, stage.variables, again)
        floating = dict(zip(self.given, self.recorded.values))
        for key, value in made.items():
            known[key] = _noted(floating[key], value) if key in floating else value
        end = len(self.given) + len(self.losses)
        self.values_of_losses, self.penalties = (
            self.recorded.values[len(self.given) : end],
            self.recorded.values[end:],
        )


class _Step:
    """One call of the model.

    Attributes:
        outputs: those of the model, differentiable. Losses that layers added, and penalties, are noted where
            Keras looks for them.
    """

    def __init__(self, pipeline, values, with_context):
        self._pipeline = pipeline
        self._inputs = [i for i, value in enumerate(values) if _is_floating(value)]
        self._parts = microbatches(values, pipeline.microbatches)
        self._known, self._runs = [], []
        for m, part in enumerate(self._parts):
            self._known.append(dict(zip(map(id, pipeline.inputs), part.values)))
            for stage in pipeline.stages:
                for tensor in stage.takes:
                    value, source = self._known[m][id(tensor)], pipeline.device_of(tensor)
                    note_transfer(value, source, stage.device)
                penalised = stage.penalised() if m == 0 else []
                self._runs.append((m, _Run(stage, self._known[m], with_context, penalised, pipeline.remat)))
        self._finish(values)

    def _finish(self, values):
        pipeline = self._pipeline
        self.outputs = [self._concat(tensor) for tensor in pipeline.outputs]
        self._floating = [i for i, value in enumerate(self.outputs) if _is_floating(value)]
        totals, added_by = {}, {}  # by the stage, and which of its losses: a mean over the micro-batches
        for m, run in self._runs:
            for j, (layer, value) in enumerate(zip(run.losses, run.values_of_losses)):
                key = id(run.stage), j
                added_by[key] = layer
                totals[key] = totals.get(key, 0.0) + value * tf.cast(self._parts[m].share, value.dtype)
        penalties = [value for _, run in self._runs for value in run.penalties]
        penalised = [weight for stage in pipeline.stages for weight in stage.penalised()] if penalties else []
        self._losses = list(totals)
        results = [
            *(self.outputs[i] for i in self._floating),
            *totals.values(),
            *penalties,
        ]
        self._variables = [v for stage in pipeline.stages for v in stage.own_variables()]
        wrapped = with_gradients_there(
            pipeline.stages[-1].device,
            lambda *upstream: self._gradients(upstream),
            results,
            [values[i] for i in self._inputs],
            self._variables,
        )
        wrapped = iter(wrapped)
        for i in self._floating:
            self.outputs[i] = _noted(next(wrapped), self.outputs[i])
        for layer in added_by.values():
            layer.add_loss(next(wrapped))
        penalties_known().extend(zip(penalised, wrapped))

    def _concat(self, tensor):
        """Return an output of the model from the outputs of the micro-batches."""
        values = [known[id(tensor)] for known in self._known]
        if len(values) == 1:
            return values[0]
        with tf.device(self._pipeline.device_of(tensor)):
            value = concat_microbatches([part.real(value) for part, value in zip(self._parts, values)])
            if mask_of(values[0]) is not None:
                masks = [part.real(mask_of(value)) for part, value in zip(self._parts, values)]
                with_mask(value, concat_microbatches(masks))
            _head_annotations.copy_annotations(values[0], value)
        return value

    def _gradients(self, upstream):
        """Return gradients of the floating inputs and of the weights."""
        pipeline = self._pipeline
        upstream = list(upstream)
        of_outputs = dict(zip(self._floating, upstream))
        of_losses = dict(zip(self._losses, upstream[len(self._floating) :]))
        of_penalties = iter(upstream[len(self._floating) + len(self._losses) :])
        pending = {}  # (micro-batch, id of a KerasTensor) -> gradients
        for i, gradient in of_outputs.items():
            tensor = pipeline.outputs[i]
            with tf.device(pipeline.device_of(tensor)):
                for m, part in enumerate(self._parts):
                    pending.setdefault((m, id(tensor)), []).append(
                        part.filled(gradient, self._known[m][id(tensor)])
                    )
        penalties = {id(run): [next(of_penalties) for _ in run.penalties] for _, run in self._runs}
        of_variables = {id(v): [] for v in self._variables}
        for m, run in reversed(self._runs):
            stage = run.stage
            asked = [sum_there(stage.device, pending.get((m, key), ())) for key in run.given]
            for j, value in enumerate(run.values_of_losses):
                asked.append(of_losses[id(stage), j] * tf.cast(self._parts[m].share, value.dtype))
            found = run.recorded.gradients([*asked, *penalties[id(run)]])
            for key, gradient in zip(run.taken, found):
                pending.setdefault((m, key), []).append(gradient)
            for variable, gradient in zip(run.recorded.variables, found[len(run.taken) :]):
                of_variables[id(variable)].append(gradient)
        of_weights = [sum_there(v.device, of_variables[id(v)]) for v in self._variables]
        return [*self._of_inputs(pending), *of_weights]

    def _of_inputs(self, pending):
        for i in self._inputs:
            tensor = self._pipeline.inputs[i]
            each = [
                part.real(sum_there(None, pending.get((m, id(tensor)), ())))
                for m, part in enumerate(self._parts)
            ]
            yield None if each[0] is None else concat_microbatches(each)


def _is_floating(value):
    if not tf.is_tensor(value) or not value.dtype.is_floating:
        return False
    if not isinstance(value, tf.Tensor):
        raise NotImplementedError(
            "Floating tensors from stage to stage, and outputs, must be dense. Put the layer that makes it, "
            f"and those that take it, in one stage (`cuts`). Received: a {type(value).__name__}, {value}"
        )
    return True


def _noted(copy, value):
    """Return `copy`, with the mask and the notes of heads of `value`."""
    if copy is not value:
        _head_annotations.copy_annotations(value, copy)
        with_mask(copy, mask_of(value))
    return copy
