"""What the examples say on the way, and the export that they make and ask."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

SERVE = pathlib.Path(__file__).resolve().parent / "serve.py"


@contextlib.contextmanager
def stage(title):
    """Prints the title before and the time after."""
    print(f"\n{title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"   {time.perf_counter() - start:.1f} s", flush=True)


class Progress(keras.callbacks.Callback):
    """A line now and then, for logs that no terminal shows: Keras's bar would be thousands of lines there.

    Args:
        seconds: between two lines.
    """

    def __init__(self, seconds=15):
        super().__init__()
        self.seconds = seconds

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._begun = epoch, time.perf_counter()
        self._said = self._begun

    def on_train_batch_end(self, batch, logs=None):
        now, steps = time.perf_counter(), self.params.get("steps")
        if batch == 0:
            self._first = now
        if now - self._said < self.seconds or batch + 1 == steps:
            return
        self._said, spent = now, now - self._begun
        of = f" of {steps}" if steps else ""
        if steps and batch:  # the first step takes as long as the tracing of all
            of += f", about {(now - self._first) / batch * (steps - batch - 1):.0f} s left"
        loss = f"loss {float(logs['loss']):.4f}"
        print(f"   epoch {self._epoch + 1}, {spent:.0f} s: step {batch + 1}{of}, {loss}", flush=True)


def progress():
    """Return what `fit` takes to say how far it is: `(verbose, callbacks)`, for a terminal or for a log."""
    return (1, []) if sys.stdout.isatty() else (2, [Progress()])


class Course(keras.callbacks.Callback):
    """Calls `measure` after each epoch.

    Attributes:
        seconds, scores: lists, of each epoch: the time of its training alone, and what `measure` returned.
    """

    def __init__(self, measure):
        super().__init__()
        self.measure, self.seconds, self.scores = measure, [], []

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._begun)
        self.scores.append(self.measure())
        said = ", ".join(f"{name} {value:.1%}" for name, value in self.scores[-1].items())
        print(f"   epoch {epoch + 1}, {self.seconds[-1]:.0f} s: loss {logs['loss']:.3f}, {said}", flush=True)


def compare(what, expected, found):
    """Says how far two dicts of arrays are apart; ends the program when it is more than rounding."""
    apart = max(np.max(np.abs(expected[key] - found[key])) for key in expected)
    if not apart <= 1e-3:
        sys.exit(f"   {what}: NOT the same, {apart:.3g} apart")
    print(f"   {what}: " + ("the same, bit for bit" if apart == 0 else f"the same within {apart:.1g}"))


def export_and_serve(path, model, inputs, expected):
    """Exports a SavedModel of stock ops; a process that knows only TensorFlow must answer the same.

    Args:
        path: folder for the export; None: it is made for the test, then removed.
        model: `keras.Model`.
        inputs: dict of arrays, by the names of the model's inputs.
        expected: dict of arrays, the model's own answers.
    """
    with (
        stage("Exporting, serving from its own process"),
        kl.distribute.shared_folder() as shared,
        tempfile.TemporaryDirectory() as scratch,
    ):
        path = path or f"{shared}/export"
        kl.export_saved_model(model, path)
        print(f"   {path}: {size(path)}")
        np.savez(f"{scratch}/inputs.npz", **inputs)
        files = [path, f"{scratch}/inputs.npz", f"{scratch}/answers.npz"]
        subprocess.run([sys.executable, SERVE, *files], check=True)
        compare("answers of the export", expected, dict(np.load(files[-1])))


def draws(strategy):
    """Return whether this process writes pictures and numbers: of synchronous hosts, the first one
    does.
    """
    in_step = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return not in_step or strategy.extended.should_checkpoint


def meet(strategy):
    """Wait until all synchronous hosts are here: a host that draws would miss one that has ended."""
    with strategy.scope(), kl.distribute.shared_folder():
        return


def size(path):
    """Return the size of a file, or of all files in a folder, for people."""
    path = pathlib.Path(path)
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return f"{sum(p.stat().st_size for p in files) / 2**20:.0f} MB"


def peak_memory():
    """Return the most memory that this process has had, in bytes. (`ru_maxrss` would be the parent's, if
    larger.)
    """
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
