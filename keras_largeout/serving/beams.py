"""`beam_search`: the most probable continuations of sequences, from the best classes of each step alone."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int


def beam_search(
    step: Callable,
    prompts: tf.Tensor | np.ndarray,
    max_steps: int,
    num_beams: int = 4,
    stop_token_ids: int | Sequence[int] | None = None,
    length_penalty: float = 0.0,
    state: Any = None,
) -> dict[str, tf.Tensor]:
    """Return the most probable continuations of sequences that a beam search finds.

    It keeps the `num_beams` best sequences, and extends each by the best classes of `step`: the scores of all
    classes are never formed. A sequence that ends in one of `stop_token_ids` is set aside. The search stops
    when no other can become better than those, or after `max_steps`: then the others are ranked with them as
    they are. It works eagerly and in a `tf.function`.

    Args:
        step: function that returns the best next classes of sequences, such as
            `head.predictor(model, k, position="last")`: from int32 `[n, time]` to a dict of `"ids"`, int32
            `[n, k]`, and `"scores"`, float32 `[n, k]`, log-probabilities. With k > `num_beams` no sequence of
            the beam is missed. If `state` is given, `step(sequences, state)` returns the dict and the new
            state.
        prompts: int32 or int64 `[batch, time]`, the beginnings of the sequences, all of one length, at least
            1.
        max_steps: int > 0, how many classes are added at most.
        num_beams: int > 0. Defaults to `4`.
        stop_token_ids: int or ints: classes that end a sequence; or None. Defaults to `None`.
        length_penalty: float >= 0, alpha of Wu et al.: the log-probability of a sequence of n new classes is
            divided by `((5 + n) / 6)**alpha`. More than 0 makes longer ones better. Defaults to `0.0`.
        state: None, or a structure of tensors `[batch, ...]` that `step` keeps from one step to the next,
            such as the state of a recurrent layer. Its rows follow the sequences. Defaults to `None`.

    Returns:
        A dict of `"ids"`, int32 `[batch, num_beams, max_steps]`, the new classes, without the prompts, the
        best sequence first: the stop token is among them, and -1 follows. And `"scores"`, float32
        `[batch, num_beams]`: log-probabilities, divided as `length_penalty` says; -inf where there are fewer
        sequences.

    Raises:
        ValueError: a number out of range, or `prompts` of another shape.

    Example:

    ```python
    predictor = head.predictor(model, k=5, position="last")
    found = kl.serving.beam_search(predictor, texts, max_steps=20, num_beams=4, stop_token_ids=end)
    print(found["ids"][:, 0], found["scores"][:, 0])
    ```

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7 (beam search, length penalty).
    """
    max_steps, num_beams = positive_int("max_steps", max_steps), positive_int("num_beams", num_beams)
    if not length_penalty >= 0:
        raise ValueError(f"`length_penalty` must not be negative. Received: length_penalty={length_penalty}")
    prompts = tf.convert_to_tensor(prompts)
    if prompts.shape.rank != 2 or prompts.shape[1] == 0 or not prompts.dtype.is_integer:
        raise ValueError(
            "`prompts` must be ids [batch, time], of at least one step. "
            f"Received: {prompts.dtype.name} of shape {prompts.shape}"
        )
    stops = tf.constant(np.array([] if stop_token_ids is None else stop_token_ids, np.int32).reshape([-1]))
    search = _Search(step, max_steps, num_beams, stops, float(length_penalty))
    return search.run(tf.cast(prompts, tf.int32), state)


class _Beams(NamedTuple):
    """Sequences, the best first.

    `ids`: int32 `[batch, beams, max_steps]`, -1 where nothing is yet. `scores`: float32 `[batch, beams]`.
    """

    ids: tf.Tensor
    scores: tf.Tensor

    def best(self, count):
        """Return the `count` best of these sequences, and their places, int32 `[batch, count]`."""
        scores, places = tf.math.top_k(self.scores, count)
        return _Beams(tf.gather(self.ids, places, batch_dims=1), scores), places

    def extended(self, at, classes):
        """Return these sequences with `classes`, int32 `[batch, beams]`, at step `at`."""
        here = tf.range(tf.shape(self.ids)[2]) == at
        return self._replace(ids=tf.where(here, classes[..., None], self.ids))

    def joined(self, others):
        """Return these sequences and others, of equal scores these first."""
        return _Beams(*(tf.concat(parts, axis=1) for parts in zip(self, others)))


class _Search:
    """The settings of a search, and its loop."""

    def __init__(self, step, max_steps, num_beams, stops, length_penalty):
        self.step, self.max_steps, self.num_beams = step, max_steps, num_beams
        self.stops, self.length_penalty = stops, length_penalty

    def run(self, prompts, state):
        batch = tf.shape(prompts)[0]
        prompts = tf.repeat(prompts, self.num_beams, axis=0)
        has_state, state = state is not None, () if state is None else state
        state = tf.nest.map_structure(lambda part: tf.repeat(part, self.num_beams, axis=0), state)
        nothing = tf.fill([batch, self.num_beams, self.max_steps], -1)
        first = tf.where(tf.range(self.num_beams) == 0, 0.0, -np.inf)  # all beams are the prompt: one counts
        going = _Beams(nothing, tf.tile(first[None], [batch, 1]))
        ended = _Beams(nothing, tf.fill([batch, self.num_beams], -np.inf))

        def goes_on(at, going, ended, state):
            # Scores only fall, and are divided by the most when they are longest.
            attainable = going.scores[:, 0] / self._divisor(self.max_steps)
            return tf.reduce_any(attainable > ended.scores[:, -1])

        def extend(at, going, ended, state):
            sequences = tf.reshape(going.ids, [-1, self.max_steps])[:, :at]
            sequences = tf.concat([prompts, tf.maximum(sequences, 0)], axis=1)
            best, state = self.step(sequences, state) if has_state else (self.step(sequences), state)
            shape = tf.concat([tf.shape(going.scores), [-1]], 0)
            ids, scores = (tf.reshape(best[name], shape) for name in ("ids", "scores"))
            scores = going.scores[..., None] + tf.cast(scores, tf.float32)
            stop = tf.reduce_any(ids[..., None] == self.stops, axis=-1)
            going, ended, beams = self._merged(at, going, ended, ids, scores, stop)
            rows = tf.reshape(tf.range(batch)[:, None] * self.num_beams + beams, [-1])
            return at + 1, going, ended, tf.nest.map_structure(lambda part: tf.gather(part, rows), state)

        at, going, ended, _ = tf.while_loop(
            goes_on, extend, (0, going, ended, state), maximum_iterations=self.max_steps
        )
        going = going._replace(scores=going.scores / self._divisor(at))
        found = ended.joined(going).best(self.num_beams)[0]
        return {"ids": tf.where(found.scores[..., None] > -np.inf, found.ids, -1), "scores": found.scores}

    def _merged(self, at, going, ended, ids, scores, stop):
        """Return the best sequences that go on and that ended, and which beams the first ones come from.

        Args:
            at: int32 scalar, the step.
            going, ended: `_Beams`.
            ids, scores: int32 and float32 `[batch, beams, k]`, the classes that may follow.
            stop: bool `[batch, beams, k]`, which of them end a sequence.
        """
        ends = tf.where(stop, scores, -np.inf)
        place = tf.argmax(ends, axis=-1, output_type=tf.int32)
        last = tf.gather(ids, place, batch_dims=2)
        found = going.extended(at, last)._replace(scores=tf.reduce_max(ends, axis=-1) / self._divisor(at + 1))
        ended = ended.joined(found).best(self.num_beams)[0]

        width = tf.shape(ids)[2]
        flat = tf.concat([tf.shape(ids)[:1], [-1]], 0)
        scores, places = tf.math.top_k(tf.reshape(tf.where(stop, -np.inf, scores), flat), self.num_beams)
        beams, last = places // width, tf.gather(tf.reshape(ids, flat), places, batch_dims=1)
        going = _Beams(tf.gather(going.ids, beams, batch_dims=1), scores).extended(at, last)
        return going, ended, beams

    def _divisor(self, steps):
        return ((5.0 + tf.cast(steps, tf.float32)) / 6.0) ** self.length_penalty
