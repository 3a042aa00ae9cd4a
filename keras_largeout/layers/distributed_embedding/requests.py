"""The lookups that the inputs of a `DistributedEmbedding` need."""

import tensorflow as tf

from keras_largeout.layers._inputs import as_ids
from keras_largeout.layers._sequences import padded, truncate
from keras_largeout.ops.embedding.wrapper import check_unweighted
from keras_largeout.tables.stacked_lookup import Request


class Requests:
    """The lookups of the features of a layer.

    Args:
        features: list of `FeatureConfig`.
        out_of_range: what the layer says of ids outside tables that do not say it themselves.

    Attributes:
        rules: dict from the names of the tables to `IdMapper`.
        uses: a `FeatureUse` for each feature, or nothing.
    """

    def __init__(self, features, out_of_range):
        self.features, self.uses = tuple(features), ()
        self.rules = {}
        for table in (feature.table for feature in self.features):
            # In a loaded layer each feature has a copy of its table's config. The first one is the layer's.
            if table.name not in self.rules:
                self.rules[table.name] = table.ids(out_of_range)

    def __call__(self, ids, weights, sections, training=None):
        """Return a `Request` per feature, in their order.

        Args:
            ids, weights: lists, what the layer was called with for each feature; weights may be None.
            sections: dict from the names of the tables to `Section`s.
            training: that of the layer's call, for vocabularies.

        Raises:
            ValueError: ids of another shape than a feature says, or weights of a feature whose combiner is
                "max".
            TypeError: weights of another kind than the ids.
        """
        ids = [as_ids(given, f.table.vocabulary_size) for f, given in zip(self.features, ids)]
        ids = [self._cut(feature, given) for feature, given in zip(self.features, ids)]
        weights = [None if w is None else self._cut(f, w) for f, w in zip(self.features, weights)]
        rows = self._in_tables(ids, training)
        for use, given, found in zip(self.uses, ids, rows):
            use.add(given, found)
        return [
            self._request(f, sections[f.table.name], r, w) for f, r, w in zip(self.features, rows, weights)
        ]

    def output(self, feature, rows):
        """Return what the layer returns for a feature, of the rows that its request got."""
        length = feature.max_sequence_length
        return rows if length is None else padded(rows, length)

    def mask(self, feature, ids):
        """Return which ids of a feature are no padding, bool of the shape of its output; symbolic ids too."""
        return self.rules[feature.table.name].is_token(ids, feature.max_sequence_length)

    @staticmethod
    def _cut(feature, ids):
        if feature.max_sequence_length is None:
            return ids
        feature.compute_output_shape(tuple(ids.shape), sparse=isinstance(ids, tf.SparseTensor))
        return truncate(ids, feature.max_sequence_length)

    def _in_tables(self, ids, training):
        """Return ids of all features as rows of their tables. A vocabulary sees all features of its table
        as one.
        """
        found = {}
        for name, rule in self.rules.items():
            indices = [n for n, feature in enumerate(self.features) if feature.table.name == name]
            found |= zip(indices, rule.together([ids[n] for n in indices], training))
        return [found[n] for n in range(len(ids))]

    def _request(self, feature, section, ids, weights):
        feature.compute_output_shape(tuple(ids.shape), sparse=isinstance(ids, tf.SparseTensor))
        check_unweighted(feature.combiner, weights, f"`weights` of the feature {feature.name!r}")
        kind = next((k for k in (tf.RaggedTensor, tf.SparseTensor) if isinstance(ids, k)), tf.Tensor)
        if weights is not None and kind is tf.Tensor:
            weights = weights if tf.is_tensor(weights) else tf.convert_to_tensor(weights)
        if weights is not None and not isinstance(weights, kind):
            raise TypeError(
                f"`weights` of the feature {feature.name!r} must be a {kind.__name__} as its ids are. "
                f"Received: {type(weights).__name__}"
            )
        if kind is tf.Tensor and ids.shape.rank == 1 and feature.combiner is not None:
            # One id each: bags of one.
            ids, weights = ids[:, None], None if weights is None else weights[:, None]
        left = self.rules[feature.table.name].in_op
        return Request(feature.name, section, ids, weights, feature.combiner, feature.padding, left)
