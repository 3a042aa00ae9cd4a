"""`SampledSoftmax`: in training some classes stand for all, in evaluation all are there."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout._head_annotations import in_training
from keras_largeout.layers._saved_state import SavedVariables
from keras_largeout.layers.heads._listed_targets import losses_by_token
from keras_largeout.layers.heads._per_class import PerClass, counts_per_class
from keras_largeout.layers.heads._ranking import RankingLoss
from keras_largeout.layers.heads._table_head import TableHead, row_scores
from keras_largeout.ops.candidate_sampling import DISTRIBUTIONS, CandidateSampler
from keras_largeout.ops.full_softmax.wrapper import Expected, full_softmax_terms
from keras_largeout.ops.labels import LabelLists
from keras_largeout.replicas.cross_replica import joined_of_replicas


@keras.saving.register_keras_serializable(package="keras_largeout")
class SampledSoftmax(TableHead):
    """An output layer that compares each target with sampled classes in training, and with all in evaluation.

    A step draws candidates, the same for all tokens, and takes the softmax over the target and them. The
    logits of candidates are corrected by the log of how often each is expected among them (logQ): their
    exponentials then add up, on average, to those of all classes but the target, whatever the distribution.
    The target is always there, and is not corrected. (`tf.nn.sampled_softmax_loss` corrects it too, and comes
    to other losses.) A candidate that is the target of a token counts there as the target alone. Rows of
    other classes are neither read nor changed.

    The layer returns its input; see `Head`. Compile the model with `loss=head.loss`. `fit` trains by
    candidates. `evaluate` (of `loss="softmax"`), `log_prob`, `top_k` and calls of the model without
    `training=True` are exact, and take as long as those of a `FullSoftmax`. (The other losses are evaluated
    on candidates too, always the same.) The perplexity that `fit` logs for its training batches is that
    among the candidates.

    Args:
        num_classes: int > 0.
        num_sampled: int > 0 and at most `num_classes`, candidates per step. 0 with "in_batch".
        distribution: what candidates are drawn from. None: "counts" where `counts` are given, otherwise
            "log_uniform", or "uniform" with a `DynamicVocabulary`.
            `"log_uniform"`: p(class) falls as 1 / (class + 1): for classes sorted by falling frequency;
            `"uniform"`; `"counts"`: in proportion to `counts`;
            `"in_batch"`: the targets of the batch (over several devices: of the global batch);
            `"mixed"`: those, and `num_sampled` uniform ones (Yang et al.). Defaults to `None`.
        counts: array `[num_classes]` of class frequencies. "counts" needs them. With "in_batch" and "mixed"
            they say how often a class is expected in a batch; without, the batch itself says so. The
            first biases are made from them. (For word2vec's distribution give `counts ** 0.75`.) Saved with
            the weights; in a config it is just True. Defaults to `None`.
        unique: bool: candidates are drawn without replacement. Otherwise with it: a class drawn twice counts
            twice. Defaults to `True`.
        loss: of a token, with s the score of the target and s' those of the candidates that are not:
            `"softmax"`: -log of the target's share of the softmax;
            `"bpr"`: the mean of -log sigmoid(s - s') (Rendle et al.);
            `"binary_crossentropy"`: -log sigmoid(s), and the sum of -log(1 - sigmoid(s')), with the
            calibration of gSASRec (Petrov and Macdonald);
            `"cosine_contrastive"`: 1 - s, and `negative_weight` times the mean of max(0, s' -
            `negative_margin`), of cosines: with `normalize=True` and a temperature of 1 (Mao et al.). Scores
            of these three are not corrected by logQ, and are no log-probabilities. Defaults to `"softmax"`.
        calibration: float in [0, 1], gSASRec's t, for "binary_crossentropy": 0 is the plain one, whose scores
            overestimate; 1 makes up for all classes that were not sampled. Defaults to `0.75`.
        seed: int or None, of the candidates: the same seed draws the same ones, step by step. Defaults to
            `None`.
        use_bias, kernel, temperature, optimizer, kernel_initializer, bias_initializer, kernel_constraint: as
            in `FullSoftmax`.
        normalize: bool, as in `FullSoftmax`; a training step normalizes the rows of its candidates and
            targets alone. Defaults to `False`.
        margin: None, or as in `FullSoftmax`, against candidates, with any `loss`. Defaults to `None`.
        label_smoothing: float in [0, 1), for `loss="softmax"`: so much of the target's probability is spread
            evenly over all classes. In training each candidate stands for as many classes as logQ says, and
            the mean of their logits for that of all; without `counts`, "in_batch" spreads it over the classes
            of the batch. Defaults to `0.0`.
        class_weight: as in `FullSoftmax`. Defaults to `None`.
        negative_margin: float in [-1, 1), for "cosine_contrastive": candidates whose cosine is below it add
            nothing. Defaults to `0.5`.
        negative_weight: float > 0, for "cosine_contrastive": how much candidates count against the target.
            Defaults to `100.0`.
        vocabulary: None; a `DynamicVocabulary`; or a Keras `StringLookup` or `IntegerLookup`. Targets are
            ids then, and a predictor answers with ids: see `Head`. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the hidden vectors.

    Raises:
        ValueError: an argument outside its range; `distribution="counts"` without counts; `use_bias=True`
            with `normalize`; `margin` without it; `loss="cosine_contrastive"` without it, or with another
            temperature than 1. In a call: as `FullSoftmax`.
        tf.errors.InvalidArgumentError: a target that counts is neither in `[0, num_classes)` nor -1.

    Example:

    ```python
    items = kl.layers.ShardedEmbedding(1_000_000, 64)
    x = keras.layers.GRU(64, return_sequences=True)(items(history))
    head = kl.layers.SampledSoftmax(1_000_000, 4096, distribution="mixed", counts=counts, kernel=items)
    model = keras.Model(history, head(x))
    model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss)
    ```

    References:
        - [Bengio and Senecal, 2003](https://proceedings.mlr.press/r4/bengio03a.html), section 4 (the sum over
          all classes estimated by importance sampling, the target apart).
        - [Jean et al., 2015](https://arxiv.org/abs/1412.2007), section 3.1 (sampled softmax).
        - [Yi et al., 2019](https://doi.org/10.1145/3298689.3346996), section 3 (in-batch, logQ).
        - [Yang et al., 2020](https://doi.org/10.1145/3366424.3386195), section 3.2 (mixed negatives).
        - [Rendle et al., 2009](https://arxiv.org/abs/1205.2618), section 4.1 (BPR).
        - [Petrov and Macdonald, 2023](https://arxiv.org/abs/2308.07192), section 5 (gSASRec).
        - [Mao et al., 2021](https://arxiv.org/abs/2109.12613), section 3.2 (cosine contrastive loss).
    """

    def __init__(
        self,
        num_classes: int,
        num_sampled: int,
        distribution: str | None = None,
        counts: ArrayLike | None = None,
        unique: bool = True,
        loss: str = "softmax",
        calibration: float = 0.75,
        seed: int | None = None,
        use_bias: bool | None = None,
        kernel: str | keras.Layer | None = None,
        temperature: float = 1.0,
        optimizer: str | keras.Optimizer | None = None,
        kernel_initializer: str | keras.Initializer = "uniform",
        bias_initializer: str | keras.Initializer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        normalize: bool = False,
        margin: tuple[str, float] | None = None,
        label_smoothing: float = 0.0,
        class_weight: ArrayLike | None = None,
        negative_margin: float = 0.5,
        negative_weight: float = 100.0,
        vocabulary: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes,
            use_bias=use_bias,
            kernel=kernel,
            temperature=temperature,
            optimizer=optimizer,
            counts=None if counts is None or counts is True else counts_per_class(counts, num_classes),
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
        if distribution is None and counts is None:
            # The rows of a vocabulary that changes are in no order.
            distribution = "uniform" if self.class_vocabulary.changes else "log_uniform"
        distribution = distribution or "counts"
        check_one_of("distribution", distribution, DISTRIBUTIONS)
        if label_smoothing and loss != "softmax":
            raise ValueError(
                '`label_smoothing` must be 0 where `loss` is not "softmax". '
                f"Received: label_smoothing={label_smoothing}, loss={loss!r}"
            )
        if distribution == "counts" and counts is None:
            raise ValueError('`counts` must be given where `distribution` is "counts". Received: counts=None')
        self.num_sampled = _checked_samples(num_sampled, distribution, self.num_classes)
        self.distribution, self.unique, self.loss_kind = distribution, bool(unique), loss
        self._ranking = RankingLoss(
            loss, calibration, negative_margin, negative_weight, self.normalize, self.temperature
        )
        self.calibration = self._ranking.calibration
        self._counts = None
        if counts is not None:
            given = True if counts is True else self._first_counts
            self._counts = PerClass("counts", given, self.num_classes)
        self.seed = seed
        self._seeds = keras.random.SeedGenerator(seed)
        self._sampler = CandidateSampler(
            self.num_classes,
            self.num_sampled,
            distribution,
            self.unique,
            None if self._counts is None else lambda: self._counts.variable.value,
        )

    @property
    def has_log_probs(self) -> bool:
        return self.loss_kind == "softmax"

    def flat_losses(
        self, y_true: Any, vectors: tf.Tensor, weight: tf.Tensor | None, hidden: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if not in_training(hidden) and self.loss_kind == "softmax":
            terms = self.softmax_weights.terms(vectors, y_true)
            return self.smoothed(terms.ce, terms.lse, terms.sum / self.num_classes), terms.ce
        return self._sampled_losses(y_true, vectors, weight, hidden)

    def _sampled_losses(self, y_true, vectors, weight, hidden):
        if self._counts is not None:
            self._counts.require_known()
        y_true = self.softmax_weights.checked(tf.cast(y_true, tf.int64), least=0)
        candidates = self._drawn(y_true, in_training(hidden))
        rows, biases = self.softmax_weights.rows(tf.concat([candidates.ids, y_true], 0))
        count = tf.size(candidates.ids)
        places = candidates.places_of(y_true)
        of_targets = row_scores(vectors, rows[count:])
        if biases is not None:
            of_targets += biases[count:]
        lowered = self.with_margin(of_targets, hidden)
        if self.loss_kind != "softmax":
            biases = None if biases is None else biases[:count]
            hits = places[:, None] == tf.cast(tf.range(count), tf.int64)[None, :]
            losses = self._ranking.losses(vectors, rows[:count], biases, lowered, hits, self.num_classes)
            return losses, losses
        terms = full_softmax_terms(
            vectors,
            places,
            rows[:count],
            candidates.correction if biases is None else biases[:count] + candidates.correction,
            skip_target=True,
            expected=Expected(weight, lowered),
        )
        cross_entropy = tf.math.softplus(terms.lse - of_targets)
        if self._margin is not None:
            return tf.math.softplus(terms.lse - lowered), cross_entropy
        if not self.label_smoothing:
            return cross_entropy, cross_entropy
        biases = None if biases is None else biases[:count]
        mean = _mean_logits(vectors, rows[:count], biases, candidates.correction, places, of_targets)
        return self.smoothed(cross_entropy, of_targets + cross_entropy, mean), cross_entropy

    def losses_of_lists(
        self, lists: LabelLists, hidden: tf.Tensor, active: tf.Tensor | None, weight: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean loss of each token's targets; a contrastive loss scores a token once.

        Args:
            lists: `LabelLists`, the targets of the tokens.
            hidden: float `[..., dim]`.
            active: bool `[...]`, tokens that count, or None for all.
            weight: float `[...]`, or None.
        """
        apart = self.loss_kind != "cosine_contrastive" or self._margin is not None
        if apart or self._class_weight is not None:
            return super().losses_of_lists(lists, hidden, active, weight)

        def losses_of(vectors, targets):
            candidates = self._drawn(targets.label, in_training(hidden))
            rows, _ = self.softmax_weights.rows(tf.concat([candidates.ids, targets.label], 0))
            count = tf.size(candidates.ids)
            scores = row_scores(targets.per_target(vectors), rows[count:])
            hits = candidates.places_of(targets.label) >= 0
            losses = self._ranking.contrastive_of_lists(vectors, rows[:count], scores, hits, targets)
            return losses, losses

        return losses_by_token(self, lists, hidden, active, weight, losses_of)

    def _drawn(self, y_true, training):
        """Return the `Candidates` of this step; without training the same for every step, by the seed."""
        if training:
            seed = tf.cast(tf.convert_to_tensor(self._seeds.next()), tf.int64)
        else:
            seed = tf.constant([self.seed or 0, 0], tf.int64)
        if self.distribution in ("in_batch", "mixed"):
            y_true = joined_of_replicas(y_true)  # of the global batch: ids travel, no rows
        return self._sampler.draw(y_true, seed)

    def log_prob(self, hidden: tf.Tensor | np.ndarray, y: tf.Tensor | np.ndarray) -> tf.Tensor:
        if self.loss_kind != "softmax":
            raise ValueError(
                f'`loss` must be "softmax" for log-probabilities. Received: loss={self.loss_kind!r}'
            )
        return super().log_prob(hidden, y)

    # Saving.

    def _per_class(self):
        return {**super()._per_class(), "counts": self._counts}

    def saved_parts(self) -> list[Any]:
        seeds = {"seed_state": self._seeds.state}  # a training goes on as it would
        return [*super().saved_parts(), SavedVariables(seeds, optional=True)]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_sampled": self.num_sampled,
            "distribution": self.distribution,
            "counts": None if self._counts is None else True,
            "unique": self.unique,
            "loss": self.loss_kind,
            "calibration": self.calibration,
            "negative_margin": self._ranking.negative_margin,
            "negative_weight": self._ranking.negative_weight,
            "seed": self.seed,
        }


def _mean_logits(vectors, rows, biases, correction, places, of_targets):
    """Return an estimate of the mean logit of all classes, of the candidates and the target: float32
    `[tokens]`.

    Args:
        vectors: float `[tokens, dim]`.
        rows, biases: float `[candidates, dim]`, and float32 `[candidates]` or None.
        correction: float32 `[candidates]`, the log of how many classes each stands for.
        places: int64 `[tokens]`, where the target is among the candidates, and counts once; -1: nowhere.
        of_targets: float32 `[tokens]`, the logits of the targets.
    """
    shares = tf.exp(correction)
    total = row_scores(vectors, tf.linalg.matvec(tf.cast(rows, tf.float32), shares, transpose_a=True))
    if biases is not None:
        total += tf.reduce_sum(shares * biases)
    of_hits = tf.where(places >= 0, tf.gather(shares, tf.maximum(places, 0)), 0.0)
    total += (1.0 - of_hits) * of_targets
    return total / (tf.reduce_sum(shares) + 1.0 - of_hits)


def _checked_samples(num_sampled, distribution, num_classes):
    if distribution == "in_batch":
        if num_sampled not in (0, None):
            raise ValueError(
                '`num_sampled` must be 0 where `distribution` is "in_batch": the batch has the candidates. '
                f"Received: num_sampled={num_sampled}"
            )
        return 0
    num_sampled = positive_int("num_sampled", num_sampled)
    if num_sampled > num_classes:
        raise ValueError(
            f"`num_sampled` must be at most num_classes={num_classes}. Received: num_sampled={num_sampled}"
        )
    return num_sampled
