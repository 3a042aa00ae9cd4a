"""`StepFunctions`: the train and test functions of a model, whose logs stay where they are computed."""

import contextlib
import functools
import inspect

import keras
import tensorflow as tf

from keras_largeout._keras import LoopHooks, yield_calls
from keras_largeout.ops.labels import on_the_host
from keras_largeout.replicas._tensorflow import is_host_fed, stop_before_data_goes
from keras_largeout.training.auto_steps import AutoSteps, wants_every_batch


class StepFunctions(LoopHooks):
    """A base of a Keras model, before Keras's own: it makes the functions that `fit` and `evaluate` call.

    Keras's functions return the logs of a step inside a `tf.experimental.Optional`, whose kernel runs on the
    CPU, so every step waits for a GPU. Here logs are tensors: of one step, or of the last one of
    `steps_per_execution` steps, which are a loop in one graph. Each step is Keras's, to the bit.
    `predict` keeps Keras's function: its outputs are in no Optional, and a step waits for nothing else.
    """

    says_steps = False  # whether `compile` was given a number as `steps_per_execution`
    _auto_steps = None  # in `fit`: an `AutoSteps`

    def compile(self, *args, **kwargs):
        call = inspect.signature(super().compile).bind(*args, **kwargs)
        self.says_steps = call.arguments.get("steps_per_execution", "auto") != "auto"
        if not self.says_steps:
            call.arguments["steps_per_execution"] = 1  # Keras takes numbers only
        super().compile(*call.args, **call.kwargs)

    def fit(self, *args, **kwargs):
        given = kwargs.get("callbacks")
        callbacks = keras.tree.flatten(getattr(given, "callbacks", given) or [])
        chooses = self.may_choose_steps and self.steps_per_execution == 1 and not self.says_steps
        if chooses and not any(map(wants_every_batch, callbacks)):
            self._auto_steps = AutoSteps()
        try:
            return super().fit(*args, **kwargs)
        finally:
            self._auto_steps = None

    @property
    def may_choose_steps(self):
        """True where `fit` may take several steps per call: on one machine."""
        return True

    def begin_loop(self, iterator):
        if self._auto_steps is not None and not self._auto_steps.begun:
            self._auto_steps.begun = True
            yield_calls(iterator, self._auto_steps.calls)

    def make_train_function(self, force=False):
        """Make `train_function`, unless there is one. Override it to train in another way."""
        if self._is_left_to_keras:
            return super().make_train_function(force)
        if self.train_function is None or force:
            self.train_function = _step_function(self, self.train_step)
        return self.train_function

    def make_test_function(self, force=False):
        """Make `test_function`, unless there is one. Override it to evaluate in another way."""
        if self._is_left_to_keras:
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = _step_function(self, self.test_step)
        return self.test_function

    @property
    def _is_left_to_keras(self):
        return self.run_eagerly or getattr(self, "unrolled_steps_per_execution", 1) > 1


