"""Collaborative filtering: popular items, a factorisation, a neural model; rows in each kind of memory."""

import tempfile

import _common
import collaborative_filtering as example
import keras
import numpy as np

import keras_largeout as kl

ROWS = ("popular", "factorisation", "neural", "neural, host", "neural, cached", "neural, file")
COURSE = ("seconds of training", "Recall@20 of 500 users, %")


def run(row, argv):
    kind, _, storage = row.partition(", ")
    options = ["--model", kind] if kind != "popular" else []
    options += ["--storage", storage] if storage else []
    args = example.arguments([*argv, *options])
    keras.utils.set_random_seed(args.seed)
    train, test, items = _common.likes(args)
    if row == "popular":
        return popular(train, test, items)
    batches, first = example.Batches(args, train, items), First()
    with tempfile.TemporaryDirectory() as folder:
        model = example.build(args, len(train), items, batches.size, folder)
        clock = _common.Clock(measure=lambda: example.measure(model, train, test, most=500))
        data = kl.distribute.prefetch_rows(batches.dataset(), model, args.ahead)
        fit = {"epochs": args.epochs, "steps_per_epoch": batches.steps, "callbacks": [first, clock]}
        found = model.fit(data, **fit, shuffle=False, verbose=2).history
        scores = example.measure(model, train, test)
        kl.close_files(model)
    own = {"ms/step": 1000 * clock.seconds / clock.steps, "GB": _common.peak_memory()}
    own["loss of step 4"] = first.loss.hex()  # equal wherever the rows are, to the last bit
    course = [(s, 100 * r) for s, r in zip(found["seconds"], found["Recall@20"])]
    return {**{name: 100 * value for name, value in scores.items()}, **own, "course": course}


class First(keras.callbacks.Callback):
    """Keep the mean loss of the first four steps."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and not hasattr(self, "loss"):
            self.loss = float(logs["loss"])


def popular(train, test, items, k=20):
    """Return what the items reach that most users have."""
    order = np.argsort(-np.bincount(np.concatenate(train), minlength=items), kind="stable")
    metrics = [kl.metrics.RecallAtK(k, name=f"Recall@{k}"), kl.metrics.NDCGAtK(k, name=f"NDCG@{k}")]
    for own, wanted in zip(train, test):
        if len(own) and len(wanted):
            best = order[: k + len(own)]
            for metric in metrics:
                metric.update_state(wanted[None], best[~np.isin(best, own)][None, :k])
    return {metric.name: 100 * float(metric.result()) for metric in metrics}
