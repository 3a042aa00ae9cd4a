"""The one place that touches private parts of Keras, and of tf_keras, where nothing public does the same.

Each function and class says why it is needed. Where a version of Keras lacks a name, it raises an
ImportError that says so.
"""

import contextlib
import functools
import inspect
import sys
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_largeout._private import private

# The versions on which the tests have run. pyproject.toml allows no others.
KNOWN = ">=3.12,<3.16"


def _need(owner, name):
    return private(owner, name, "Keras", keras.__version__, KNOWN)


def all_layers(model):
    """Return a model, and every layer inside it or inside its layers, each once.

    Nothing private: Keras has `layers` for models alone, and layers too may hold layers. They are found where
    Keras itself finds them, in attributes and in the lists, tuples, sets and dicts there.

    Args:
        model: `keras.Model` or `keras.layers.Layer`.
    """
    seen, waiting = {}, [model]  # by `id`: what has been seen stays alive, so that no `id` is used twice
    while waiting:
        value = waiting.pop()
        if isinstance(value, keras.layers.Layer):
            inside = [getattr(value, "layers", None), *vars(value).values()]
        elif isinstance(value, dict):
            inside = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            inside = list(value)
        else:
            continue
        if id(value) not in seen:
            seen[id(value)] = value
            waiting += reversed(inside)
    return [value for value in seen.values() if isinstance(value, keras.layers.Layer)]


def own_optimizers(layer):
    """Return the optimizers that train a layer, or tables of it, in the place of the model's.

    Nothing private: it is here because it is used with `all_layers`.
    """
    if isinstance(layer, keras.Model):
        return []
    given = getattr(layer, "optimizer", None), *(getattr(layer, "optimizers", None) or ())
    return [optimizer for optimizer in given if isinstance(optimizer, keras.optimizers.Optimizer)]


def outermost_layer(layer):
    """Return the layer in whose call `layer` is being called: a model, most often, or `layer` itself.

    Why: a layer of a plain `keras.Model` learns in no other way who calls it, and so by which optimizer it
    will be trained. (`kl.Model` looks at its layers itself, when it is compiled.)
    """
    close = _need(layer, "_maybe_reset_call_context")
    outermost = _need(_call_context(layer), "entry_layer")
    if outermost is layer:  # asking opens a context where there was none, as in `layer.call(...)`
        close()
    return outermost


def is_training_call(layer):
    """Return whether the call in which `layer` is being called is one for training.

    Why: a layer whose `call` has no argument `training` is not told.
    """
    return bool(_need(_call_context(layer), "get_value")("training"))


def notes_of_call(layer):
    """Return a dict that lasts as long as the call of the outermost layer in which `layer` is being called.

    Why: nothing public tells two calls of a layer in one call of a model from calls in two.
    """
    return vars(_call_context(layer)).setdefault("keras_largeout", {})


def _call_context(layer):
    return _need(layer, "_get_call_context")()


def compiled_metrics(model):
    """Return what a compiled model was given as `metrics` and as `weighted_metrics`.

    Why: `model.metrics` are there after the first batch only, when it is too late for an early error.

    Returns:
        A list of two structures, as in `compile`; empty where it was given none.
    """
    given = _need(model, "_compile_metrics")
    if given is None:
        return []
    return [_need(given, "_user_metrics"), _need(given, "_user_weighted_metrics")]


def is_built(model):
    """Return whether a first batch would build nothing: no layer, metric, loss or optimizer."""
    compiled = (_need(model, name) for name in ("_compile_metrics", "_compile_loss"))
    parts = [*_need(model, "_flatten_layers")(), *compiled, model.optimizer]
    return all(part is None or part.built for part in parts)


def optimizers_inside(optimizer):
    """Yield an optimizer and the ones that it wraps: of a loss scale, or of a `MultiOptimizer`.

    Nothing private: it is here because it is used with `optimizer_inside`.
    """
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for other in getattr(optimizer, "optimizers", [] if inner is None else [inner]):
        yield from optimizers_inside(other)


def optimizer_inside(multi, variable):
    """Return the optimizer inside a `keras.optimizers.MultiOptimizer` that updates `variable`.

    Why: `MultiOptimizer.optimizers` is public, and which of them has a variable is not.

    Returns:
        A Keras optimizer; None where it cannot be known yet.
    """
    choice = _need(multi, "_optimizer_map")
    if multi.built:
        index = _need(multi, "_var_to_optimizer_idx").get(_need(multi, "_var_key")(variable))
        return None if index is None else multi.optimizers[index]
    # A function may make a new optimizer at every call, which must not happen in here.
    return choice[variable.path] if hasattr(choice, "default_optimizer") else None


