"""`Model`: a `keras.Model` whose `fit` also works on several machines."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_largeout._head_annotations import heads_of
from keras_largeout._keras import ValuesOfWeights, all_layers, own_optimizers
from keras_largeout.training.step_functions import StepFunctions
from keras_largeout.training.strategy_training import StrategyTraining

_SCHEDULERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class _Checked(ValuesOfWeights):
    """Checks what `compile` was given for the outputs of heads, and knows of layers that train themselves."""

    def check_losses(self):
        for loss in keras.tree.flatten(self.loss):
            if isinstance(loss, keras.layers.Layer):
                raise ValueError(
                    "`loss` must be a loss, not a layer: write `loss=head.loss`. "
                    f"Received: the layer {loss.name!r}"
                )
        self._check_heads(keras.tree.flatten(getattr(self, "outputs", None)))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self._check_heads(y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def check_callbacks(self, callbacks):
        callbacks = getattr(callbacks, "callbacks", callbacks)
        schedulers = {type(c).__name__ for c in keras.tree.flatten(callbacks) if isinstance(c, _SCHEDULERS)}
        fused = [layer for layer in all_layers(self) if own_optimizers(layer)]
        if schedulers and fused:
            names = ", ".join(repr(layer.name) for layer in fused)
            warnings.warn(
                f"{' and '.join(sorted(schedulers))} set the learning rate of the model's optimizer, which "
                f"does not train {names}: each has its own optimizer. Give that one a "
                "`keras.optimizers.schedules.LearningRateSchedule`, or set its learning rate in a callback "
                f"(`model.get_layer({fused[0].name!r}).optimizer.learning_rate = ...`; of a "
                "DistributedEmbedding, `table_optimizers()` has them).",
                stacklevel=3,
            )

    def summary(
        self,
        line_length: int | None = None,
        positions: Sequence[float] | None = None,
        print_fn: Callable[..., None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print Keras's summary, and below it a line for each layer whose numbers need an explanation."""
        super().summary(line_length, positions, print_fn, **kwargs)
        for layer in all_layers(self):
            note = layer.summary_note() if hasattr(layer, "summary_note") and layer.built else None
            if note:
                (print_fn or print)(f" {layer.name}: {note}")

    def get_state_tree(self, value_format="backend_tensor"):
        """Return Keras's tree, with the variables of layers' own optimizers and without empty weights.

        The variables of the optimizers of a layer are in `tree["optimizer_variables"][layer.name]`.
        """
        tree = super().get_state_tree(value_format)
        for layer, variables in self._of_own_optimizers():
            in_numpy = value_format == "numpy_array"
            values = {name: v.numpy() if in_numpy else v.value for name, v in variables.items()}
            tree["optimizer_variables"][layer] = values
        return _without_empty(tree)

    def set_state_tree(self, state_tree):
        """Assign what `get_state_tree` returned."""
        super().set_state_tree(state_tree)
        for layer, variables in self._of_own_optimizers():
            for name, value in state_tree.get("optimizer_variables", {}).get(layer, {}).items():
                variables[name].assign(value)

    def _of_own_optimizers(self):
        """Yield each layer's name and the variables of its own optimizers, a dict."""
        for layer in all_layers(self):
            if own_optimizers(layer) and hasattr(layer, "make_slots"):
                layer.make_slots()
                yield (
                    layer.name,
                    {
                        f"{i}.{j}.{variable.name}": variable
                        for i, optimizer in enumerate(own_optimizers(layer))
                        for j, variable in enumerate(optimizer.variables)
                    },
                )

    def _check_heads(self, outputs):
        heads = [head for output in keras.tree.flatten(outputs) for head in heads_of(output)]
        heads = heads or [layer for layer in all_layers(self) if hasattr(layer, "check_compiled")]
        if heads:
            heads[-1].check_compiled(self, outputs)


def _without_empty(tree):
    """Return a tree of dicts without arrays that have no element: Orbax does not save them."""
    kept = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in tree.items()}
    return {k: v for k, v in kept.items() if isinstance(v, dict) or math.prod(v.shape)}


class _Pickled:
    """Pickles as Keras does (as the bytes of a `.keras` file), also where the class has a functional twin."""

    def __reduce__(self):
        self.wait_for_steps()
        load, arguments = super().__reduce__()
        # Keras names its function by the class of the model, and nobody finds a twin by its name.
        return getattr(keras.Model, load.__name__), arguments


