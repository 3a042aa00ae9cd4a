"""A hash of 64-bit integers by TensorFlow's own ops: the finalizer of SplitMix64.

Source: Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators", figure 16.
"""

import tensorflow as tf


def mixed(values):
    """Return int64 values, mixed bit by bit as unsigned ones are. (Sums and products of int64 wrap
    around.)
    """
    values += tf.constant(_signed(0x9E3779B97F4A7C15), tf.int64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = tf.bitwise.bitwise_xor(values, shifted(values, shift))
        values *= tf.constant(_signed(factor), tf.int64)
    return tf.bitwise.bitwise_xor(values, shifted(values, 31))


def shifted(values, by):
    """Return int64 values shifted to the right, with zeros from the left: TensorFlow's shift repeats the
    sign.
    """
    kept = tf.constant((1 << (64 - by)) - 1, tf.int64)
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(values, tf.constant(by, tf.int64)), kept)


def _signed(value):
    return value - 2**64 if value >= 2**63 else value