def step_counter(optimizer):
    """Return the variable in which an optimizer counts the batches that it has seen.

    Nothing private: `optimizer.iterations` is this variable, but a quotient of it where gradients are
    accumulated. The counter is always the first of the optimizer's variables, also in every file that Keras
    has saved.

    Args:
        optimizer: `keras.optimizers.Optimizer`; one inside it has its own counter.
    """
    counter = optimizer.variables[0]
    if tuple(counter.shape) or "int" not in str(counter.dtype):
        raise ImportError(
            "keras_largeout needs the counter of steps as the first of an optimizer's variables, which Keras "
            f"{keras.__version__} has elsewhere. It is known to work with Keras {KNOWN}: install one of "
            f"these. Received: {counter}"
        )
    return counter


def forget(layer, inside):
    """Make `layer` disown the layer `inside`, an attribute that will be replaced.

    Why: Keras lets go of the layer of an attribute neither where it is set again nor where it is deleted.
    """
    _need(_need(layer, "_tracker"), "untrack")(inside)


@contextlib.contextmanager
def more_weights(layer):
    """A context in which a layer that is built gets further weights.

    Why: Keras locks the weights of a layer when it is built, and the number of items of an index is known
    later.
    """
    tracker = _need(layer, "_tracker")
    _need(tracker, "unlock")()
    try:
        yield
    finally:
        _need(tracker, "lock")()


def made_from(tensor):
    """Return the `KerasTensor`s from which an operation without weights has made one; those inside a nested
    model.

    Why: public is which layers a functional model has, and not how they are joined.

    Returns:
        A list; empty for an input of a model, and where weights have a part in it.
    """
    operation, node, index = _need(tensor, "_keras_history")
    if not getattr(operation, "weights", None):
        return list(_need(operation, "_inbound_nodes")[node].input_tensors)
    known = isinstance(operation, keras.Model) and getattr(operation, "outputs", None)
    return [operation.outputs[index]] if known else []


def mask_of(tensor):
    """Return the mask that a tensor carries from the layer that made it; None where there is none.

    Why: Keras hands masks to layers, and its losses look for them; it hands none to a loss.
    """
    return _need("keras.src.backend", "get_keras_mask")(tensor)


def with_mask(tensor, mask):
    """Return `tensor`, marked as masked: Keras's losses and metrics leave out where `mask` is False.

    Why: a loss gives Keras its values, and in no public way says which of them count.

    Args:
        tensor: one that nobody else has, as it is changed.
        mask: bool, of the shape of `tensor`; None changes nothing.
    """
    set_mask = _need("keras.src.backend", "set_keras_mask")
    if mask is not None:
        set_mask(tensor, mask)
    return tensor


def is_symbolic():
    """Return whether Keras is building a model symbolically: nothing is computed then.

    Why: `keras.SymbolicScope` is public, and whether one is open is not. Tensors are copies there, which have
    lost what was noted on them.
    """
    return _need("keras.src.backend", "in_symbolic_scope")()


