"""`parallelize`: a model over several devices of one machine, in one of four ways."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_largeout._keras import all_layers, graph_calls
from keras_largeout.distribute.parallel.clones import same_layers
from keras_largeout.distribute.parallel.layer_costs import call_costs
from keras_largeout.distribute.parallel.losses import compute_loss_there
from keras_largeout.distribute.parallel.on_device import checked_device, device_of
from keras_largeout.distribute.parallel.pipeline import run_in_stages
from keras_largeout.distribute.parallel.replicated import in_replicas
from keras_largeout.distribute.parallel.stage_plan import SectionPlan
from keras_largeout.distribute.parallel.stage_planner import plan_stages
from keras_largeout.distribute.parallel.tensor_parallel import in_sections
from keras_largeout.distribute.parallel.towers import in_towers
from keras_largeout.planning.devices import Device

WAYS = ("stages", "sections", "towers", "data")
#: The arguments that have a meaning for one way alone.
_OF_WAY = {
    "cuts": "stages",
    "microbatches": "stages",
    "remat": "stages",
    "mix": "towers",
    "gate": "towers",
}


def parallelize(
    model: keras.Model,
    how: str,
    devices: Sequence[str | Device] | None = None,
    *,
    cuts: Sequence[str] | None = None,
    microbatches: int = 1,
    remat: bool = False,
    mix: str = "mean",
    gate: keras.Layer | None = None,
    sample: Any = None,
    verbose: int = 1,
) -> keras.Model:
    """Spreads a model over the devices of one machine, in one of four ways.

    - `"stages"` (model distribution, pipeline parallelism): the layers are cut in sequence, and each device
      has one stage: weights, optimizer slots, forward and backward pass. For a model that is too large for
      one device, and, with micro-batches, to train it faster.
    - `"sections"` (model parallelism, tensor parallelism): the kernel of a `Dense` is cut by columns, that of
      a `Dense` which follows it by rows; an `Embedding` by columns; tables and heads of this package are over
      all devices; branches that do not depend on one another run side by side. For layers that are too wide.
    - `"towers"`: each device has its own model, of the same architecture. All see the same batch, and
      their outputs are mixed: a committee, or a mixture of experts.
    - `"data"`: `tf.distribute.MirroredStrategy`: every device has all weights and a slice of each batch.

    With stages, sections and data, training gives what one device gives on the same batches, to rounding.
    (`BatchNormalization` normalises each micro-batch, and each slice of a batch, by itself.)

    The layers are called as before, and the model is saved, loaded, cloned and exported as the plain model:
    what was saved with stages, sections or data loads without, and the reverse, also optimizer slots. (Towers
    are saved as the model of several towers that they are.)

    Args:
        model: functional or sequential `keras.Model`, built. It need not be compiled.
        how: "stages", "sections", "towers" or "data".
        devices: list of names such as "GPU:0", or of `kl.distribute.Device`, whose `memory` limits a stage,
            and whose `flops` say which is faster; None: all GPUs, or all logical CPUs where there is none.
            Defaults to `None`.
        cuts: of stages: names of the layers with which all but the first begin. None: so that the stages
            take equally long, as a trial measures. Defaults to `None`.
        microbatches: int, of stages: each batch goes through them in so many parts, so that all devices work
            at a time. Losses that layers add are taken for means over the batch. Defaults to `1`.
        remat: bool, of stages: the backward pass computes again what a stage would keep, with the same random
            numbers, as with `OnDevice`. Defaults to `False`.
        mix: of towers: "mean": the mean of the outputs, where each tower learns by its own loss; "gated":
            weighted by a softmax gate on the inputs, where the loss is -log of the likelihood of the mixture:
            of probabilities for a cross-entropy, of gaussians with deviations of their own for "mse".
            Defaults to `"mean"`.
        gate: of towers that are gated: a layer from the model's inputs to `[batch, towers]`, positive and
            with sum 1. None: a `Dense` on the inputs, which then must be floating. Defaults to `None`.
        sample: inputs of a batch, or `(x, y)`, for the trial of stages and sections. None: zeros. Defaults to
            `None`.
        verbose: 0, or 1: prints the plan, a table of what is where: `parallel_plan` of the result. Defaults
            to `1`.

    Returns:
        A `kl.Model`. With stages it has the layers of `model`, whose weights move to their devices: compile
        this one, not `model`. Else it has copies of them, of the same names, with the same values: the loss
        of a head is then `result.get_layer("name").loss`.

    Raises:
        ValueError: a model that is not functional, sequential or built; unknown devices, or more than
            layers; a cut that names no layer of the model; arguments that another way has.
        NotImplementedError: under a strategy of replicas or servers.

    Example:

    ```python
    model = kl.distribute.parallelize(model, "stages", ["GPU:0", "GPU:1"], microbatches=8)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y)
    ```

    References:
        - [Huang et al., 2019](https://arxiv.org/abs/1811.06965) (stages).
        - [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3 (sections).
        - Jacobs et al., "Adaptive mixtures of local experts", Neural Computation 3 (1991) (towers).
    """
    given = {"cuts": cuts, "microbatches": microbatches, "remat": remat, "mix": mix, "gate": gate}
    _check_way(how, given)
    model = _checked_model(model)
    chosen = _checked_devices(devices)
    names = [device.name for device in chosen]
    if how == "data":
        return in_replicas(model, names)
    if how == "towers":
        return in_towers(model, names, mix, gate)
    costs, examples = call_costs(model, sample, names[0])
    if how == "stages":
        if not isinstance(microbatches, int) or microbatches < 1:
            raise ValueError(f"`microbatches` must be an int of at least 1. Received: {microbatches!r}")
        plan = plan_stages(costs, chosen, examples, _starts(model, cuts))
        result = same_layers(model)
        run_in_stages(result, plan, microbatches, remat)
    else:
        result, ways, places = in_sections(model, chosen, costs)
        plan = SectionPlan(chosen, tuple(costs), ways, tuple(places), examples)
    compute_loss_there(result, names[-1] if how == "stages" else names[0])
    result.parallel_plan = plan
    if verbose:
        print(plan)
    return result


def _check_way(how, given):
    if how not in WAYS:
        raise ValueError(f"`how` must be one of {WAYS}. Received: how={how!r}")
    defaults = {"cuts": None, "microbatches": 1, "remat": False, "mix": "mean", "gate": None}
    for name, value in given.items():
        if value is not defaults[name] and value != defaults[name] and _OF_WAY[name] != how:
            raise ValueError(
                f"`{name}` has a meaning for how={_OF_WAY[name]!r} alone. "
                f"Received: {name}={value!r} with how={how!r}"
            )
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
        raise NotImplementedError(
            f"`how`={how!r} cannot be combined with a strategy: the devices of a replica, or of a worker, "
            f"are its own. Call `parallelize` outside of its scope. Received: {type(strategy).__name__}"
        )


def _checked_model(model):
    functional = isinstance(model, keras.Model) and hasattr(model, "operations")
    placed = [layer.name for layer in all_layers(model) if device_of(layer)]
    if placed:
        raise ValueError(
            f"`model` must have no layer that was put on a device before. Received: {placed[0]!r}"
        )
    if isinstance(model, keras.Sequential):
        if not model.built or not model.inputs:
            raise ValueError(
                "`model` must be built: give a Sequential a keras.Input as its first layer. "
                f"Received: {model!r}"
            )
        return same_layers(model)
    if not functional:
        layers = [layer.name for layer in getattr(model, "layers", ())]
        raise ValueError(
            "`model` must be functional or sequential: which layer of a subclassed model hands what to which "
            "is known to its `call` alone. (`kl.distribute.OnDevice` puts single layers on devices.) "
            f"Received: a {type(model).__name__} with the layers {layers}"
        )
    return model


def _checked_devices(devices):
    known = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if devices is None:
        devices = [device.name for device in known]
    if isinstance(devices, (str, int)) or not devices:
        raise ValueError(f"`devices` must be a list of names or Devices. Received: devices={devices!r}")
    found = []
    for device in devices:
        if isinstance(device, Device):
            checked_device(device.name)
            found.append(device)
        else:
            found.append(Device(checked_device(device)))
    names = [device.name for device in found]
    if len(set(names)) < len(names):
        raise ValueError(f"`devices` must be different ones. Received: {names}")
    return tuple(found)


def _starts(model, cuts):
    """Return the index of the first call of each stage but the first."""
    if cuts is None:
        return None
    names = [call.operation.name for call in graph_calls(model)]
    for cut in cuts:
        if cut in names:
            continue
        outer = [
            layer.name
            for layer in model.layers
            if any(inside.name == cut for inside in all_layers(layer) if inside is not layer)
        ]
        where = f"which is inside {outer[0]!r}, and that is not cut" if outer else f"not one of {names}"
        raise ValueError(f"`cuts` must name layers that the model itself calls. Received: {cut!r}, {where}")
    return [names.index(cut) for cut in cuts]
