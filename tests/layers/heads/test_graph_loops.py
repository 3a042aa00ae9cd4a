"""The loss of a head in a loop of a graph, whose gradient is taken outside of it."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

CLASSES, DIM, STEPS = 23, 6, 3

HEADS = {
    "tree": functools.partial(kl.layers.HierarchicalSoftmax, counts=np.arange(CLASSES, 0, -1)),
    "full": kl.layers.FullSoftmax,
    "sampled": functools.partial(kl.layers.SampledSoftmax, num_sampled=5, distribution="uniform", seed=1),
    "connections": functools.partial(kl.layers.SparseOutput, fan_in=3, seed=1),
}


def unrolled(loss_of):
    return sum(loss_of(t) for t in range(STEPS))


def for_loop(loss_of):
    return tf.while_loop(lambda t, _: t < STEPS, lambda t, sum_: (t + 1, sum_ + loss_of(t)), (0, 0.0))[1]


def mapped(loss_of):
    return tf.reduce_sum(tf.map_fn(loss_of, tf.range(STEPS), fn_output_signature=tf.float32))


def nested(loss_of):
    def each(t):
        return tf.map_fn(lambda _: loss_of(t), tf.range(1), fn_output_signature=tf.float32)

    return tf.reduce_sum(tf.map_fn(each, tf.range(STEPS), fn_output_signature=tf.float32))


@pytest.mark.full
@pytest.mark.parametrize("loop", [for_loop, mapped, nested])
@pytest.mark.parametrize("optimizer", [None, "sgd"])
@pytest.mark.parametrize("kind", HEADS)
def test_gradients_are_those_of_the_steps_one_by_one(kind, optimizer, loop, rng):
    x = tf.constant(rng.normal(size=(STEPS, 4, DIM)), tf.float32)
    y = tf.constant(np.arange(4 * STEPS).reshape(STEPS, 4))  # no class twice
    found = []
    for run in (unrolled, loop):
        head = HEADS[kind](CLASSES, kernel_initializer="zeros", optimizer=optimizer)
        head.build((None, DIM))
        for variable in head.variables:
            if (
                variable.shape[:1] in ((CLASSES,), (getattr(head, "num_rows", 0),))
                and "float" in variable.dtype
            ):
                variable.assign(np.cos(np.arange(np.prod(variable.shape))).reshape(variable.shape))

        @tf.function
        def step(head=head, run=run):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = run(lambda t: head.loss(y[t], head(x[t])))
            values = [variable.value for variable in head.trainable_variables]
            return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, [x, *values]) if g is not None]

        loss, gradients = step()
        found.append([loss, *(gradients if optimizer is None else [])])
        if optimizer is not None:  # steps of the loop come in the order of its gradient, the last one first
            assert head.optimizer.iterations == STEPS
            assert np.all(np.isfinite(gradients[0]))
    for got, want in zip(*found):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "tree"])
def test_an_optimizer_of_the_heads_own_refuses_a_condition(kind):
    head = HEADS[kind](CLASSES, optimizer="sgd")
    head.build((None, DIM))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.cond(x[0, 0] > 0, lambda: head.loss(tf.range(4), head(x)), lambda: 0.0)
        return tape.gradient(loss, x)

    with pytest.raises(ValueError, match="must not be computed in a condition of a graph"):
        step(tf.ones([4, DIM]))
