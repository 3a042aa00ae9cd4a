"""Every optimizer: dense weights as in Keras, rows as in the reference, every strategy as one device."""

import numpy as np
import pytest
from _tables import strategy_of
from _training import assert_same
from conformance import _optimizer_checks
from conformance._optimizers import (
    DIM,
    OPTIMIZERS,
    OPTIONS,
    ROWS,
    WRAPPERS,
    assert_close,
    gradients,
    make,
    scaled,
    weights,
)

from keras_largeout.ops import row_update as ru

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS)


def factor(optimizer):
    """What the gradients are to be multiplied by: the scale of the loss."""
    return float(optimizer.dynamic_scale) if hasattr(optimizer, "dynamic_scale") else 1.0


@pytest.mark.full
@every_wrapper
@every_optimizer
def test_dense_gradients_are_kerass_own_path(rng, name, wrapper):
    ours_of, kerass_of = WRAPPERS[wrapper]
    for option in OPTIONS if wrapper == "bare" else ["plain", "global_clipnorm"]:
        ours, truth = weights(), weights()
        a, b = ours_of(make(name, option)), kerass_of(make(name, option, truth=True))
        for one, variables in ((a, ours), (b, truth)):
            one.build(variables)
        for _ in range(5):
            _, dense = gradients(rng)
            a.apply_gradients(zip(scaled(dense, factor(a)), ours))
            b.apply_gradients(zip(scaled(dense, factor(b)), truth))
        for x, y in zip(ours + a.variables, truth + b.variables):
            np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=option)


@every_wrapper
@every_optimizer
def test_rows_equal_the_reference(rng, name, wrapper):
    """Some rows only: lazy updates have no Keras counterpart, so the op's NumPy reference is the truth."""
    inner, variables = make(name, "weight_decay"), weights()
    optimizer = WRAPPERS[wrapper][0](inner)
    optimizer.build(variables)
    table = variables[0].numpy()
    rule, slots = inner.row_rule, [slot.numpy() for slot in inner.slots_of(variables[0])]
    for step in range(5):
        sparse, _ = gradients(rng, touched=np.array([3, 5, 5, 20, 3, step]))
        hyper = inner.row_hyper(0.1, 0.01).numpy()
        table, slots = ru.row_update_reference(
            rule, table, slots, sparse[0].indices.numpy(), sparse[0].values.numpy(), hyper
        )
        optimizer.apply(scaled(sparse, factor(optimizer)), variables)
    assert_close([variables[0], *inner.slots_of(variables[0])], [table, *slots])
    untouched = np.setdiff1d(np.arange(ROWS), [0, 1, 2, 3, 4, 5, 20])
    np.testing.assert_array_equal(variables[0].numpy()[untouched], weights()[0].numpy()[untouched])
    assert table.shape == (ROWS, DIM)


# Bare ones on four devices, wrapped ones on two: what is scaled does not depend on how many there are, nor on
# the rule. On eight devices rules are tried behind `soak`: a device does with its rows what each of four
# does. (On synchronous hosts: tests/distribute/hosts/test_same_numbers.py.)
SCALED = ("momentum", "row_wise_adagrad", "lazy_adam")


def _cells(check, *strategies, only=OPTIMIZERS):
    """The cells of every optimizer under these strategies: all but those of `only` are soak tests."""
    return [
        pytest.param(row, strategy, check, marks=_tier(strategy) if row in only else pytest.mark.soak)
        for row in OPTIMIZERS
        for strategy in strategies
    ]


def _tier(strategy):
    return pytest.mark.processes if strategy == "servers" else pytest.mark.full


@pytest.mark.parametrize(
    ("row", "strategy", "check"),
    _cells("bare", 4, "servers")
    + _cells("loss scaled", "servers")
    + _cells("loss scaled", 2, only=SCALED)
    + _cells("bare", 8, only=()),
)
def test_optimizer(row, strategy, check, in_processes):
    """Named as the tables of `_processes.py` are: the cell of an optimizer, bare or wrapped."""
    if strategy == "servers":
        got = in_processes("optimizers", row, check)
    else:
        got = _optimizer_checks.run(row, check, strategy_of(strategy))
    want = _optimizer_checks.run(row, check, strategy_of(1))
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=1e-5)
    assert_same(got, want, 2e-5, 2e-6)
