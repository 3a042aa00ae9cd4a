"""Sequential recommendation: one model with eight heads, each for the same time of the processor."""

import time

import _common
import keras
import next_item as example
import tensorflow as tf

ROWS = tuple(example.HEADS)
NOT_WITH = dict.fromkeys(example.TREES, "--tied")
COURSE = ("seconds of processor time", "Recall@10 in validation, %")


def run(row, argv):
    # `--minutes` are those of the processor: other processes do not disturb them.
    args = example.arguments(["--epochs", "1000", *argv, "--head", row])
    keras.utils.set_random_seed(args.seed)
    data = _common.interactions(args.data, args.share)
    model, predictor = example.compiled(args, data.counts)
    ask, metrics = tf.function(predictor, reduce_retracing=True), example.metrics()
    validation = example.held_out(data.users, args.length, last=2, most=2000)
    best = Best(time.process_time, args.minutes, lambda: _common.measure(metrics, ask, validation))
    train = example.batches(example.rows_of(data.users, args.length), args.batch, args.seed)
    found = model.fit(train, epochs=args.epochs, callbacks=[best], shuffle=False, verbose=2).history
    test, peak = example.held_out(data.users, args.length, last=1), _common.peak_memory()
    scores = {"epochs": len(found["loss"])}
    for when in ("end", "best"):
        scores |= {f"{when}: {k}": 100 * v for k, v in _common.measure(metrics, ask, test).items()}
        if when == "end":
            model.set_weights(best.weights)
    scores |= {"at epoch": best.epoch, "ms/step": 1000 * best.seconds / best.steps, "GB": peak}
    return {**scores, "course": [(s, 100 * r) for s, r in zip(found["seconds"], found["Recall@10"])]}


class Best(_common.Clock):
    """Keep the weights of the epoch that is best in validation."""

    def __init__(self, clock, minutes, measure):
        super().__init__(minutes, measure, clock)
        self.highest = -1.0

    def on_epoch_end(self, epoch, logs):
        super().on_epoch_end(epoch, logs)
        if logs["Recall@10"] > self.highest:
            self.highest, self.epoch, self.weights = logs["Recall@10"], epoch + 1, self.model.get_weights()
