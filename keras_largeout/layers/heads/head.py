"""The base of the output heads: layers that return their input, own the output weights and bring their loss.

`head.loss` is a registered `keras.losses.Loss` (`head_loss.py`). It refers to its head weakly, and by
name once it is deserialised. It computes the losses from integer targets itself and hands them to Keras
for masks, weights and reduction: Keras would cast the targets to float32, which is exact up to class 16.7
million only. Tokens that are masked, of weight 0 or without a target have the loss 0. `HierarchicalSoftmax`
leaves them out; `SparseOutput` computes them without their labels and drops the result.

What `compile` was given in the place of `head.loss` is checked in `_compile_check.py`: to Keras's own losses
and metrics hidden vectors look like scores of classes.

What a head makes of targets is in `_scoring.py`, how the best classes are found in `_search.py`. The ids that
stand for classes are in `layers/_class_vocabulary.py`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import number_of_classes, positive_int
from keras_largeout._head_annotations import annotate, annotate_training
from keras_largeout.layers._class_vocabulary import ClassVocabulary
from keras_largeout.layers._inputs import check_keras_3
from keras_largeout.layers.heads._compile_check import check_call, check_outputs
from keras_largeout.layers.heads._scoring import Scoring
from keras_largeout.layers.heads._search import Search
from keras_largeout.layers.heads.head_loss import HeadLoss, register
from keras_largeout.layers.heads.predictor import predictor
from keras_largeout.layers.heads.sampling import Penalties, log_probs, sample
from keras_largeout.replicas.optimizer_check import check_optimizer


class Head(Scoring, Search, keras.layers.Layer):
    """Base class of the output heads.

    `head(x)` returns `x`, the hidden vectors, so that a Keras model can end in it. One such vector, a time
    step or an example, is called a *token*. The scores of all classes are never formed. `head.loss` compares
    `(y_true, hidden)`, and `model.compile(loss=head.loss)` trains the head's weights with the model.

    The output being hidden vectors, losses and metrics of Keras, such as "accuracy", mean nothing on it, nor
    behind layers without weights that follow: they are refused.
    `kl.metrics.Perplexity`, `kl.metrics.TopKAccuracy` and the others of `kl.metrics` find the head.

    Targets equal to -1 are ignored: the token has the loss 0 and is left out of the mean.

    A token may have a list of targets, such as all items that a user took: `[..., m]` filled up with -1, a
    `tf.RaggedTensor`, or a multi-hot matrix. Its loss is then the mean over the list: `evaluate` takes the
    lists that metrics measure. A token without a target is left out. (`SparseOutput` is made for lists, and
    adds up. There a token without a label counts: all labels are wrong for it.)

    A `sample_weight` of the shape of the lists, `[..., m]`, has a weight for each target: the loss of the
    token is then the sum of the weights times the losses. With the probabilities of a teacher that is the
    cross-entropy with its distribution. (Not for `SparseOutput`.)

    Subclasses have `dim`, the length of the vectors, and implement `token_losses`, `best_classes` and
    `initialized`. One that computes the losses of lists sets `scores_lists`, and one whose losses are not
    -log p(y | hidden) overrides `log_prob` and `has_log_probs`.

    With a `vocabulary`, targets are ids: any integers but -1, or strings but "", which stand for no target.
    The loss maps them to classes. In training new ids are counted and get classes, as in an embedding of the
    same vocabulary; the weights of a class that another id gets begin again. An id without a class, such as a
    new one in `evaluate`, counts as no target. `TopK` and `predictor` answer with ids, and take ids as
    `exclude`. Classes that stand for no id are never among the best. The methods of the head (`top_k`,
    `log_prob`, `sample`, ...) have class numbers.

    Args:
        num_classes: int > 0.
        vocabulary: None; a `DynamicVocabulary`; or a Keras `StringLookup` or `IntegerLookup`, whose ids do
            not change. `num_classes` is its `vocabulary_size()`. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the hidden vectors.

    Raises:
        ValueError: `num_classes` is not a positive integer, or not that of the `vocabulary`; `vocabulary` is
            another layer, or with a number for each class (`counts`, `class_weight`, `label_weights`) a
            `DynamicVocabulary`; in `compile`, a loss or metric that takes the hidden vectors for something
            else.

    Example:

    >>> head = kl.layers.FullSoftmax(10)  # a subclass
    >>> hidden = head(np.ones([2, 4], "float32"))
    >>> float(tf.reduce_sum(head.loss([3, 5], hidden))) > 0
    True
    """

    dim: Any = None  # before the layer is built
    has_log_probs = True  # whether the loss of a token is -log p(y | hidden)

    def __init__(self, num_classes: int, vocabulary: keras.Layer | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = positive_int("num_classes", num_classes)
        self.vocabulary = vocabulary
        self.class_vocabulary = ClassVocabulary(vocabulary, self)
        self.supports_masking = True
        self.supports_jit = False  # custom ops
        register(self)

    def call(self, inputs: tf.Tensor, training: bool | None = False) -> tf.Tensor:
        check_keras_3(self, inputs)
        check_optimizer(self)
        check_call(self)
        hidden = tf.identity(inputs)  # its own tensor: other heads may get the same inputs
        annotate(hidden, self, inputs)
        annotate_training(hidden, training)
        if training:
            self.class_vocabulary.annotate_step(hidden)
        return hidden

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def compute_output_spec(self, inputs: tf.Tensor, training: bool | None = False) -> keras.KerasTensor:
        hidden = super().compute_output_spec(inputs)
        annotate(hidden, self, inputs)
        return hidden

    @property
    def loss(self) -> keras.Loss:
        """A `keras.losses.Loss` of `(y_true, hidden)`: the mean of `token_losses` over the tokens.

        These are -log p(y_true | hidden), where the head does not say otherwise.
        """
        return HeadLoss(self.name, head=self)

    def make_loss(self, **kwargs: Any) -> keras.Loss:
        """Return `loss` with other arguments.

        Args:
            ignore_class: int or None: tokens with this target are left out of the loss and of its mean, as in
                `keras.losses.SparseCategoricalCrossentropy`. (Where a token has a list of labels, this one is
                left out of the list.)
            **kwargs: arguments of `keras.losses.Loss`: `name`, `reduction` (such as "sum"), `dtype`.

        Raises:
            ValueError: `ignore_class` is no integer.
        """
        return HeadLoss(self.name, head=self, **kwargs)

    def check_compiled(self, model: keras.Model, outputs: Sequence) -> None:
        """Checks what `model.compile` was given for `outputs`, of which one at least is this head's.

        Raises:
            ValueError: a loss or metric that takes hidden vectors for something else.
        """
        check_outputs(model, outputs)

    def token_losses(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, active: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the losses of all tokens, float32 `[...]`; 0 where `active` (bool `[...]`) is False."""
        raise NotImplementedError

    @property
    def initialized(self) -> bool:
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        raise NotImplementedError

    def best_classes(self, hidden: tf.Tensor | np.ndarray, k: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what `top_k` gives, of float `[n, dim]`: `(scores, ids)`, `[n, k]` each.

        k: int, or an int32 scalar tensor.
        """
        raise NotImplementedError

    def log_prob(self, hidden: tf.Tensor | np.ndarray, y: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Return log p(y | hidden).

        Args:
            hidden: float `[..., dim]`.
            y: int32 or int64 `[...]`, class ids.

        Returns:
            float32 `[...]`.
        """
        return -self.token_losses(tf.convert_to_tensor(y), tf.convert_to_tensor(hidden))

    def top_k(
        self,
        hidden: tf.Tensor | np.ndarray,
        k: int,
        exclude: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the k classes of highest score, exactly.

        Args:
            hidden: float `[..., dim]`.
            k: int, `1 <= k <= num_classes`.
            exclude: classes that are left out, such as the items that a user has seen: ids, int `[..., m]`,
                of each token, or `[batch, m]`, of each row of `[batch, time, dim]`; dense, or
                `[batch, m]` as a `tf.RaggedTensor` or a `tf.SparseTensor`. -1, and what is no class, excludes
                nothing. Defaults to `None`.

        Returns:
            `(scores, ids)`: float32 `[..., k]` in descending order and int32 `[..., k]`; ties go to the
            smaller id. Scores are log-probabilities, where the head does not say otherwise. Where `exclude`
            leaves fewer than k classes, the id -1 follows, of score -inf. Scores have gradients: to the
            hidden vectors, and on one device to the weights. Over several hosts the scores of a
            `SparseOutput` have none: asking raises NotImplementedError.

        Raises:
            ValueError: `k` outside that range; `exclude` is of another shape, or no integers.

        Example:

        ```python
        scores, items = head.top_k(model(history), k=10, exclude=history)  # [users, 10] each
        ```
        """
        return self._top_k(hidden, k, exclude)

    def log_probs(self, hidden: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Return log p of all classes, for outputs so small that `[..., num_classes]` numbers fit into
        memory.

        Args:
            hidden: float `[..., dim]`.

        Returns:
            float32 `[..., num_classes]`.

        Raises:
            ValueError: the head's scores are no log-probabilities.
        """
        return log_probs(self, hidden)

    def sample(
        self,
        hidden: tf.Tensor | np.ndarray,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | keras.random.SeedGenerator | None = None,
        exclude: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray | None = None,
        previous: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray | None = None,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
    ) -> tf.Tensor:
        """Draws a class for every token.

        Args:
            hidden: float `[..., dim]`.
            temperature: float > 0: the log-probabilities are divided by it. Defaults to `1.0`.
            top_k: int or None: only the k most probable classes are drawn from. None: all of them, with
                `[..., num_classes]` numbers in memory: for a large output give a `top_k`. Defaults to `None`.
            top_p: float in (0, 1] or None: of these, only as many of the most probable as have at least this
                probability together (at this temperature). Defaults to `None`.
            seed: int, `keras.random.SeedGenerator` or None, as in `keras.random.categorical`.
            exclude: classes that are never drawn, as in `top_k`. Defaults to `None`.
            previous: classes that came before, such as the words of the text, in the forms of `exclude`: the
                three penalties make them less probable, before temperature, `top_k` and `top_p`. Defaults to
                `None`.
            repetition_penalty: float >= 1, by which their log-probabilities are multiplied. (Keskar et al.
                divide logits, whose zero is arbitrary.) Defaults to `1.0`.
            frequency_penalty: float >= 0, subtracted from the log-probability of a class for each time that
                it is in `previous`. Defaults to `0.0`.
            presence_penalty: float >= 0, subtracted once. Defaults to `0.0`.

        Returns:
            int32 `[...]`, class ids; -1 where `exclude` leaves none.

        Raises:
            ValueError: an argument out of range; the head's scores are no log-probabilities; `exclude` or
                `previous` is of another shape, or no integers; in a graph, `top_k` with a `previous` of no
                static width.
            tf.errors.InvalidArgumentError: scores that are NaN.

        Example:

        ```python
        hidden = model(tokens)[:, -1]  # of the last time step, [batch, dim]
        words = head.sample(hidden, temperature=0.8, top_k=50, top_p=0.95)  # [batch]
        words = head.sample(hidden, exclude=unknown, previous=tokens, presence_penalty=0.5)
        ```

        References:
            - [Fan et al., 2018](https://arxiv.org/abs/1805.04833), section 5.4 (top-k sampling).
            - [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), section 3.1 (nucleus sampling).
            - [Keskar et al., 2019](https://arxiv.org/abs/1909.05858), section 4.1 (repetition penalty).
        """
        penalties = Penalties(repetition_penalty, frequency_penalty, presence_penalty)
        return sample(self, hidden, temperature, top_k, top_p, seed, exclude, previous, penalties)

    def predictor(
        self,
        model: keras.Model,
        k: int | None = 10,
        position: str = "all",
        exclude: keras.KerasTensor | None = None,
    ) -> keras.Model:
        """Return a `keras.Model` from the inputs of `model` to the k classes of highest score.

        Args:
            model: a model of which an output is this head's (the hidden vectors). It may have others, and it
                may be a subclassed one.
            k: int; or None: the scores of all classes, for an output so small that they fit into memory.
                Defaults to `10`.
            position: `"all"`, or `"last"`: only the last (unmasked) time step of `[batch, time, dim]` is
                scored. A mask that merging layers of a functional model have lost, such as the sum of tokens
                and positions by `keras.layers.Add`, is found again; where it cannot be, a warning says so.
                Defaults to `"all"`.
            exclude: None, or the `keras.Input` of what `top_k` is to leave out: an input of `model`, or a new
                one, which the predictor then takes, too. For an export it must be dense, padded with -1.
                Defaults to `None`.

        Returns:
            A `keras_largeout.Model` with the outputs `{"ids": int32 [..., k], "scores": float32 [..., k]}`,
            as of `top_k`: id -1 and score -inf where `exclude` leaves fewer than k classes. With `k=None`
            the output is the scores alone, float32 `[..., num_classes]` in the order of the ids. It shares
            the weights of `model`. Of a subclassed model it is one that calls `model`; saved, it needs the
            class of `model` to be serialisable, and exported, an `input_signature`.

        Raises:
            ValueError: no output of `model` is this head's; `exclude` for a subclassed model (take
                `kl.layers.TopK` there).

        Example:

        ```python
        seen = keras.Input((None,), dtype="int32", ragged=True, name="seen")
        recommender = head.predictor(model, k=10, exclude=seen)  # of {"items": ..., "seen": ...}
        ```
        """
        return predictor(self, model, k, position, exclude)

    def summary_note(self) -> str | None:
        """Return what `model.summary()` of a `kl.Model` says of the head's numbers: a str, or None."""
        sizes = {True: 0, False: 0}  # of weights, and of integers
        for weight in self.weights:
            sizes[tf.as_dtype(weight.dtype).is_floating] += tf.TensorShape(weight.shape).num_elements()
        own = getattr(self, "optimizer", None)
        if not sizes[False] and own is None:
            return None
        note = f"{sizes[True]:,} weights"
        if own is not None:
            note += " trained by an optimizer of the layer's own (they count as non-trainable above)"
        return note + (f", {sizes[False]:,} integers (its tree, its connections)" if sizes[False] else "")

    def check_k(self, k: int) -> None:
        number_of_classes(k, self.num_classes)

    def get_config(self) -> dict[str, Any]:
        own = self.class_vocabulary.config()
        vocabulary = {} if own is None else {"vocabulary": own}  # a head of one's own may not know it
        return {**super().get_config(), "num_classes": self.num_classes, **vocabulary}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Head":
        own = keras.saving.deserialize_keras_object(config.get("vocabulary"))
        head = super().from_config(config if own is None else {**config, "vocabulary": own})
        head.class_vocabulary.is_copy = True
        return head
