"""`FullSoftmax`: the exact softmax over all classes, without its logits in memory."""

from typing import Any

import keras
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._head_annotations import in_training
from keras_largeout.layers.heads._listed_targets import losses_by_token
from keras_largeout.layers.heads._per_class import counts_per_class
from keras_largeout.layers.heads._table_head import TableHead, row_scores
from keras_largeout.ops.full_softmax.wrapper import Expected
from keras_largeout.ops.labels import LabelLists


@keras.saving.register_keras_serializable(package="keras_largeout")
class FullSoftmax(TableHead):
    """An output layer with the exact softmax over all classes: `Dense` and cross-entropy, in chunks.

    A `Dense(100_000)` and its loss hold `[tokens, 100_000]` logits, their softmax and its gradient: 4 GB for
    3200 tokens. This head computes the same loss and gradients a chunk at a time, as fast, in some hundred
    megabytes. Its cost is still that of all classes, `6 * tokens * num_classes * dim` flops per step:
    `HierarchicalSoftmax` and `SampledSoftmax` are many times faster.

    The layer returns its input; see `Head`. Compile the model with `loss=head.loss`. Over several devices
    each has a run of the classes, and computes their part for the tokens of all.

    Args:
        num_classes: int > 0.
        counts: array `[num_classes]` of class frequencies, from which the first biases are made, or None.
            Not saved: weights take their place. Defaults to `None`.
        use_bias: bool, whether every class has a bias. None: unless `normalize`, which has none. Defaults to
            `None`.
        kernel: None, or the `ShardedEmbedding` (or its name) whose table is the kernel too: input and output
            layer have one table, with one gradient and one set of optimizer slots. It has `num_classes` rows,
            and over several devices `placement="range"`. A `keras.layers.Embedding` works as
            well, with any optimizer, and so does a `ReversibleEmbedding` that is tied and does not cap its
            logits, such as the `token_embedding` of a backbone of keras_hub. Defaults to `None`.
        temperature: float > 0: the logits are `hidden . kernel[class] / temperature + bias[class]`. Defaults
            to `1.0`.
        label_smoothing: float in [0, 1): so much of the target's probability is spread evenly over all
            classes, in the loss; `log_prob` and metrics do not know of it. Defaults to `0.0`.
        z_loss: float >= 0: that times `log(sum(exp(logits)))**2` is added to the loss, which keeps logits
            small. Defaults to `0.0`.
        optimizer: None: the model's optimizer trains the head. Otherwise the head has one of its own, whose
            step is a part of the backward pass: one of `kl.optimizers`, or of `keras.optimizers` SGD,
            Adagrad, Ftrl, Adam or AdamW (these two of rows that have a gradient, as `optimizers.LazyAdam`).
            Not with `kernel`. Defaults to `None`.
        kernel_initializer: initializer of `[num_classes, dim]`. Defaults to `"uniform"`.
        bias_initializer: initializer of `[num_classes]`. None: such that an untrained head predicts the
            frequencies of `counts`; zeros without `counts`. Defaults to `None`.
        kernel_constraint: constraint that acts row by row. Defaults to `None`.
        normalize: bool: the logits are `cos(hidden, kernel[class]) / temperature`, in training, evaluation
            and exports. They are in `[-1 / temperature, 1 / temperature]`: a temperature from 0.02 to 0.1 is
            usual. A training step computes a kernel with rows of length 1, each device of its part, once for
            each replica: with its gradient that takes about three times the memory of the kernel. Vectors
            shorter than 1e-6 are divided by 1e-6. Defaults to `False`.
        margin: None, or with `normalize` a margin by which the loss of training, and nothing else, lowers the
            cosine of the target: `("arcface", m)` with m in [0, pi / 2] takes cos(theta + m) in the place of
            cos(theta); where theta + m is above pi, cos(theta) - m sin(m), which keeps falling with theta.
            `("cosface", m)` takes cos(theta) - m. Not with `label_smoothing`. Defaults to `None`.
        class_weight: array `[num_classes]` of numbers from 0 on, or None. The loss of a token is multiplied
            by the weight of its target, and by its sample weight; of a list of targets each loss by its own.
            Means are over the same tokens as without. `evaluate` has the weights, too; `log_prob` and metrics
            have not. Saved with the weights; in a config it is just True. Defaults to `None`.
        focal_gamma: float >= 0: the loss of a token is multiplied by `(1 - p)**focal_gamma`, p being the
            probability of its target, so that tokens that the model has learned count less; `log_prob` and
            metrics do not know of it. A step computes the logits a second time. Not with `margin` or
            `label_smoothing`. Defaults to `0.0`.
        vocabulary: None; a `DynamicVocabulary`; or a Keras `StringLookup` or `IntegerLookup`. Targets are
            ids then, and a predictor answers with ids: see `Head`. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`. With `dtype="bfloat16"` the kernel is bfloat16; sums are in
            float32. With `"mixed_bfloat16"` it is float32, and the products are of bfloat16 on GPUs and on
            processors with AVX512-BF16.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the hidden vectors.

    Raises:
        ValueError: an argument outside its range; `use_bias=True` with `normalize`; `margin` without
            it, or with `label_smoothing`; `focal_gamma` with `margin` or `label_smoothing`; `kernel` is not
            an embedding, has another number of rows or another width, or other logits than its rows give. In
            a call: `y_true` does not have the shape of the hidden vectors without their last axis.
        tf.errors.InvalidArgumentError: a target that counts is neither in `[0, num_classes)` nor -1.

    Example:

    ```python
    words = kl.layers.ShardedEmbedding(100_000, 256)
    x = keras.layers.GRU(256, return_sequences=True)(words(tokens))
    head = kl.layers.FullSoftmax(100_000, kernel=words)
    model = keras.Model(tokens, head(x))
    model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss)
    ```

    References:
        - [Wijmans et al., 2025](https://arxiv.org/abs/2411.09009), section 4 (cross-entropy without logits).
        - [Press and Wolf, 2017](https://arxiv.org/abs/1608.05859), section 3 (one table for both).
        - [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7 (label smoothing).
        - [Lin et al., 2017](https://arxiv.org/abs/1708.02002), section 3 (focal loss).
        - [Chowdhery et al., 2023](https://arxiv.org/abs/2204.02311), section 5 (z-loss).
        - [Wang et al., 2017](https://arxiv.org/abs/1704.06369), section 3 (a softmax of cosines).
        - [Deng et al., 2019](https://arxiv.org/abs/1801.07698), section 3 (ArcFace).
        - [Wang et al., 2018](https://arxiv.org/abs/1801.09414), section 3 (CosFace).
    """

    dense_gradients = True  # a step touches every class

    def __init__(
        self,
        num_classes: int,
        counts: ArrayLike | None = None,
        use_bias: bool | None = None,
        kernel: str | keras.Layer | None = None,
        temperature: float = 1.0,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        optimizer: str | keras.Optimizer | None = None,
        kernel_initializer: str | keras.Initializer = "uniform",
        bias_initializer: str | keras.Initializer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        normalize: bool = False,
        margin: tuple[str, float] | None = None,
        class_weight: ArrayLike | None = None,
        focal_gamma: float = 0.0,
        vocabulary: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes,
            use_bias=use_bias,
            kernel=kernel,
            temperature=temperature,
            optimizer=optimizer,
            counts=None if counts is None else counts_per_class(counts, num_classes),
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_constraint=kernel_constraint,
            normalize=normalize,
            margin=margin,
            label_smoothing=label_smoothing,
            class_weight=class_weight,
            vocabulary=vocabulary,
            **kwargs,
        )
        if not z_loss >= 0:
            raise ValueError(f"`z_loss` must not be negative. Received: z_loss={z_loss}")
        self.z_loss = float(z_loss)
        if not 0 <= focal_gamma < float("inf"):
            raise ValueError(f"`focal_gamma` must be a number from 0 on. Received: focal_gamma={focal_gamma}")
        if focal_gamma and (margin is not None or label_smoothing):
            raise ValueError(
                "`focal_gamma` must be 0 with a `margin` or `label_smoothing`. Received: "
                f"focal_gamma={focal_gamma}, margin={margin}, label_smoothing={label_smoothing}"
            )
        self.focal_gamma = float(focal_gamma)

    def flat_losses(
        self, y_true: Any, vectors: tf.Tensor, weight: tf.Tensor | None, hidden: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if self._margin is not None and in_training(hidden):
            return self._losses_with_margin(y_true, vectors, weight, hidden)
        expected = None  # of a focal loss, gradients are known when the losses are
        if in_training(hidden) and not self.focal_gamma:
            expected = Expected(weight, None, self.label_smoothing, self.z_loss, self.num_classes)
        terms = self.softmax_weights.terms(vectors, y_true, expected)
        losses = self.smoothed(terms.ce, terms.lse, terms.sum / self.num_classes)
        if self.focal_gamma:
            # Never 0, of which a power below 1 has no gradient.
            losses *= tf.maximum(-tf.math.expm1(-terms.ce), 1e-12) ** self.focal_gamma
        if self.z_loss:
            losses += self.z_loss * tf.square(terms.lse)
        return losses, terms.ce

    def _losses_with_margin(self, y_true, vectors, weight, hidden):
        y_true = self.softmax_weights.checked(tf.cast(y_true, tf.int64), least=0)
        scores = row_scores(vectors, self.softmax_weights.rows(y_true)[0])
        lowered = self.with_margin(scores, hidden)
        expected = None if self.z_loss else Expected(weight, lowered)
        others = self.softmax_weights.terms(vectors, y_true, expected, skip_target=True).lse
        losses = tf.math.softplus(others - lowered)
        if self.z_loss:
            losses += self.z_loss * tf.square(lowered + losses)
        return losses, tf.math.softplus(others - scores)

    def losses_of_lists(
        self, lists: LabelLists, hidden: tf.Tensor, active: tf.Tensor | None, weight: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean loss of each token's targets, from one softmax for each token.

        The losses of a token's targets differ by their logits alone: those of the first one are computed, and
        the difference between its logit and the mean is added.

        Args:
            lists: `LabelLists`, the targets of the tokens.
            hidden: float `[..., dim]`.
            active: bool `[...]`, tokens that count, or None for all.
            weight: float `[...]`, or None.
        """
        if self._margin is not None or self._class_weight is not None or self.focal_gamma:
            return super().losses_of_lists(lists, hidden, active, weight)

        def losses_of(vectors, targets):
            first = tf.gather(targets.label, targets.first)
            losses, cross_entropy = self.flat_losses(first, vectors, targets.weight, hidden)
            rows, biases = self.softmax_weights.rows(targets.label)
            logits = row_scores(targets.per_target(vectors), rows)
            logits = logits if biases is None else logits + biases
            above = tf.gather(logits, targets.first) - targets.mean(logits)
            return losses + (1.0 - self.label_smoothing) * above, cross_entropy + above

        return losses_by_token(self, lists, hidden, active, weight, losses_of)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "z_loss": self.z_loss, "focal_gamma": self.focal_gamma}