def _step_function(model, step):
    """Return what calls `step` on batches of an iterator, and returns the logs of the last one.

    Where there is no batch, nothing of a step happens. (At the end of the data, Keras's step counts itself.)
    """

    @functools.partial(tf.function, reduce_retracing=True, jit_compile=model.jit_compile)
    @tf.autograph.experimental.do_not_convert
    def one(batch):
        strategy = model.distribute_strategy
        logs = strategy.run(step, args=(batch,))
        return keras.tree.map_structure(functools.partial(_mean, strategy), logs)

    def step_of(batch, otherwise):
        """Return 1 and the logs of a step, a flat list; or 0 and `otherwise` where there is no batch.

        The number stays in host memory, also where it is handed on: bools are kept on a GPU.
        """
        with on_the_host():
            taken = tf.cast(batch.has_value(), tf.int32)
        logs = tf.cond(
            batch.has_value(), lambda: _flat(one(_with_none(batch.get_value()))), lambda: otherwise
        )
        return taken, logs

    def logs_of(iterator):
        """Return the structure of the logs of a step, and placeholders for them, a flat list."""
        made = one.get_concrete_function(_with_none(iterator.element_spec)).structured_outputs
        return made, [_placeholder(spec) for spec in _flat(made)]

    @functools.partial(tf.function, reduce_retracing=True)
    @tf.autograph.experimental.do_not_convert
    def next_step(iterator):
        if isinstance(iterator, tf.distribute.DistributedIterator):  # whose Optional fails in `tf.cond`
            with _data_scope(iterator):
                batch = iterator.get_next()
            return tf.constant(1), one(_with_none(batch))
        made, none = logs_of(iterator)
        taken, logs = step_of(iterator.get_next_as_optional(), none)
        return taken, tf.nest.pack_sequence_as(made, logs, expand_composites=True)

    @functools.partial(tf.function, reduce_retracing=True)
    @tf.autograph.experimental.do_not_convert
    def next_steps(iterator, count):
        made, none = logs_of(iterator)
        loop = loop_over_replicas if isinstance(iterator, tf.distribute.DistributedIterator) else loop_here
        done, logs = loop(iterator, count, none)
        return done, tf.nest.pack_sequence_as(made, logs, expand_composites=True)

    def loop_here(iterator, count, none):
        def body(left, done, logs):
            # No batch is handed from turn to turn: a GPU would be sent it, and asked for it again.
            taken, logs = step_of(iterator.get_next_as_optional(), logs)
            return (left - 1) * taken, done + taken, logs

        counts = count, tf.constant(0)
        _, done, logs = tf.while_loop(lambda left, *_: left > 0, body, (*counts, none), parallel_iterations=1)
        return done, logs

    def loop_over_replicas(iterator, count, none):
        def goes_on(done, batch, logs):
            with _data_scope(iterator):
                more = tf.cast(tf.logical_and(done < count, batch.has_value()), tf.int32)
            return more > 0  # from a number, which stays in host memory

        def body(done, batch, logs):
            # A batch behind the last step is for the next call.
            with _data_scope(iterator):
                following = tf.cond(done + 1 < count, iterator.get_next_as_optional, lambda: batch)
                values = batch.get_value()
            return done + 1, following, _flat(one(_with_none(values)))

        with _data_scope(iterator):
            first = iterator.get_next_as_optional()
        done, _, logs = tf.while_loop(goes_on, body, (0, first, none), parallel_iterations=1)
        return done, logs

    def function(iterator):
        auto, count = model._auto_steps, model.steps_per_execution
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            for _, batch in zip(range(count), iterator):
                logs = one(_with_none(batch))
            return logs
        stop_before_data_goes(iterator)
        if auto is not None:
            count, auto.called = auto.count, True
        taken, logs = next_step(iterator) if count == 1 else next_steps(iterator, tf.constant(count))
        if not taken:
            raise StopIteration
        return logs

    return function


def _data_scope(iterator):
    """Return a context in which a `DistributedIterator` is asked for what it has: where its data are."""
    return on_the_host() if is_host_fed(iterator) else contextlib.nullcontext()


def _flat(structure):
    return tf.nest.flatten(structure, expand_composites=True)


def _mean(strategy, value):
    """Return the mean over replicas of what a step returned."""
    parts = strategy.experimental_local_results(value)
    return value if len(parts) == 1 else tf.reduce_mean(parts, axis=0)


def _with_none(batch):
    """Return a batch, or its spec, in which None is None: datasets of Keras have an empty Optional there."""
    empty = tf.experimental.Optional, tf.OptionalSpec
    return keras.tree.map_structure(lambda part: None if isinstance(part, empty) else part, batch)


def _placeholder(spec):
    """Return zeros, of which only the type and the known part of the shape are known."""
    zeros = tf.zeros([size or 0 for size in spec.shape], spec.dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=zeros, shape=spec.shape)
