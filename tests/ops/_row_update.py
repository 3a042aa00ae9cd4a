"""Numbers for rules, and random tables with their slots: for the tests of ops that update rows."""

import numpy as np

from keras_largeout.ops import row_update as ru

ALPHA = ru.adam_alpha(0.1, 0.9, 0.999, 3)
HYPER = {
    "sgd": lambda decay: ru.sgd_hyper(0.1, decay),
    "momentum": lambda decay: ru.momentum_hyper(0.1, 0.9, decay),
    "nesterov": lambda decay: ru.momentum_hyper(0.1, 0.9, decay),
    "adagrad": lambda decay: ru.adagrad_hyper(0.1, 1e-7, decay),
    "row_wise_adagrad": lambda decay: ru.adagrad_hyper(0.1, 1e-7, decay),
    "lazy_adam": lambda decay: ru.lazy_adam_hyper(ALPHA, 0.9, 0.999, 1e-7, decay),
    "ftrl": lambda decay: ru.ftrl_hyper(0.1, -0.5, 0.01, 0.1, 0.01, 0.1, decay),
}
SLOTS = {"sgd": 0, "lazy_adam": 2, "ftrl": 2}


def make(rng, rule, shape, dtype=np.float32):
    slot_shape = shape[:1] if rule == "row_wise_adagrad" else shape
    slots = [np.abs(rng.normal(size=slot_shape)).astype("float32") + 0.1 for _ in range(SLOTS.get(rule, 1))]
    return rng.normal(size=shape).astype(dtype), slots
