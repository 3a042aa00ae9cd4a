"""What tests of training share: which cases are soak, a `fit` that tells its losses, the arrays of tables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


def in_the_suite(cases, *kept):
    """Cases of `pytest.mark.parametrize`: those not of `kept` are soak tests."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in kept else pytest.mark.soak
        )
        for case in cases
    ]


def fit(model, data, batch=None, callbacks=(), **kwargs):
    """The losses of all steps. `data`: a dataset; or a tuple of arrays, of which `batch` rows make a step."""
    losses = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    dataset = data if batch is None else tf.data.Dataset.from_tensor_slices(tuple(data)).batch(batch)
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[record, *callbacks], **kwargs)
    return losses


def arrays_of(*tables, **variables):
    """The rows of tables and of their slots in logical order, wherever they are, and variables: by name."""
    arrays = {array.name: array.numpy() for table in tables for array in table.array.arrays()}
    return arrays | {name: np.array(variable.numpy()) for name, variable in variables.items()}


def assert_same(got, want, rtol=2e-4, atol=2e-5):
    """Two dictionaries of arrays have the same keys, and the same numbers but for rounding."""
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=rtol, atol=atol, err_msg=key)
