"""Synchronous hosts train as one device does on the same batches: losses, predictions, tables and slots."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from _session import once

from tests.distribute.hosts import _models
from tests.distribute.hosts._local import LocalHosts

ALSO_ON_MORE = (
    "hot_adam_accumulation",
    "columns_ftrl",
    "table_sgd_clipvalue",
    "tree_fused",
    "full",
    "sparse_fused",
)
ALSO_ON_RAILS = (*ALSO_ON_MORE, "permutation_adagrad", "stacked", "sampled")
SCRIPT = pathlib.Path(__file__).with_name("_models.py")


def _train(folder, hosts, devices, cases):
    """Runs hosts that train the cases and write what they find into `folder`."""
    running = LocalHosts(SCRIPT, hosts, [folder, devices, *cases])
    try:
        for case in cases:
            for host in running.hosts:
                host.wait_for(f"^done {case}$")
        codes = running.ended()
    finally:
        running.close()
    assert codes == [0] * hosts, running.text()


def _found(folder, hosts, cases):
    """What each host has found for each case."""
    return {case: [np.load(folder / f"{case}_{host}.npz") for host in range(hosts)] for case in cases}


@pytest.fixture(scope="module")
def two_hosts(request):
    """What two hosts have found."""
    folder = once(request.config, "two_hosts", lambda folder: _train(folder, 2, 1, _models.CASES))
    return _found(folder, 2, _models.CASES)


@pytest.fixture(scope="module")
def one_device():
    found = {}

    def of(case):
        if case not in found:
            found[case] = _models.trained(case, tf.distribute.get_strategy(), 1)
        return found[case]

    return of


def _compare(case, on_hosts, expected):
    head = case in _models.HEADS
    for found in on_hosts:
        assert set(found) == set(expected)
        for name, want in expected.items():
            tolerance = 1e-5 if name == "losses" else 2e-4 if head else 2e-5
            np.testing.assert_allclose(found[name], want, tolerance, 10 * tolerance, err_msg=name)
    for name in expected:  # and all hosts have the same bits
        np.testing.assert_array_equal(on_hosts[0][name], on_hosts[-1][name])


@pytest.mark.parametrize("case", _models.CASES)
def test_two_hosts(case, two_hosts, one_device):
    _compare(case, two_hosts[case], one_device(case))


@pytest.mark.soak
@pytest.mark.parametrize(("hosts", "devices", "cases"), [(2, 2, ALSO_ON_RAILS), (4, 1, ALSO_ON_MORE)])
def test_more_hosts_and_devices(hosts, devices, cases, tmp_path, one_device):
    _train(tmp_path, hosts, devices, cases)
    found = _found(tmp_path, hosts, cases)
    for case in cases:
        _compare(case, found[case], one_device(case))
