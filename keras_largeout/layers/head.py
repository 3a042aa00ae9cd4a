"""What an output head is: a layer that returns its input, owns the output weights and brings its loss.

`head.loss` is a registered `keras.losses.Loss` (`head_loss.py`). It refers to its head weakly, and by
name once it is deserialised. It computes the losses from integer targets itself and hands them to Keras
for masks, weights and reduction: Keras would cast the targets to float32, which is exact up to class 16.7
million only. Masked tokens and those of weight 0 have the loss 0. `HierarchicalSoftmax` leaves them
out; `SparseOutput` computes them without their labels and drops the result.

What is state is saved with the weights: the tree of a `HierarchicalSoftmax` is three int32 variables. Its
config has only the tree's sizes, so that a loaded layer knows its shapes, and a digest, by which a clone
in the same process finds the tree.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.distribute.replicas.optimizer_check import check_optimizer
from keras_largeout.layers._inputs import hidden_vectors
from keras_largeout.layers.head_loss import HeadLoss, mark, register
from keras_largeout.layers.top_k import TopK
from keras_largeout.model import Model


class Head(keras.layers.Layer):
    """Base class of the output heads.

    `head(x)` returns `x`, the hidden vectors, so that a Keras model can end in it. One such vector, a time
    step or an example, is called a *token*. The scores of all classes are never formed. `head.loss` compares
    `(y_true, hidden)`, and `model.compile(loss=head.loss)` trains the head's weights with the model.

    The model's output being hidden vectors, metrics such as "accuracy" mean nothing on it: look at the loss
    (the exponential of a softmax's is the perplexity) and at `top_k`.

    Subclasses have `dim`, the length of the vectors, and implement `token_losses`, `best_classes` and
    `initialized`. One whose tokens have more than one class overrides `targets` as well, and one whose
    losses are not -log p(y | hidden) overrides `log_prob`.
    """

    dim = None  # before the layer is built

    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = positive_int("num_classes", num_classes)
        self.supports_masking = True
        self.supports_jit = False  # custom ops
        register(self)

    def call(self, inputs):
        check_optimizer(self)
        mark(inputs, self)
        return inputs

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def loss(self):
        """A `keras.losses.Loss` of `(y_true, hidden)`: the mean of `token_losses` over the tokens.

        These are -log p(y_true | hidden), where the head does not say otherwise.
        """
        return HeadLoss(self.name, head=self)

    def make_loss(self, **kwargs):
        """`loss` with other `keras.losses.Loss` arguments, such as `reduction="sum"`."""
        return HeadLoss(self.name, head=self, **kwargs)

    def targets(self, y_true, hidden):
        """What the loss makes of Keras's `y_true`.

        Args:
            y_true: as it came: a tensor, a `tf.RaggedTensor`, a `tf.SparseTensor` or an array.
            hidden: float `[..., dim]`.

        Returns:
            `(targets, like)`: the `y_true` of `token_losses`, and a tensor that has the shape of the
            tokens, `[...]`, which masks and sample weights are for.
        """
        ids = _class_ids(y_true, hidden)
        return ids, ids

    def token_losses(self, y_true, hidden, active=None):
        """The losses of all tokens, float32 `[...]`; 0 where `active` (bool `[...]`) is False."""
        raise NotImplementedError

    def log_prob(self, hidden, y):
        """log p(y | hidden).

        Args:
            hidden: float `[..., dim]`.
            y: int32 or int64 `[...]`, class ids.

        Returns:
            float32 `[...]`.
        """
        return -self.token_losses(tf.convert_to_tensor(y), tf.convert_to_tensor(hidden))

    def top_k(self, hidden, k):
        """The k classes of highest score, exactly.

        Args:
            hidden: float `[..., dim]`.
            k: int, `1 <= k <= num_classes`.

        Returns:
            `(scores, ids)`: float32 `[..., k]` in descending order and int32 `[..., k]`; ties go to the
            smaller id. Scores are log-probabilities, where the head does not say otherwise.

        Raises:
            ValueError: `k` outside that range.
        """
        self.check_k(k)
        hidden = hidden_vectors(self, tf.convert_to_tensor(hidden))
        shape = tf.concat([tf.shape(hidden)[:-1], [k]], 0)
        if not self.initialized:
            return tf.zeros(shape), tf.zeros(shape, tf.int32)
        best = self.best_classes(tf.reshape(hidden, [-1, self.dim]), k)
        static = [*hidden.shape[:-1], k]
        scores, ids = (tf.ensure_shape(tf.reshape(part, shape), static) for part in best)
        return scores, ids

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        raise NotImplementedError

    def best_classes(self, hidden, k):
        """What `top_k` gives, of float `[n, dim]`: `(scores, ids)`, `[n, k]` each."""
        raise NotImplementedError

    def predictor(self, model, k=10, position="all"):
        """A `keras.Model` from the inputs of `model` to the k classes of highest score.

        Args:
            model: a built model whose output is this head's (the hidden vectors).
            k: int.
            position: `"all"`, or `"last"`: only the last (unmasked) time step of `[batch, time, dim]` is
                scored.

        Returns:
            A `keras_largeout.Model` with the outputs `{"ids": int32 [..., k], "scores": float32 [..., k]}`,
            those of `top_k`. It shares the weights of `model`.

        Raises:
            ValueError: `model` has not one known output, as a subclassed model has none.
        """
        known = getattr(model, "inputs", None) and getattr(model, "outputs", None)
        if not known or len(model.outputs) != 1:
            raise ValueError(
                "`model` must be a built functional or sequential model that ends in this head alone. "
                f"Received: {model!r} with the outputs {getattr(model, 'outputs', None)}"
            )
        # A sequential model knows its tensors, but not as `input` and `output` before it was called.
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        outputs = TopK(self, k, position)(model.outputs[0])
        return Model(inputs, outputs, name=f"{model.name}_predictor")

    def check_k(self, k):
        whole = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
        if not whole or not 1 <= k <= self.num_classes:
            raise ValueError(
                f"`k` must be an integer in 1 .. num_classes={self.num_classes}. Received: k={k!r}"
            )

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


def _class_ids(y_true, hidden):
    """Class ids as integers, without the trailing axis of length 1 that Keras allows."""
    y_true = tf.convert_to_tensor(y_true)
    if y_true.dtype not in (tf.int32, tf.int64):
        y_true = tf.cast(y_true, tf.int64)
    rank = hidden.shape.rank
    if rank is not None and y_true.shape.rank is None:  # batches of several ranks were seen
        return tf.ensure_shape(tf.reshape(y_true, tf.shape(hidden)[:-1]), hidden.shape[:-1])
    if rank is not None and y_true.shape.rank == rank and y_true.shape[-1] == 1:
        y_true = tf.squeeze(y_true, -1)
    return y_true
