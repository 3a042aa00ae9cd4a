"""`place_anew`: the ids of a vocabulary in one of another capacity."""

from typing import NamedTuple

import numpy as np

from keras_largeout.ops.vocabulary.reference import EMPTY
from keras_largeout.ops.vocabulary.wrapper import update
from keras_largeout.replicas.devices import plain_variable


class Placed(NamedTuple):
    """The slots of ids in a vocabulary of another capacity.

    Attributes:
        keys, scores: int64 arrays `[capacity]`.
        source, target: int64 arrays `[m]`: the slots that the ids had, and those that they have.
    """

    keys: np.ndarray
    scores: np.ndarray
    source: np.ndarray
    target: np.ndarray


def place_anew(keys, scores, capacity):
    """Places ids in another number of slots, those of the highest scores first. The last ones may find none.

    Args:
        keys, scores: int64 arrays: see `update`.
        capacity: int, a multiple of 16.

    Returns:
        `Placed`.
    """
    taken = np.flatnonzero(keys != EMPTY)
    source = taken[np.argsort(-scores[taken], kind="stable")]
    empty = np.full(capacity, EMPTY), np.zeros(capacity, np.int64)
    first = *empty, np.zeros((0, 64), np.uint8), np.zeros(2, np.int64)  # nothing is counted
    state = [plain_variable(value, trainable=False) for value in first]
    # In one step each new id gets a slot that is free, in their order, and none loses its own.
    target = update(*state, keys[source], admit_after=1, evict="lru").rows.numpy()
    source, target = source[target >= 0], target[target >= 0]
    of_slots = np.zeros(capacity, np.int64)
    of_slots[target] = scores[source]
    return Placed(state[0].numpy(), of_slots, source, target)
