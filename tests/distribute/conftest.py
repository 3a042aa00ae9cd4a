"""Graphs run as they were traced here.

TensorFlow's graph optimizer takes up to a quarter of a training over several devices. It is on in all other
tests. Those of `tests/conformance` train every layer and every optimizer on 4 devices, and some on 8.
"""

import pytest
import tensorflow as tf


@pytest.fixture(scope="module", autouse=True)
def _no_graph_optimizer():
    key = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(key, False)
    tf.config.optimizer.set_experimental_options({key: True})
    yield
    tf.config.optimizer.set_experimental_options({key: before})
