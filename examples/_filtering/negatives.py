"""What the models learn from: pairs of a user and an item, and as many others that the user does not have."""

import itertools

import numpy as np
import tensorflow as tf


class Negatives:
    """Draws items that users do not have, all of them equally likely.

    What is held out for the validation and the test counts as not had: whoever trains does not know it.

    Args:
        train: int32 `[pairs, 2]`, users and items.
        items: int, how many there are.
    """

    def __init__(self, train, items):
        if np.bincount(train[:, 0]).max() >= items:
            raise ValueError(f"A user has all {items} items in training: there are no others to draw")
        self._items = np.int64(items)
        self._keys = np.sort(train[:, 0] * self._items + train[:, 1])

    def owned(self, users, items):
        """Return bool `[n]`: whether each user has the item in training."""
        keys = users * self._items + items
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return self._keys[places] == keys

    def __call__(self, users, rng):
        """Return int64 `[n]`: an item for each of the users, which it does not have."""
        drawn = rng.integers(0, self._items, len(users))
        wrong = np.flatnonzero(self.owned(users, drawn))
        while len(wrong):
            drawn[wrong] = rng.integers(0, self._items, len(wrong))
            wrong = wrong[self.owned(users[wrong], drawn[wrong])]
        return drawn


class Batches:
    """Batches of positive pairs, shuffled again in each epoch, and of negatives drawn for them.

    Everything follows from the seed and the number of the epoch.

    Args:
        pairs: `Pairs`.
        positive: int, positive pairs in a batch; what is left of an epoch is dropped.
        negatives: int, how many are drawn for each of them.
        seed: int.

    Attributes:
        steps: int, batches in an epoch.
        positive, size: int, positive pairs and pairs in a batch.
    """

    def __init__(self, pairs, positive, negatives, seed):
        self._train, self._draw, self._seed = pairs.train, Negatives(pairs.train, pairs.items), seed
        self.positive, self._negatives = min(positive, len(pairs.train)), negatives
        self.steps, self.size = len(pairs.train) // self.positive, self.positive * (1 + negatives)

    @classmethod
    def of(cls, pairs, args):
        """Return those that the options of the example ask for."""
        return cls(pairs, args.batch, args.negatives, args.seed)

    def epoch(self, number):
        """Yields `({"user", "item"}, label)`, int32 `[size]` and float32 `[size, 1]`."""
        rng = np.random.default_rng([self._seed, number])
        order = rng.permutation(len(self._train))
        label = np.zeros([self.size, 1], np.float32)
        label[: self.positive] = 1
        for step in range(self.steps):
            user, item = self._train[order[step * self.positive :][: self.positive]].T
            user = np.tile(user, 1 + self._negatives)
            others = self._draw(user[self.positive :], rng).astype(np.int32)
            # A copy: TensorFlow takes the memory of an array that a generator yields, and may write to it.
            yield {"user": user, "item": np.concatenate([item, others])}, label.copy()

    def dataset(self):
        """Return a `tf.data.Dataset` of all epochs, without an end."""
        ids = tf.TensorSpec([self.size], tf.int32)
        return tf.data.Dataset.from_generator(
            lambda: itertools.chain.from_iterable(map(self.epoch, itertools.count())),
            output_signature=({"user": ids, "item": ids}, tf.TensorSpec([self.size, 1], tf.float32)),
        ).prefetch(4)