def same_call():
    """Returns a function that opens a context in which the call goes on that is being made now.

    Why: what a gradient computes again is computed after the call of the model. A layer inside would not
    learn there whether it is called in training, nor the dtype of mixed precision.
    """
    get = _need("keras.src.backend.common.global_state", "get_global_attribute")
    put = _need("keras.src.backend.common.global_state", "set_global_attribute")
    now = {name: get(name) for name in ("current_call_ctx", "autocast_scope")}

    @contextlib.contextmanager
    def in_same_call():
        before = {name: get(name) for name in now}
        for name, value in now.items():
            put(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                put(name, value)

    return in_same_call


@contextlib.contextmanager
def losses_given(model, losses):
    """A context in which `model.losses` are these.

    Why: they are computed again whenever they are asked for, and gradients are taken of given tensors.
    """
    before = _need(model, "_losses_override")
    model._losses_override = list(losses)
    try:
        yield
    finally:
        model._losses_override = before


def uncast(variable):
    """Return the `tf.Variable` of a `keras.Variable`, also inside a layer of mixed precision.

    Why: `value` is a cast of it there, and gradients are asked of the variable.
    """
    made = _need(variable, "_value")
    return variable.value if made is None else made


def is_made(variable):
    """Return whether a `keras.Variable` has its `tf.Variable`, which it has not in a symbolic build of a
    model.

    Why: the backend decides when it is made, and nothing public says whether it was.
    """
    return _need(variable, "_value") is not None


def note_made(kind, note):
    """Have `note(layer)` called for each new layer of the Keras class `kind`.

    Nothing private, but a class of Keras's is changed: no layer says where copies of it are made
    (`clone_model`, `load_model`), and a head has to find them by their names.
    """
    make = kind.__init__

    @functools.wraps(make)
    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        note(self)

    init.__signature__ = inspect.signature(make)  # Keras reads the arguments from it
    kind.__init__ = init


def in_safe_mode():
    """Return whether a config is being deserialized that nobody vouches for (`load_model(safe_mode=True)`).

    Why: nothing public says so. A layer's own `from_config`, which `clone_model` calls, is not in safe mode.
    """
    return bool(_need("keras.src.saving.serialization_lib", "in_safe_mode")())


def while_loading(context):
    """Have Keras load the model of each file inside `context(path)`.

    Why: `from_config` does not know which file its config comes from.
    """
    load = _need("keras.src.saving.saving_lib", "load_model")

    @functools.wraps(load)
    def load_model(filepath, *args, **kwargs):
        with context(filepath):
            return load(filepath, *args, **kwargs)

    sys.modules["keras.src.saving.saving_lib"].load_model = load_model


def move_variable(variable, moved):
    """Make a `keras.Variable` keep its values in another `tf.Variable`.

    Why: the place of a variable is decided when it is made, and a layer that was built has made its own.
    """
    _need(variable, "_value")
    variable._value = moved


class GraphCall(NamedTuple):
    """A call of a layer (or of an operation of `keras.ops`) in a functional model.

    `inputs` and `outputs` are the `keras.KerasTensor`s; `arguments(values)` gives `(args, kwargs)` with
    the values of a dict from `id`s of KerasTensors in their places.
    """

    operation: Any
    inputs: list
    outputs: list
    arguments: Any


def graph_calls(model):
    """Return the `GraphCall`s of a functional model, in an order in which they can be made.

    Why: public is which layers a functional model has, and not which of them hands what to which.
    """
    by_depth = _need(model, "_nodes_by_depth")
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    calls = []
    for node in nodes:
        if not _need(node, "is_input"):
            arguments = _need(_need(node, "arguments"), "fill_in")
            inputs = list(_need(node, "input_tensors"))
            calls.append(GraphCall(node.operation, inputs, list(node.outputs), arguments))
    return calls


def compute_graph_by(model, compute):
    """Make a functional model call its layers in another way. All else of a call stays Keras's.

    Why: a subclass with its own `call` would also check inputs, hand on masks and `training`, and be
    saved in its own way.

    Args:
        model: functional model. It is changed, and stays of its class.
        compute: `(values of model.inputs, with_context) -> values of model.outputs`, lists.
            `with_context(operation)` is the operation, called with the `training` of the model's call.
    """
    as_keras = _need(model, "_run_through_graph")

    def run(inputs, operation_fn=lambda operation: operation, **others):
        values = keras.tree.flatten(inputs)
        if others or is_symbolic() or any(isinstance(value, keras.KerasTensor) for value in values):
            return as_keras(inputs, operation_fn=operation_fn, **others)
        structure = _need(model, "_outputs_struct")
        return keras.tree.pack_sequence_as(structure, compute(values, operation_fn))

    model._run_through_graph = run


def store_path(store):
    """Return where in its file the mapping is that Keras hands to `save_own_variables`: "layers/dense",
    say.

    Why: Keras loads what it finds under that name, and goes on without where a damaged file has another one.

    Returns:
        A str; None for a mapping that is not of a file.
    """
    return _need(store, "_h5_entry_path") if hasattr(store, "h5_file") else None


def is_symbolic_in_tf_keras(value):
    """Return whether `value` is a symbolic tensor of tf_keras, which is Keras 2, `tf.keras` with
    TF_USE_LEGACY_KERAS=1.

    Why: a layer of Keras 3 takes it for a tensor. tf_keras then makes layers of its own of the ops that it
    sees, and these have no weights to train.
    """
    kind = getattr(getattr(sys.modules.get("tf_keras"), "__internal__", None), "KerasTensor", None)
    return kind is not None and isinstance(value, kind)


def training_layer_of_tf_keras():
    """Return the innermost layer of tf_keras in whose call for training we are; None where there is none.

    Why: a layer of Keras 3 learns in no other way that tf_keras trains the model in which it is called. A
    version of tf_keras without these names is one that nobody is warned of.
    """
    module = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    context = getattr(module, "call_context", lambda: None)()
    in_training = getattr(context, "in_call", False) and getattr(context, "training", None) is True
    return getattr(context, "layer", None) if in_training else None


def set_tf_keras_id(variable):
    """Gives a weight without elements the one thing that optimizers of tf_keras miss in a `keras.Variable`.

    Why: such a weight stands for a layer that trains itself, which works in a tf_keras model too then.
    """
    variable._unique_id = f"keras_largeout_{id(variable)}"


class ValuesOfWeights:
    """A base, before a Keras layer or model, whose `get_weights` leaves triggers out.

    Nothing private: it is here because layers and models both need it. A trigger (`is_trigger`) is there for
    the gradient tape alone. Without it `get_weights` of a layer with its own optimizer is that of a layer
    without one, and of Keras's layer.
    """

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of all weights but triggers: a list of NumPy arrays."""
        return [weight.numpy() for weight in self.weights if not is_trigger(weight)]

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Assign the values of all weights but triggers.

        Args:
            weights: list of arrays, as `get_weights` returns them. Empty ones, the triggers of a plain
                `keras.Model`, are left out.

        Raises:
            ValueError: another number of arrays, or an array of another shape.
        """
        own = [weight for weight in self.weights if not is_trigger(weight)]
        given = list(weights)
        if len(given) > len(own):
            given = [value for value in given if tuple(value.shape) != (0,)]
        shapes, expected = ([tuple(v.shape) for v in values] for values in (given, own))
        if shapes != expected:
            wrong = next((i for i, (a, b) in enumerate(zip(shapes, expected)) if a != b), None)
            received = f"{len(given)} arrays" if wrong is None else f"shape {shapes[wrong]} at index {wrong}"
            must = f"{len(own)} arrays" if wrong is None else f"the shape {expected[wrong]} at index {wrong}"
            raise ValueError(f"`weights` of {self.name!r} must have {must}. Received: {received}")
        for weight, value in zip(own, given):
            weight.assign(value)


def is_trigger(weight):
    """Return whether a weight holds no value, as its attribute `is_trigger` says."""
    return getattr(weight, "is_trigger", False)


class LazyTfVariable(keras.Variable):
    """A `keras.Variable` that makes its own `tf.Variable` when Keras asks for it.

    Why: Keras asks in the constructor, or later where it builds a model symbolically first. An initializer,
    the public way, returns a tensor: a large table would exist twice.

    A subclass has `make`, which returns the `tf.Variable`, and `when_made`, which is called after it.
    """

    def __init__(self, **kwargs):
        super().__init__(_never_called, **kwargs)

    def _initialize_with_initializer(self, initializer):
        _need(self, "_initialize")(self.make())
        self.when_made()

    @property
    def _unique_id(self):
        """The id that only optimizers of tf_keras read, and read first. They cannot train this variable."""
        raise AttributeError(
            f"`optimizer` must be one of Keras 3 to train {self.path!r}, a table of keras_largeout. In a "
            "model of tf_keras (a tfrs.Model is one) give the layer its own optimizer, such as "
            "optimizer=keras.optimizers.Adagrad(0.1); or build a keras.Model of Keras 3, and call what needs "
            "tf_keras in its `compute_loss`. Received: an optimizer of tf_keras"
        )


def _never_called(shape, dtype=None):
    """Return the initializer that Keras is given by a `LazyTfVariable`."""
    raise ImportError(
        "keras_largeout needs `keras.Variable._initialize_with_initializer`, which Keras "
        f"{keras.__version__} does not call. It is known to work with Keras {KNOWN}: install one of these."
    )


def order_of_batches(epoch_iterator):
    """Return what the order of the batches of every epoch follows from; None where that cannot be known.

    Why: Keras's loops know their data, and no public method of a model or a callback does.

    Returns:
        str, equal in two processes whose epochs have the same order, or None.
    """
    adapters = "keras.src.trainers.data_adapters"
    adapter = _need(epoch_iterator, "data_adapter")
    if isinstance(adapter, _need(f"{adapters}.array_data_adapter", "ArrayDataAdapter")):
        if not _need(adapter, "_shuffle"):
            return "as given"
        # Each epoch, in any process, has the one permutation that follows from this seed.
        seed = _need("keras.src.utils.rng_utils", "get_random_seed")()
        return None if seed is None else f"seed {seed}"
    if isinstance(adapter, _need(f"{adapters}.py_dataset_adapter", "PyDatasetAdapter")):
        dataset = _need(adapter, "py_dataset")
        changes = type(dataset).on_epoch_end is not keras.utils.PyDataset.on_epoch_end
        return None if changes or _need(adapter, "shuffle") else "as given"
    return None


def yield_calls(epoch_iterator, calls):
    """Have the epochs of a loop be what `calls` makes of them.

    Why: the loop takes the same number of steps in each call, and how many is best is known in the loop.

    Args:
        epoch_iterator: what a loop of Keras iterates over, with one step per call.
        calls: function of an iterator of `(first step, last step, batches)` and of the steps of the epoch,
            an int or None. It returns another such iterator.
    """
    steps = _need(epoch_iterator, "_enumerate_iterator")
    epoch_iterator._enumerate_iterator = lambda: calls(steps(), epoch_iterator.num_batches)


class LoopHooks:
    """A base, before `keras.Model`, that names moments of Keras's loops of which no public method tells.

    Why: Keras's `fit` and `evaluate` build a model from its first batch, and read its metrics after the last
    one. Where the batches are on workers, both need another way, and everything else of the loops stays. And
    where there is a GPU, `compile` chooses XLA for each model whose layers allow it, whatever its optimizer.
    """

    def check_hooks(self):
        """Raises ImportError where Keras has no such methods: its loops would pass ours by silently."""
        for name in ("_maybe_symbolic_build", "_get_metrics_result_or_logs", "_resolve_auto_jit_compile"):
            _need(keras.Model, name)

    def may_use_xla(self):
        """Return whether `jit_compile="auto"` may mean True. Keras asks the layers, and no optimizer."""
        return True

    def begin_loop(self, iterator):
        """Called with the data that a loop will iterate over."""

    def before_first_step(self, iterator, data_batch, build):
        """Builds the model: by `build(iterator=.., data_batch=..)`, which is Keras's way, or otherwise."""
        build(iterator=iterator, data_batch=data_batch)

    def after_last_step(self, logs):
        """Return the logs of the last step, from what its function returned; metrics have their state
        after it.
        """
        return logs

    order_of_batches = None  # of the last loop: see the function

    def _resolve_auto_jit_compile(self):
        return self.may_use_xla() and super()._resolve_auto_jit_compile()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            self.order_of_batches = order_of_batches(iterator)
            self.begin_loop(iterator)
        self.before_first_step(iterator, data_batch, super()._maybe_symbolic_build)

    def _get_metrics_result_or_logs(self, logs):
        return super()._get_metrics_result_or_logs(self.after_last_step(logs))


class GradientSums:
    """A base, before a Keras optimizer, that sums the gradients of the replicas by `sum_gradients`.

    Why: Keras sums them by a call that can be differentiated, and TensorFlow keeps what that needs for good:
    the graph of every training step, and with it the variables of the model.
    """

    def check_sums(self):
        """Raises ImportError where Keras has no such method: it would pass ours by silently."""
        _need(super(), "_all_reduce_sum_gradients")

    def sum_gradients(self, gradients):
        """Return the sums over the replicas of a list of tensors."""
        raise NotImplementedError

    def _all_reduce_sum_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        sums = iter(self.sum_gradients([gradient for gradient, _ in pairs if gradient is not None]))
        return [(None if gradient is None else next(sums), variable) for gradient, variable in pairs]


class AverageSwaps(keras.callbacks.SwapEMAWeights):
    """`keras.callbacks.SwapEMAWeights` that leaves the swap to optimizers which have `swap_averages`.

    Why: Keras swaps by arithmetic on whole variables, which finds no averages of tables, and gives the
    weights back with rounding errors. After `predict` it leaves the averages in the model.
    """

    def __init__(self, swap_on_epoch=False):
        super().__init__(swap_on_epoch)
        for name in ("_tf_swap_variables", "_tf_finalize_ema_values"):
            _need(keras.callbacks.SwapEMAWeights, name)

    def _tf_swap_variables(self, optimizer):
        if hasattr(optimizer, "swap_averages"):
            optimizer.swap_averages()
        else:
            super()._tf_swap_variables(optimizer)

    def _tf_finalize_ema_values(self, optimizer):
        if hasattr(optimizer, "swap_averages"):
            optimizer.keep_averages()
        else:
            super()._tf_finalize_ema_values(optimizer)

    def on_predict_end(self, logs=None):
        self.on_test_end(logs)
