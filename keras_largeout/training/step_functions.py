"""`StepFunctions`: the train and test functions of a model, whose logs stay where they are computed."""

import functools

import keras
import tensorflow as tf


class StepFunctions:
    """A base of a Keras model, before Keras's own: it makes the functions that `fit` and `evaluate` call.

    Keras's functions return the logs of a step inside a `tf.experimental.Optional`, whose kernel runs on the
    CPU, so every step waits for a GPU. Here logs are tensors: of one step, or of the last one of
    `steps_per_execution` steps, which are a loop in one graph. Each step is Keras's, to the bit.
    """

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
    """Return what calls `step` on batches of an iterator, `model.steps_per_execution` of them per call."""

    @functools.partial(tf.function, reduce_retracing=True, jit_compile=model.jit_compile)
    @tf.autograph.experimental.do_not_convert
    def one(batch):
        strategy = model.distribute_strategy
        logs = strategy.run(step, args=(batch,))
        return keras.tree.map_structure(functools.partial(_mean, strategy), logs)

    @functools.partial(tf.function, reduce_retracing=True)
    @tf.autograph.experimental.do_not_convert
    def next_step(iterator):
        return one(_with_none(iterator.get_next()))

    @functools.partial(tf.function, reduce_retracing=True)
    @tf.autograph.experimental.do_not_convert
    def next_steps(iterator, count):
        """Return how many steps were taken, and the logs of the last one."""
        first = iterator.get_next_as_optional()
        made = one.get_concrete_function(_with_none(first.get_value())).structured_outputs

        def goes_on(i, batch, logs):
            return tf.logical_and(i < count, batch.has_value())

        def body(i, batch, logs):
            # The next batch is made while the step computes. One behind the last step is for the next call.
            following = tf.cond(i + 1 < count, iterator.get_next_as_optional, lambda: batch)
            logs = tf.nest.flatten(one(_with_none(batch.get_value())), expand_composites=True)
            return i + 1, following, logs

        none = [_placeholder(spec) for spec in tf.nest.flatten(made, expand_composites=True)]
        done, _, logs = tf.while_loop(goes_on, body, (0, first, none), parallel_iterations=1)
        return done, tf.nest.pack_sequence_as(made, logs, expand_composites=True)

    def function(iterator):
        count = model.steps_per_execution
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            for _, batch in zip(range(count), iterator):
                logs = one(_with_none(batch))
            return logs
        if count == 1:
            return next_step(iterator)
        done, logs = next_steps(iterator, count)
        if not done:
            raise StopIteration
        return logs

    return function


def _mean(strategy, value):
    """Return the mean over replicas of what a step returned."""
    parts = strategy.experimental_local_results(value)
    return value if len(parts) == 1 else tf.reduce_mean(parts, axis=0)


def _with_none(batch):
    """Return a batch in which None is None: datasets of Keras have an empty Optional there."""
    return keras.tree.map_structure(
        lambda part: None if isinstance(part, tf.experimental.Optional) else part, batch
    )


def _placeholder(spec):
    """Return zeros, of which only the type and the known part of the shape are known."""
    zeros = tf.zeros([size or 0 for size in spec.shape], spec.dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=zeros, shape=spec.shape)
