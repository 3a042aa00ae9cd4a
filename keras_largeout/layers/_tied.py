"""A head whose kernel is the table of an embedding: one table for the first and the last layer.

The table belongs to the embedding: it is saved, planned and frozen there. The head refers to the embedding
weakly, and in a config by name: a clone, or a loaded model, takes the newest embedding of that name, which is
its own.
"""

import weakref

import keras

from keras_largeout._keras import note_made
from keras_largeout.layers._single_table import SingleTableMixin
from keras_largeout.tables.array import HOT
from keras_largeout.tables.keras_table import KerasTable

_EMBEDDINGS = weakref.WeakValueDictionary()  # name -> the newest embedding of that name


def register_embedding(layer):
    """Register an embedding, so that a head finds it by its name."""
    _EMBEDDINGS[layer.name] = layer


note_made(keras.layers.Embedding, register_embedding)


class Tied:
    """The embedding that a head shares its table with.

    Args:
        given: a `ShardedEmbedding` or a `keras.layers.Embedding`, or the name of one.
        num_classes: int, rows that the table must have.

    Raises:
        ValueError: `given` is neither, its table has another number of rows, or it computes logits in another
            way than by its rows: `tie_weights=False` or `logit_soft_cap` of a `ReversibleEmbedding`.
    """

    def __init__(self, given, num_classes):
        named = isinstance(given, str)
        ours = isinstance(given, SingleTableMixin) and hasattr(given, "output_dim")
        if not (named or ours or isinstance(given, keras.layers.Embedding)):
            raise ValueError(
                "`kernel` must be a ShardedEmbedding or a keras.layers.Embedding, the name of one, or None. "
                f"Received: kernel={given!r} of type {type(given).__name__}"
            )
        self.name, self.num_classes = given if named else given.name, num_classes
        self._reference = None if named else weakref.ref(given)
        if not named:
            self._check(given)

    def _check(self, embedding):
        if embedding.input_dim != self.num_classes:
            raise ValueError(
                f"`kernel` must have a row for each of the num_classes={self.num_classes} classes. "
                f"Received: {embedding.name!r} with input_dim={embedding.input_dim}"
            )
        # What a `ReversibleEmbedding` is made with: the head would train another softmax than the layer has.
        if not getattr(embedding, "tie_weights", True):
            raise ValueError(
                "`kernel` must be an embedding whose rows are the weights of its logits, too "
                "(`tie_weights=True`). For an untied one leave `kernel` None: the head has its own matrix. "
                f"Received: {embedding.name!r} with tie_weights={embedding.tie_weights}"
            )
        if getattr(embedding, "logit_soft_cap", None) is not None:
            raise ValueError(
                "`kernel` must be an embedding with `logit_soft_cap=None`: a head does not cap its logits. "
                f"Received: {embedding.name!r} with logit_soft_cap={embedding.logit_soft_cap}"
            )

    @property
    def embedding(self):
        """The embedding; None where there is none of its name."""
        embedding = None if self._reference is None else self._reference()
        return _EMBEDDINGS.get(self.name) if embedding is None else embedding

    def table(self, dim):
        """Return the table of the embedding, which is built if it was not: a `ShardedTable` or a
        `KerasTable`.

        Raises:
            ValueError: there is no such embedding; its table has another width or a placement that mixes
                classes; an embedding of Keras's has other weights than a matrix of float32 or bfloat16.
        """
        embedding = self.embedding
        if embedding is None:
            raise ValueError(
                f"`kernel` must be an embedding that exists. Received: the name {self.name!r}, of which "
                "there is none"
            )
        self._check(embedding)
        if embedding.output_dim != dim:
            raise ValueError(
                f"`kernel` must be as wide as the hidden vectors, {dim}. "
                f"Received: {embedding.name!r} with output_dim={embedding.output_dim}"
            )
        return _keras_table(embedding) if isinstance(embedding, keras.layers.Embedding) else _table(embedding)


def _keras_table(embedding):
    embedding.build()
    matrix = embedding.embeddings  # a tensor where the layer computes it, as with LoRA
    kind = getattr(matrix, "dtype", None) if isinstance(matrix, keras.Variable) else "computed"
    if kind not in ("float32", "bfloat16"):
        raise ValueError(
            "`kernel` of a head must be an embedding whose weights are one matrix of float32 or bfloat16. "
            f"Received: {embedding.name!r}, whose embeddings are {kind}"
        )
    return KerasTable(matrix)


def _table(embedding):
    if embedding.optimizer is not None:
        raise ValueError(
            "`kernel` of a head must be an embedding that the model's optimizer trains: a fused one sees "
            "the gradients of its own layer alone. "
            f"Received: {embedding.name!r} with optimizer={embedding.optimizer.name!r}"
        )
    if embedding.storage != "device":
        raise ValueError(
            '`kernel` of a head must be an embedding with storage="device": a head goes over all of its '
            f"rows. Received: {embedding.name!r} with storage={embedding.storage!r}"
        )
    embedding.build()
    table = embedding.table
    if not table.is_whole and (table.placement.kind != "range" or HOT in table.array.parts):
        raise ValueError(
            "`kernel` of a head must be cut over devices by ranges, or whole on each: make the embedding "
            f'with placement="range" or "replicated". Received: {embedding.name!r} with '
            f"{table.placement!r}"
        )
    table.exchange_dtype = None  # its gradients are joined with the head's, which are float32
    return table
