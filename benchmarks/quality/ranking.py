"""Clicks: DCN-v2 and DLRM, with stacked and with separate tables."""

import time

import _common
import keras
import ranking as example

ROWS = ("DCN-v2", "DCN-v2, separate tables", "DLRM", "DLRM, separate tables")
COURSE = ("thousand rows trained on", "loss")


def run(row, argv):
    options = ["--model", "dlrm" if row.startswith("DLRM") else "dcn"]
    options += ["--stacking", "none"] if row.endswith("separate tables") else []
    args = example.arguments([*argv, *options])
    keras.utils.set_random_seed(args.seed)
    rows, train, test, best = example.read(args)
    began = time.process_time()
    model = example.build(args, rows)
    built, clock, course = time.process_time() - began, _common.Clock(), []

    class Course(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch & (batch + 1) == 0:  # 1, 2, 4, 8, ... batches
                course.append(((batch + 1) * args.batch / 1000, float(logs["loss"])))

    model.fit(train, callbacks=[clock, Course()], shuffle=False, verbose=2)
    peak, speed = _common.peak_memory(), clock.steps * args.batch / clock.seconds
    own = {"build, CPU s": built, "rows/s": speed, "GB": peak}
    return {**own, **example.measure(model, test, best), "course": course}
