"""How the next-item example is judged: leave one out, on the way and at the end."""

import time

import keras
import tensorflow as tf
from _next_item.sequences import padded

import keras_largeout as kl

#: Of how many predictions; the metrics, by the names that are shown.
K = 10
RECALL, NDCG = f"Recall@{K}", f"NDCG@{K}"


class LeaveOneOut:
    """Recall@10 and NDCG@10 of the next item of each user, among all items that the user does not have yet.

    With one item to find Recall@10 is also the hit rate: the share of users whose item is among the 10 best.
    Calling it returns a dict of the two, as shares of 1.

    Args:
        predictor: a model from `{"items": [n, time], "seen": [n, m]}` to `{"ids": [n, 10]}`.
        held_out: what `Sequences.held_out` returned.
        length: int, how many of the last items the model reads.
        batch: int, users at a time.
    """

    def __init__(self, predictor, held_out, length, batch=256):
        self.predictor, self.length = predictor, length
        _, histories, items = held_out
        starts = range(0, len(items), batch)
        self.batches = [(self.inputs(histories[i : i + batch]), items[i : i + batch]) for i in starts]
        self.metrics = [kl.metrics.RecallAtK(K, name=RECALL), kl.metrics.NDCGAtK(K, name=NDCG)]
        ids = tf.TensorSpec([None, None], tf.int32)
        self._best = tf.function(
            lambda inputs: predictor(inputs, training=False), input_signature=[{"items": ids, "seen": ids}]
        )

    def inputs(self, histories):
        """Return what the predictor takes, of a list of histories: the last items to read, and all as
        seen.
        """
        read = [history[-self.length :] for history in histories]
        arrays = (padded(rows, max(map(len, rows))) for rows in (read, histories))
        return dict(zip(("items", "seen"), map(tf.constant, arrays)))

    def __call__(self, best=None, batches=None):
        """Return the scores; of another function than the predictor, `best`, and of the first `batches`
        alone.
        """
        for metric in self.metrics:
            metric.reset_state()
        for inputs, items in self.batches[:batches]:
            found = (best or self._best)(inputs)
            for metric in self.metrics:
                metric.update_state(items, found)
        return {metric.name: float(metric.result()) for metric in self.metrics}


class Course(keras.callbacks.Callback):
    """Measures the validation users every so many seconds, keeps the best weights, and ends in time.

    The clock stands still while it measures, and begins after the first step, which traces the model.

    Args:
        measure: a `LeaveOneOut`.
        steps: int, steps in an epoch.
        minutes: float, of training.
        epochs: float or None: training ends after so many, if the time is not up before.
        every: float, seconds between two measurements.
        best: path of a file for the weights of the best measurement, by Recall@10.
        clock: function that returns seconds: `time.process_time` counts those of the processor.

    Attributes:
        seconds: trained so far; done: steps so far.
        points: for each measurement a dict: seconds, epochs, loss (the mean since the last one), Recall@10
            and NDCG@10.
    """

    def __init__(self, measure, steps, minutes, epochs, every, best, clock=time.perf_counter):
        super().__init__()
        self.measure, self.steps, self.every, self.best, self.clock = measure, steps, every, best, clock
        self.limit, self.last = 60 * minutes, None if epochs is None else max(1, round(epochs * steps))
        self.seconds, self.done, self.points = 0.0, 0, []

    @property
    def best_point(self):
        """The measurement of the highest Recall@10, the first of equal ones."""
        return max(self.points, key=lambda point: point[RECALL])

    @property
    def milliseconds(self):
        """Of a step."""
        return 1000 * self.seconds / max(1, self.done - 1)

    def on_epoch_begin(self, epoch, logs=None):
        self._losses = [0, 0.0]  # Keras reports the mean since the epoch began

    def on_train_batch_end(self, batch, logs=None):
        now = self.clock()
        if not self.done:
            self._since, self._sum, self._summed = now, 0.0, 0
        self.done += 1
        self.seconds += now - self._since
        total = float(logs["loss"]) * (batch + 1)
        self._sum, self._summed = self._sum + total - self._losses[1], self._summed + 1
        self._losses = [batch + 1, total]
        over = self.seconds >= self.limit or self.done == self.last
        if over or self.seconds >= self.every * (len(self.points) + 1):
            self._measure()
        self.model.stop_training |= over
        self._since = self.clock()

    def _measure(self):
        scores = self.measure()
        epochs, loss = self.done / self.steps, self._sum / self._summed
        self._sum, self._summed = 0.0, 0
        self.points.append({"seconds": self.seconds, "epochs": epochs, "loss": loss, **scores})
        if self.best_point is self.points[-1]:
            self.model.save_weights(self.best)
        said = ", ".join(f"{name} {value:.1%}" for name, value in scores.items())
        print(f"   {self.seconds:.0f} s, epoch {epochs:.1f}: loss {loss:.3f}, {said}", flush=True)
