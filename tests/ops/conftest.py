"""The device on which an op's test runs."""

import pytest
import tensorflow as tf


@pytest.fixture(params=["cpu", "gpu"])
def device(request):
    """The test runs on a CPU and on a GPU; without one it is skipped, and never runs on a CPU instead.

    For tests of a GPU alone: `@pytest.mark.parametrize("device", ["gpu"], indirect=True)`.
    """
    kind = request.param.upper()
    if not tf.config.list_logical_devices(kind):
        pytest.skip(f"no {kind}")
    with tf.device(f"/device:{kind}:0"):
        # A variable stays where it was made, and an op by handle runs where its variable is or not at all.
        assert f"device:{kind}:0" in tf.Variable(tf.zeros([1])).device
        yield request.param
