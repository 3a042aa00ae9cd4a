"""Every layer under every strategy: one table of what a layer of this package can do."""

import pytest
from _tables import strategy_of
from _training import assert_same
from conformance import _layer_checks
from conformance._layers import LAYERS

# Two devices: what saves, clones, exports or frees the parts of a table goes from part to part, however many
# there are. Numbers on more devices: `test_numbers_on_four_devices`, and tests/distribute.
DEVICES = {"one device": 1, "mirrored": 2}
# In the suite on one device alone. (Their mechanisms have tests of their own, in tests/layers:
# test_table_optimizers.py, test_dynamic_vocabulary.py, heads/test_own_optimizer.py; of the host in
# tests/tables/storage.)
ELSEWHERE_SOAK = (
    "HierarchicalSoftmax, fused",
    "ShardedEmbedding, fused",
    "DistributedEmbedding, fused",
    "ShardedEmbedding, vocabulary",
    "ShardedEmbedding, host",
)

# What the unit tests look at, on one device, of layers without an option, whose names have no comma. (Options
# have unit tests of their own, in tests/layers.)
UNIT, OPTION = ("numbers", "config", "save and load", "mixed_bfloat16", "export"), ", "

# In the suite on one device alone: the same code elsewhere takes seconds per cell to trace.
CHECKS_SOAK = ("mixed_bfloat16", "mixed_float16", "clone", "frozen", "released")

# Compared with a plain `keras.Model`, which trains on no servers.
ONE_DEVICE = ("steps of Keras",)


def _tier(row, strategy, check):
    if strategy == "one device":
        return pytest.mark.unit if check in UNIT and OPTION not in row else pytest.mark.full
    if row in ELSEWHERE_SOAK or check in CHECKS_SOAK:
        return pytest.mark.soak
    return pytest.mark.processes if strategy == "servers" else pytest.mark.full


CELLS = [
    pytest.param(row, strategy, check, marks=_tier(row, strategy, check))
    for row in LAYERS
    for strategy in [*DEVICES, "servers"]
    for check in _layer_checks.CHECKS
    if strategy == "one device" or check not in ONE_DEVICE
]


@pytest.mark.every_case
@pytest.mark.parametrize(("row", "strategy", "check"), CELLS)
def test_layer(row, strategy, check, tmp_path, in_processes):
    if strategy == "servers":
        told = in_processes("layers", row, check)
    else:
        told = _layer_checks.run(row, check, strategy_of(DEVICES[strategy]), tmp_path)
    if check == "numbers":
        # Those of one device, in graphs; and those of one device alone, of eager steps.
        one, trained = strategy_of(1), _layer_checks.trained
        assert_same(told, (trained(row, one, True) if strategy == "one device" else trained(row, one))[1])


# The other layers are on more than two devices in tests/distribute.
@pytest.mark.full
@pytest.mark.parametrize(
    "row",
    ["FullSoftmax", "SampledSoftmax", *(pytest.param(row, marks=pytest.mark.soak) for row in ELSEWHERE_SOAK)],
)
def test_numbers_on_four_devices(row, tmp_path):
    told = _layer_checks.run(row, "numbers", strategy_of(4), tmp_path)
    assert_same(told, _layer_checks.trained(row, strategy_of(1))[1])


@pytest.mark.soak
@pytest.mark.parametrize("strategy", DEVICES)
def test_thirty_models(strategy, tmp_path):
    for row in LAYERS:
        _layer_checks.released(row, strategy_of(DEVICES[strategy]), tmp_path, models=30 // len(LAYERS))
