"""What the language model shows of its training: speed and perplexity, and the parts of a step."""

import math
import time

import keras
import tensorflow as tf
from _profile.recording import Recorder
from _profile.shares import by_scope, shares


class Speed(keras.callbacks.Callback):
    """Adds `tokens_per_s` to the logs of every epoch, and ends the training when its time is up.

    Args:
        tokens_per_step: words predicted in one step, padding not counted.
        minutes: of training, validation not counted.

    Attributes:
        seconds: trained so far; epoch_seconds: at the end of every epoch.
        curve: (seconds, loss) of every stretch of some steps, the loss being the mean over the stretch.
    """

    def __init__(self, tokens_per_step, minutes, stretch=20):
        super().__init__()
        self.tokens_per_step, self.limit, self.stretch = tokens_per_step, 60 * minutes, stretch
        self.seconds, self.epoch_seconds, self.curve = 0.0, [], []

    def on_epoch_begin(self, epoch, logs=None):
        self._begun, self._before = time.perf_counter(), self.seconds
        self._steps, self._sum = 0, (0, 0.0)

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        self.seconds = self._before + time.perf_counter() - self._begun
        if self._steps % self.stretch == 0:
            self._end_stretch(logs["loss"])
        if self.seconds >= self.limit:
            self.model.stop_training = True

    def _end_stretch(self, loss):
        # Keras reports the mean since the epoch began.
        steps, total = self._steps, float(loss) * self._steps
        self.curve.append((self.seconds, (total - self._sum[1]) / (steps - self._sum[0])))
        self._sum = steps, total

    def on_epoch_end(self, epoch, logs):
        if self._steps > self._sum[0]:
            self._end_stretch(logs["loss"])  # a shorter one: the curve goes on to the end of the epoch
        self.epoch_seconds.append(self.seconds)
        logs["tokens_per_s"] = round(self._steps * self.tokens_per_step / (self.seconds - self._before))


class Perplexity(keras.callbacks.Callback):
    """Adds `val_perplexity` to the logs of every epoch: exp of the mean loss over all words of the data.

    (The mean that Keras reports weighs batches equally, however many of their words are padding.)

    Args:
        data: dataset of (words read, words to predict); padding is 0.
        loss: a loss of the model's outputs with `reduction="sum"`.
    """

    def __init__(self, data, loss):
        super().__init__()
        self.data, self.loss = data, loss

    def on_train_begin(self, logs=None):
        def summed(read, targets):
            return self.loss(targets, self.model(read, training=False))

        self._summed = tf.function(summed, reduce_retracing=True)

    def on_epoch_end(self, epoch, logs):
        total = words = 0.0
        for read, targets in self.data:
            total += float(self._summed(read, targets))
            words += float(tf.math.count_nonzero(targets))
        logs["val_perplexity"] = math.exp(total / words)


class StepParts(keras.callbacks.Callback):
    """Records some steps of the training: how much of their time belongs to which part of the model.

    Args:
        parts: `{name of a layer: part}`.
        first: the step before which the recording begins; the first ones are not like the others.
        steps: how many are recorded.
    """

    def __init__(self, parts, first=10, steps=10):
        super().__init__()
        self.parts, self.first, self.last = parts, first, first + steps
        self._seen, self._recorder, self._recording = 0, None, None

    def on_train_batch_begin(self, batch, logs=None):
        if self._seen == self.first:
            self._recorder = Recorder()
            self._recorder.start()
        if self._seen == self.last:
            self._stop()
        if self._recorder:
            self._recorder.step()
        self._seen += 1

    def on_epoch_end(self, epoch, logs=None):
        self._stop()  # what comes now, the validation, is no part of a step

    def _stop(self):
        if self._recorder:
            self._recording, self._recorder = self._recorder.stop(), None

    def lines(self):
        """Return the table, as lines of text."""
        if not self._recording:
            return [f"not enough steps for a profile: it begins at step {self.first}"]
        optimizer = self.model.optimizer.name
        part = by_scope({**self.parts, optimizer: "optimizer"}, "other ops")
        reading = ("Input", "IteratorGetNext")
        seconds = shares(self._recording, lambda span: "input" if span.kind in reading else part(span))
        steps, total = len(self._recording.steps), sum(seconds.values())
        lines = [f"where the time of a step goes: {1e3 * total / steps:.1f} ms, mean of {steps}"]
        for name, spent in seconds.most_common():
            lines.append(f"{name:>24} {spent / total:6.1%} {1e3 * spent / steps:9.2f} ms")
        return lines