@keras.saving.register_keras_serializable(package="keras_largeout")
class Model(_Pickled, _Checked, StrategyTraining, StepFunctions, keras.Model):
    """A `keras.Model` that also trains on parameter servers, and on synchronous hosts.

    It is used as `keras.Model` is: `Model(inputs, outputs)`, or as a base class. (`Sequential` is the same of
    `keras.Sequential`.) On one device `fit` gives the same model in less time: short steps are taken several
    per call, unless `compile` is given a number as `steps_per_execution` (which defaults to `"auto"`), or a
    callback acts on batches. Over several devices of one machine its `fit` also takes ragged and sparse
    batches, and a first batch that does not divide by the devices.

    On a cluster (`kl.distribute.strategy()`, `python -m keras_largeout.distribute.launch`) `fit`, `evaluate`
    and `predict` take the same arguments. Each step runs on whichever worker is free, with weights as they
    are at that moment (asynchronous training: several workers mean several steps at a time, each of one
    batch), and the weights are stored and updated on the parameter servers.

    - *Data.* The chief runs the pipeline (a `tf.data.Dataset`, arrays, a generator, a `PyDataset`) and deals
      out its batches: each batch is trained on once per epoch, even when workers come and go. Where that is
      too much for one machine, pass a function `tf.distribute.InputContext -> tf.data.Dataset`. Each worker
      then reads its own (`dataset.shard(context.num_input_pipelines, context.input_pipeline_id)`; the second
      is a tensor), repeated without end, and `steps_per_epoch` is the number of batches per epoch. It opens
      its files itself: a dataset of arrays or tensors that the chief holds cannot go to a worker.
      `validation_data` may be such a function too.
    - *Metrics* are exact: each step returns what it added, and the chief adds up. The state of a metric must
      be a sum. What the progress bar shows during an epoch is a moment old.
    - *Callbacks* see a batch when it is handed out. Saving waits for the steps in flight.
    - *Failures.* The steps of a worker that dies run again on another worker. A worker that comes back takes
      part again. When a parameter server dies, `kl.distribute.ServerLostError` names it.
      With `kl.callbacks.BackupAndRestore` the same script, started again, goes on.
    - `save` and `save_weights` write a new file, flush it to the disk and rename it: no file
      is ever half written. (A plain `keras.Model` has that by `kl.callbacks.ModelCheckpoint`.)
    - A damaged file is refused by `load_weights` and `load_model` before anything has changed: `.keras` files
      and weights files of a `kl.Model` have digests of all that is in them. So is one of another model or
      optimizer, by `load_weights`. Files without digests are loaded too.
    - `compile` refuses an optimizer that cannot train the model's tables on several devices.
    - `steps_per_execution` is the number of steps per call of a worker, a loop in its graph. Each call costs
      messages between worker and chief, and is what runs again where a worker dies. `run_eagerly` is
      refused, XLA is not used.
    - Moving averages of `BatchNormalization` are written by all workers; the last one wins.

    On synchronous hosts (`tf.distribute.MultiWorkerMirroredStrategy`, which Keras's own `fit` does not
    know) all hosts make the same calls. Each reads the dataset and takes its part of every batch; or a
    dataset function makes the batches of one host. Logs are those of all hosts, and `predict` returns the
    values of the whole batch on each of them. The first host shows progress and writes files; on the others
    `CSVLogger`, `TensorBoard` and `RemoteMonitor` are left out. When a host is lost,
    `kl.distribute.HostLostError` names it.

    Args:
        *args: as for `keras.Model`.
        **kwargs: as for `keras.Model`.

    Example:

    ```python
    inputs = keras.Input((None,), dtype="int32")
    hidden = keras.layers.GRU(64)(kl.layers.ShardedEmbedding(10_000, 64)(inputs))
    model = kl.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(kl.optimizers.LazyAdam(1e-3), "mse")
    ```
    """

    def __new__(cls, *args, **kwargs):
        functional = _functional_class()
        if _is_functional(args, kwargs) and not issubclass(cls, functional):
            cls = _functional_twin(cls)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A subclass may make the tensors in its own `__init__`, from arguments that are not tensors.
        if _is_functional(args, kwargs) and not isinstance(self, _functional_class()):
            self.__class__ = _functional_twin(type(self))  # type: ignore[arg-type]
        super().__init__(*args, **kwargs)


@keras.saving.register_keras_serializable(package="keras_largeout")
class Sequential(_Pickled, _Checked, StrategyTraining, StepFunctions, keras.Sequential):
    """A `keras.Sequential` that also trains on several machines: see `Model`.

    Example:

    ```python
    words = kl.layers.ShardedEmbedding(10_000, 64)
    model = kl.Sequential([words, keras.layers.GRU(64), keras.layers.Dense(1)])
    model.compile(kl.optimizers.LazyAdam(1e-3), "mse")
    ```
    """


def _is_functional(args, kwargs):
    """Return whether these are the arguments of a functional model: its input and output tensors.

    (Numbers in their place are arguments of a subclass.)
    """
    tensors = dict(zip(("inputs", "outputs"), args)) | kwargs
    return all(
        any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(tensors.get(name)))
        for name in ("inputs", "outputs")
    )


@functools.cache
def _functional_class():
    """Return Keras's class of functional models, which has no public name."""
    x = keras.Input((1,))
    return type(keras.Model(x, keras.layers.Identity()(x)))


@functools.cache
def _functional_twin(cls):
    """Return `cls`, as a functional model.

    Keras would change the bases of `cls`, and of all classes above, for good: then no other subclass of
    `Model` could be anything but functional.
    """
    twin = type(
        cls.__name__,
        (cls, _functional_class()),
        {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__},
    )
    name = keras.saving.get_registered_name(cls)
    if name != cls.__name__:
        package = name.rsplit(">", 1)[0]
        keras.saving.register_keras_serializable(package, cls.__name__)(twin)
    return twin
