"""Users and products whose tables do not fit a GPU: neural collaborative filtering, and what a step costs.

python examples/collaborative_filtering.py              # which names do functions of Python's library call?
python examples/collaborative_filtering.py --storage host   # where the rows are: device, host, cached, file
python examples/collaborative_filtering.py --compare    # the same losses, to the last bit, wherever they are?
python examples/collaborative_filtering.py --table      # steps per second, beside Keras and PyTorch
python examples/collaborative_filtering.py --devices 8  # over 8 GPUs; 8 logical CPUs where there are none
python examples/collaborative_filtering.py --data FOLDER    # lines `user item item ...` in train.txt[.gz] ...
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import keras
import numpy as np
from _filtering import measures, models, report
from _filtering.negatives import Batches
from _filtering.pairs import read
from _report import Course, compare, peak_memory, size, stage

import keras_largeout as kl


def main():
    args = arguments()
    started = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    with rows_folder(args.folder) as folder:
        if args.table:
            from _filtering import speed

            speed.print_table(args, strategy, folder)
            return
        pairs = read(args)
        if args.compare or args.quick:
            compare_storages(args, strategy, pairs, folder / "compare")
        if args.compare:
            return
        results = run(args, strategy, pairs, folder / "trained")
    draw(args, results)
    results["peak"] = peak_memory()
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {results['peak'] / 2**30:.1f} GB of memory")
    if args.results:
        pathlib.Path(args.results).write_text(json.dumps(results))


def run(args, strategy, pairs, folder):
    """Trains and tests the two models, beside the most popular items; returns all numbers."""
    validation = measures.Measure(pairs, "valid", args.validation_users, args.seed)
    test = measures.Measure(pairs, "test", args.test_users, args.seed)
    popular = measures.of_counts(pairs)
    results = {"course": {}, "popular": validation(popular), "test": {report.POPULAR: test(popular)}}
    for kind, name in models.NAMES.items():
        with strategy.scope():
            model = make_model(args, pairs, kind, args.storage, folder / kind)
        results["course"][kind], milliseconds = fit(args, pairs, model, validation)
        scores = measures.of_model(model, pairs)
        results["test"][name] = test(scores) | {"milliseconds": milliseconds}
    report.show_recommendations(pairs, scores, args.seed)
    save_and_reload(args, strategy, pairs, model)
    report.print_scores(results["test"], len(test.users), pairs.items)
    return results


def make_model(args, pairs, kind, storage, folder):
    batches = Batches.of(pairs, args)
    # Room for the rows of two chunks: one is used while the next one is brought.
    room = [2 * args.ahead * ids for ids in (batches.positive, batches.size)]
    rows = pairs.users, pairs.items
    places = [models.place(storage, folder, min(most, count)) for most, count in zip(room, rows)]
    model = models.build(kind, rows, args.dim, places, first=args.seed)
    return models.compiled(
        model, models.optimizer(args.optimizer, args.learning_rate, args.two_optimizers, kind)
    )


def fit(args, pairs, model, validation):
    """Trains, measures some users after each epoch, and goes back to the weights of the best epoch.

    Returns:
        What was measured, a list of dicts, and the milliseconds of a step.
    """
    batches, name = Batches.of(pairs, args), models.NAMES[model.name]
    title = f"Training the {name}: {args.epochs} epochs of {batches.steps:,} steps"
    with stage(title), tempfile.TemporaryDirectory() as scratch:
        best = pathlib.Path(scratch) / "best.weights.h5"

        def measure():
            found = validation(measures.of_model(model, pairs))
            if all(found[measures.RECALL] > before[measures.RECALL] for before in course.scores):
                model.save_weights(best)
            return found

        course = Course(measure)
        print(
            f"   {model.count_params():,} weights, storage: {args.storage}; {batches.size:,} pairs in a step"
        )
        data = kl.distribute.prefetch_rows(batches.dataset(), model, args.ahead)
        model.fit(
            data,
            epochs=args.epochs,
            steps_per_epoch=batches.steps,
            callbacks=[course],
            shuffle=False,
            verbose=0,
        )
        model.load_weights(best)
        recalls = [found[measures.RECALL] for found in course.scores]
        print(f"   its weights are those of its best epoch, {1 + int(np.argmax(recalls))}")
    return course.scores, 1000 * min(course.seconds) / batches.steps


def compare_storages(args, strategy, pairs, folder):
    """Take the first steps with the rows in each memory: the losses must be the same to the last bit."""
    steps = 8 if args.quick else 20
    with stage(f"The losses of the first {steps} steps, by where the rows are"):
        losses = {}
        for storage in models.STORAGES:
            keras.utils.set_random_seed(args.seed)
            with strategy.scope():
                model = make_model(args, pairs, "neural", storage, folder)
            data = kl.distribute.prefetch_rows(Batches.of(pairs, args).dataset(), model, args.ahead)
            each = Losses()
            model.fit(data, steps_per_epoch=steps, callbacks=[each], shuffle=False, verbose=0)
            losses[storage] = each.losses
        if not report.print_losses(losses):
            sys.exit(1)


class Losses(keras.callbacks.Callback):
    """The loss of every step. (Keras's logs have the mean of an epoch so far.)

    Attributes:
        losses: list of float.
    """

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        self.model.reset_metrics()


def save_and_reload(args, strategy, pairs, model):
    """Saves the model and loads it: the copy must answer the same."""
    with stage("Saving, loading back"), tempfile.TemporaryDirectory() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        print(f"   {path}: {size(path)}")
        user, item = pairs.test[:1000].T
        asked = {"user": user, "item": item}
        answers = [{"score": model(asked, training=False).numpy()}]
        if args.storage == "file":  # a folder belongs to one model at a time
            for name in ("users", "items"):
                model.get_layer(name).table.folder.close()
        with strategy.scope():
            loaded = keras.models.load_model(path)
        answers.append({"score": loaded(asked, training=False).numpy()})
        compare("answers of the loaded model", *answers)


@contextlib.contextmanager
def rows_folder(path):
    """The folder of `--folder`, made if need be, or one that is removed at the end."""
    if path is None:
        with tempfile.TemporaryDirectory() as scratch:
            yield pathlib.Path(scratch)
        return
    pathlib.Path(path).mkdir(parents=True, exist_ok=True)
    yield pathlib.Path(path)


def draw(args, results):
    if args.plots:
        with stage(f"Plot, in {args.plots}"):
            from _plots import collaborative_filtering as plots

            plots.course(args.plots, results["course"], results["popular"])


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="lines `user item item ...`; default: Python's own functions")
    add("--storage", choices=models.STORAGES, default="device", help="whose memory the rows are in")
    add("--folder", metavar="DIR", help="of --storage file, empty or new; default: made, then removed")
    add("--ahead", type=int, default=100, help="cached: batches whose rows are brought together")
    add("--optimizer", choices=tuple(models.OPTIMIZERS), default="lazy_adam")
    add("--two-optimizers", action="store_true", help="Adagrad for tables, Adam for the other layers")
    add("--learning-rate", type=float, help="of the tables; default: one for each optimizer")
    add("--compare", action="store_true", help="only the first steps, with every storage: the same losses?")
    add("--table", action="store_true", help="only steps per second, by storage, beside Keras and PyTorch")
    add("--rows", type=int, default=1_000_000, help="of --table: rows of either table")
    add("--rounds", type=int, default=5, help="of --table: medians of so many")
    add("--epochs", type=int, default=40)
    add("--batch", type=int, default=1024, help="pairs of a user and an item that it has, in a step")
    add("--negatives", type=int, default=8, help="items drawn for each of these, which the user has not")
    add("--dim", type=int, default=64, help="length of the rows")
    add("--validation-users", type=int, default=1000, help="measure at most so many after each epoch")
    add("--test-users", type=int, default=5000, help="test at most so many")
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add(
        "--quick", action="store_true", help="few functions, short rows, and --compare: does everything work?"
    )
    add("--plots", metavar="DIR", help="a PNG of the validation by epoch")
    add(
        "--save", metavar="FILE.keras", help="keep the factorisation; default: saved for a test, then removed"
    )
    add("--results", metavar="FILE.json", help="write the numbers to a file")
    args = parser.parse_args()
    least = {"rows": 10, "seed": 0}
    for name, given in vars(args).items():
        if type(given) is int and given < least.get(name, 1):
            parser.error(
                f"--{name.replace('_', '-')} must be {least.get(name, 1)} or more. Received: {given}"
            )
    if args.folder and pathlib.Path(args.folder).is_dir() and any(pathlib.Path(args.folder).iterdir()):
        parser.error(
            f"--folder must be empty or new: rows in it would be trained on. Received: {args.folder}"
        )
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.dim, args.batch, args.ahead = 2, 8, 32, 1
        args.rows = min(args.rows, 2000)
        args.learning_rate = args.learning_rate or 0.02
    return args


if __name__ == "__main__":
    main()
