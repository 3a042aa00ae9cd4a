"""A head with a vocabulary on several hosts: all of them give the same ids the same classes."""

import json
import pathlib

import numpy as np
import tensorflow as tf

from tests.distribute.hosts import _names
from tests.distribute.hosts._local import LocalHosts


def test_two_hosts_train_on_names_as_one_device_does():
    hosts = LocalHosts(pathlib.Path(_names.__file__), 2, [])
    try:
        found = [json.loads(host.wait_for("^said (.*)").group(1)) for host in hosts.hosts]
        assert hosts.ended() == [0, 0], hosts.text()
    finally:
        hosts.close()
    alone = _names.told(tf.distribute.get_strategy())
    assert len(alone["known"]) == 32  # some names have lost their classes to others
    for said in found:
        assert "are searched on one host" in said["refused"]
        assert "Outputs of `predict` on several hosts must be numbers" in said["not_predicted"]
        assert said["known"] == alone["known"] and said["best"] == alone["best"]
        for name in ("loss", "top_3_accuracy", "evaluated"):
            np.testing.assert_allclose(said[name], alone[name], rtol=1e-5)
