"""`CategoryHashing`: categories of any number, strings or integers, as ids of a table of fixed size."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.layers._inputs import categories, check_categories
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.hashing.reference import xxhash64_reference
from keras_largeout.ops.hashing.wrapper import HASHES, category_hash

RULES = (None, "sqrt")


@keras.saving.register_keras_serializable(package="keras_largeout")
class CategoryHashing(keras.layers.Layer):
    """Hashes categories into bins: a superset of `keras.layers.Hashing` that has no vocabulary to learn.

    One hash of `num_bins` makes two categories share an id as soon as they fall into one bin. With
    `num_hashes=k` a category has k ids, each of bins of its own, and its row is the sum of k rows:
    `ShardedEmbedding(hashing.total_bins, dim, combiner="sum")`. Two categories are then the same only where
    all k ids are. With `rule="sqrt"` each hash has the square root of `vocabulary_size` bins: of n categories
    with k = 4 hashes about half a pair in all shares its ids, and the table has 4 sqrt(n) rows.

    Works in a model and in a `tf.data` pipeline, on one tensor or on a dictionary of features.

    How an id comes about, for other programs. With `s` = `seed`, 0 where it is None, and for a feature of a
    dictionary `s = xxh64(name, seed=s)`:

    - "xxhash64": `xxh64(value, seed=s + j) % num_bins + j * num_bins`; of a cross `value` is the `xxh64` of
      the parts with seed 0, 8 bytes each, the lowest first, in the order of the tuple.
    - "farmhash64": the same of `farmhash64(farmhash64(value), s + j)`, 8 bytes each; of a cross all parts
      come before `s + j`. But `farmhash64(value)` itself for j = 0 where a tensor is hashed without a seed.
    - With a `mask_value` the remainder is that of `num_bins - 1`, plus one.

    Args:
        num_bins: int > 1, the bins of each hash. None with a `rule`, which computes it.
        num_hashes: int > 0, the ids of a category. Defaults to `1`.
        hash: "farmhash64": FarmHash64 by stock TensorFlow ops, the ids of
            `keras.layers.Hashing(num_bins, mask_value)`; exported models need nothing else. "xxhash64":
            XXH64, the numbers of the `xxhash` package of Python and of ETL tools, by an op of this package,
            which is faster. A model with it cannot be exported: hash in the pipeline then. Defaults to
            `"farmhash64"`.
        rule: None, or "sqrt": `num_bins` is the root of `vocabulary_size`, rounded up (and one more with a
            `mask_value`). Defaults to `None`.
        vocabulary_size: with `rule="sqrt"`, int > 1: how many categories are expected. Defaults to `None`.
        seed: None, or an int in `[0, 2**64)`. Other seeds give other ids. Defaults to `None`.
        mask_value: None, or the category that means padding: its ids are 0, and no other category has these.
            As in `keras.layers.Hashing`, the first of `num_bins` is kept for it. Features of a dictionary may
            be strings and integers: an integer masks integers, a string strings, and 0 masks "" as well.
            Defaults to `None`.
        crosses: None, or a list of tuples of names, with a dictionary of features: each tuple makes one more
            feature, the combination of theirs, named as in `keras.utils.FeatureSpace`: `"a_X_b"`. It is
            hashed from the hashes of its parts: no string is joined.
        **kwargs: `name` and the like.

    Attributes:
        total_bins: int, `num_hashes * num_bins`: the rows of a table for these ids.

    Call arguments:
        inputs: strings or integers: a tensor, a `tf.RaggedTensor` or a `tf.SparseTensor`; or a dictionary of
            such. The bytes of a string are hashed as they are, valid UTF-8 or not. An integer counts as its
            decimal digits: 7 and "7" are one category.

    Output shape:
        int64 ids of the kind of the inputs. Their shape is that of the inputs, and with several hashes one
        axis more, of `num_hashes`. Hash j has the ids `[j * num_bins, (j + 1) * num_bins)`. For a dictionary,
        a dictionary: its features and the crosses. Each is hashed with a seed of its name, so that one table
        can serve them all (other ids than of the feature by itself).

    Raises:
        ValueError: an argument outside its range, or in a call: a cross of features that are not there, or
            are not dense and of one shape; a dictionary without which there are no crosses.
        TypeError: values that are neither strings nor integers.

    Example:

    >>> hashing = kl.layers.CategoryHashing(
    ...     None, num_hashes=4, hash="xxhash64", rule="sqrt", vocabulary_size=1_000_000)
    >>> hashing.total_bins
    4000
    >>> ids = hashing(tf.constant(["B00005N7P0", "B00006IEJB"]))  # [2, 4]
    >>> kl.layers.ShardedEmbedding(hashing.total_bins, 64, combiner="sum")(ids).shape
    TensorShape([2, 64])

    References:
        - [Weinberger et al., 2009](https://arxiv.org/abs/0902.2206) (hashed features).
        - [Svenstrup et al., 2017](https://arxiv.org/abs/1709.03933), section 3 (several hashes).
    """

    def __init__(
        self,
        num_bins: int | None,
        num_hashes: int = 1,
        hash: str = "farmhash64",
        rule: str | None = None,
        vocabulary_size: int | None = None,
        seed: int | None = None,
        mask_value: int | str | None = None,
        crosses: Sequence[Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        check_one_of("rule", rule, RULES)
        check_one_of("hash", hash, HASHES)
        if (rule is None) != (vocabulary_size is None):
            raise ValueError(
                "`vocabulary_size` must be given with rule='sqrt', and None otherwise. "
                f"Received: rule={rule!r}, vocabulary_size={vocabulary_size!r}"
            )
        if rule is not None:
            if num_bins is not None:
                raise ValueError(
                    f"`num_bins` must be None where a `rule` computes it. Received: num_bins={num_bins!r}"
                )
            vocabulary_size = positive_int("vocabulary_size", vocabulary_size, minimum=2)
            num_bins = max(2, math.isqrt(vocabulary_size - 1) + 1) + int(mask_value is not None)
        self.num_bins = positive_int("num_bins", num_bins, minimum=2)
        self.num_hashes = positive_int("num_hashes", num_hashes)
        if seed is not None and not (isinstance(seed, (int, np.integer)) and 0 <= seed < 2**64):
            raise ValueError(f"`seed` must be None or an int from 0 to 2**64 - 1. Received: seed={seed!r}")
        super().__init__(**kwargs)
        self.hash, self.rule, self.vocabulary_size = hash, rule, vocabulary_size
        self.seed = None if seed is None else int(seed)
        self.mask_value = mask_value
        self.crosses = [_checked_cross(cross) for cross in crosses or ()]
        self.supports_jit = False  # a custom op, and strings
        self.autocast = False

    @property
    def total_bins(self) -> int:
        return self.num_hashes * self.num_bins

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        self.built = True

    def call(self, inputs: Any) -> Any:
        if self.hash == "xxhash64" and is_exporting():
            raise ValueError(
                f"`hash` of {self.name!r} must be 'farmhash64' in an exported model, which has TensorFlow's "
                "own ops alone. Or hash in the input pipeline, and export the model behind it. "
                "Received: hash='xxhash64'"
            )
        if not isinstance(inputs, dict):
            if self.crosses:
                raise ValueError(
                    f"`inputs` of {self.name!r} must be a dictionary of features: it has the crosses "
                    f"{self.crosses}. Received: {type(inputs).__name__}"
                )
            inputs = categories(inputs)
            return self._in_kind(inputs, self._ids([values_of(inputs)], self._seeds()))
        inputs = {name: categories(values) for name, values in inputs.items()}
        ids = {
            name: self._in_kind(values, self._ids([values_of(values)], self._seeds(name)))
            for name, values in inputs.items()
        }
        for parts in self.crosses:
            name, values = cross_name(parts), self._parts(parts, inputs)
            ids[name] = self._in_kind(values[0], self._ids(values, self._seeds(name)))
        return ids

    def _seeds(self, feature=None):
        """Return the seeds of the hashes of a feature of a dictionary, or of a tensor by itself."""
        if feature is None and self.seed is None and self.hash == "farmhash64":
            return [None, *range(1, self.num_hashes)]
        first = self.seed or 0
        if feature is not None:
            first = xxhash64_reference(feature.encode(), first)
        return [(first + j) % 2**64 for j in range(self.num_hashes)]

    def _ids(self, parts, seeds):
        """Return `[..., num_hashes]` ids of values, or of the cross of several of one shape."""
        shape, static = tf.shape(parts[0]), parts[0].shape
        flat = [tf.reshape(part, [-1]) for part in parts]
        first = int(self.mask_value is not None)
        ids = category_hash(flat, self.num_bins, seeds, hash=self.hash, first=first)
        if self.mask_value is not None:
            masked = tf.reduce_any(tf.stack([_equal(part, self.mask_value) for part in flat]), axis=0)
            ids = tf.where(masked[:, None], tf.zeros([], tf.int64), ids)
        ids = tf.reshape(ids, tf.concat([shape, [self.num_hashes]], 0))
        ids.set_shape(static.concatenate([self.num_hashes]))
        return ids

    def _in_kind(self, inputs, ids):
        """Return the ids as a tensor of the kind of the inputs. One id for each needs no axis."""
        if self.num_hashes == 1:
            return with_values(inputs, tf.squeeze(ids, -1))
        if not isinstance(inputs, tf.SparseTensor):
            return with_values(inputs, ids)
        k = tf.constant(self.num_hashes, tf.int64)
        which = tf.tile(tf.range(k), tf.shape(inputs.indices, tf.int64)[:1])
        indices = tf.concat([tf.repeat(inputs.indices, k, axis=0), which[:, None]], 1)
        return tf.SparseTensor(indices, tf.reshape(ids, [-1]), tf.concat([inputs.dense_shape, [k]], 0))

    def _parts(self, cross, inputs):
        missing = [name for name in cross if name not in inputs]
        if missing:
            raise ValueError(
                f"`crosses` must name features of the inputs, which are {sorted(inputs)}. Received: {cross}"
            )
        parts = [inputs[name] for name in cross]
        dense = all(isinstance(part, tf.Tensor) for part in parts)
        if not dense or not all(part.shape.is_compatible_with(parts[0].shape) for part in parts):
            kinds = [f"{name}: {type(part).__name__} {part.shape}" for name, part in zip(cross, parts)]
            raise ValueError(
                f"The features of a cross must be dense tensors of one shape. Received: {', '.join(kinds)}"
            )
        return parts

    def collisions(self, values: ArrayLike) -> dict[str, int | float]:
        """Return how many different categories share an id with another one, and how many would by chance.

        Args:
            values: strings or integers, a NumPy array or a list of any shape. Only different ones count.

        Returns:
            A dictionary: `categories` (int, the different values), `tuples` (int, their different ids, all
            `num_hashes` of a category together), `collisions` (int, their difference) and `expected` (float,
            of a perfect hash: n - m (1 - (1 - 1/m)^n) for n categories and m possible tuples).
        """
        values = np.unique(np.asarray(values))
        ids = self._ids([categories(values)], self._seeds()).numpy()
        tuples = len(np.unique(ids, axis=0)) if self.num_hashes > 1 else len(np.unique(ids))
        n = len(values)
        possible = float(self.num_bins - int(self.mask_value is not None)) ** self.num_hashes
        expected = n + possible * math.expm1(n * math.log1p(-1 / possible))
        return {"categories": n, "tuples": tuples, "collisions": n - tuples, "expected": max(0.0, expected)}

    # Symbolically.

    def compute_output_shape(self, input_shape: Any) -> Any:
        if not isinstance(input_shape, dict):
            return (*input_shape, *self._last_axis())
        shapes = {name: (*shape, *self._last_axis()) for name, shape in input_shape.items()}
        return shapes | {cross_name(c): (*input_shape[c[0]], *self._last_axis()) for c in self.crosses}

    def _last_axis(self):
        return () if self.num_hashes == 1 else (self.num_hashes,)

    def compute_output_spec(self, inputs: Any) -> Any:
        def spec(values):
            check_categories(values.dtype)
            kind = {key: True for key in ("ragged", "sparse") if getattr(values, key, False)}
            return keras.KerasTensor((*values.shape, *self._last_axis()), dtype="int64", **kind)

        if not isinstance(inputs, dict):
            return spec(inputs)
        specs = {name: spec(values) for name, values in inputs.items()}
        for cross in self.crosses:
            missing = [name for name in cross if name not in inputs]
            if missing:
                self._parts(cross, inputs)
            specs[cross_name(cross)] = spec(inputs[cross[0]])
        return specs

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_bins": None if self.rule else self.num_bins,
            "num_hashes": self.num_hashes,
            "hash": self.hash,
            "rule": self.rule,
            "vocabulary_size": self.vocabulary_size,
            "seed": self.seed,
            "mask_value": self.mask_value,
            "crosses": [list(cross) for cross in self.crosses],
        }


def cross_name(parts):
    """Return what the cross of these features is called."""
    return "_X_".join(parts)


def _checked_cross(cross):
    if isinstance(cross, str) or len(cross) < 2 or not all(isinstance(name, str) for name in cross):
        raise ValueError(
            f"`crosses` must be a list of tuples of two or more names of features. Received: {cross!r}"
        )
    return tuple(cross)


def _equal(values, mask_value):
    """Return which of flat values are the mask: bool `[n]`. 0 is "" among strings; else strings are no
    integers.
    """
    strings = values.dtype == tf.string
    if strings and isinstance(mask_value, int) and mask_value == 0:
        mask_value = ""
    if isinstance(mask_value, (str, bytes)) != strings:
        return tf.zeros_like(values, tf.bool)
    if not strings and not values.dtype.min <= mask_value <= values.dtype.max:
        return tf.zeros_like(values, tf.bool)
    return values == tf.constant(mask_value, values.dtype)
