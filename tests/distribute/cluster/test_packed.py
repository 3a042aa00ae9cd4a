"""Fewer messages between the chief and its workers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.distribute.cluster.packed import Packed, one_of, stack


def test_answers_come_back_as_they_were():
    packed = Packed()

    @tf.function
    def step(x):
        logs = {"loss": x * 2, "counts": tf.constant([[1, 2], [3, 2**40]], tf.int64), "fixed": 3.0}
        return packed.pack(([x, tf.zeros([0])], logs))

    (state, empty), logs = packed.unpack(step(0.1))
    assert np.float32(state) == np.float32(0.1) and empty.shape == (0,)
    assert np.float32(logs["loss"]) == np.float32(0.1) * 2 and logs["fixed"] == 3
    assert logs["counts"].tolist() == [[1, 2], [3, 2**40]]


def test_answers_of_unknown_shape():
    with pytest.raises(ValueError, match="must have a shape that is known"):
        tf.function(lambda x: Packed().pack({"logs": tf.boolean_mask(x, x > 0)}))(tf.ones([3]))


def test_batches_that_look_alike_travel_together(rng):
    batches = [(tf.constant(rng.normal(size=(4, 3))), {"y": tf.range(i, i + 4)}, None) for i in range(3)]
    together = stack(batches)
    assert together[0].shape == (3, 4, 3) and together[2] is None
    take = tf.function(one_of)
    for index, batch in enumerate(batches):
        other = take(together, tf.constant(index))
        np.testing.assert_array_equal(batch[0], other[0])
        np.testing.assert_array_equal(batch[1]["y"], other[1]["y"])
        assert other[0].shape == (4, 3) and other[2] is None


def test_batches_that_differ_travel_one_by_one():
    x = tf.ones([4, 3])
    assert stack([(x, None), (x[:2], None)]) is None
    assert stack([(x, None), (tf.cast(x, tf.float64), None)]) is None
    assert stack([(x, None), (x, x)]) is None
    assert stack([(tf.sparse.from_dense(x),)] * 2) is None
    assert stack([(tf.RaggedTensor.from_tensor(x),)] * 2) is None
