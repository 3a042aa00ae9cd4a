"""What comes next? A sequential recommender (SASRec) over thousands of items, with one of eight heads.

python examples/next_item.py                # which name does a function of Python's library use next?
python examples/next_item.py --compare --plots plots    # every head for the same time, a table, a picture
python examples/next_item.py --head sampled             # one head
python examples/next_item.py --int8         # also: what does an export in int8 cost?
python examples/next_item.py --devices 8    # over 8 GPUs; 8 logical CPUs where there are none
python examples/next_item.py --data FOLDER  # lines `user item item ...` in train.txt[.gz], ...
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import keras
import numpy as np
import tensorflow as tf
from _next_item import sasrec
from _next_item.callbacks import NDCG, RECALL, Course, K, LeaveOneOut
from _next_item.sequences import batches, read, show_best
from _report import compare, peak_memory, size, stage

import keras_largeout as kl


def main():
    args = arguments()
    if args.compare:
        results = {kind: run_apart(args, kind) for kind in sasrec.NAMES}
        print_table(results)
        save_results(args, results)
        return
    started = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    sequences = read(args)
    with strategy.scope():
        model, head = make_model(args, sequences)
        seen = keras.Input((None,), dtype="int32", name="seen")
        predictor = head.predictor(model, k=K, position="last", exclude=seen)
    results, test = fit(args, sequences, model, predictor)
    show_predictions(args, sequences, predictor, test)
    with strategy.scope():
        save_and_reload(args, predictor, test)
    if args.int8:
        export_in_int8(predictor, test)
    draw(args, results)
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {peak_memory() / 2**30:.1f} GB of memory")
    save_results(args, results)


def make_model(args, sequences):
    with stage(f"Building the model, its head: {sasrec.NAMES[args.head]}"):
        head = sasrec.make_head(args.head, sequences.counts, args.samples)
        items = len(sequences.counts)
        model = sasrec.build(
            head, items, args.length, args.dim, args.blocks, dropout=args.dropout, seed=args.seed
        )
        sasrec.begin_with(head, sequences.counts)
        model.compile(kl.optimizers.LazyAdam(args.learning_rate), loss=head.loss)
        if args.head in ("tree", "huffman"):
            print(f"   {head.tree}")
        print(f"   {model.count_params():,} weights: {items:,} items, {args.dim} wide, {args.blocks} blocks")
    return model, head


def fit(args, sequences, model, predictor):
    """Trains, measures on the way, and tests twice: at the end, and with the best weights of the way."""
    rows = sequences.rows(args.length)
    steps = max(1, len(rows) // args.batch)
    predicted = np.count_nonzero(rows[:, 1:] >= 0)
    limit = f"{args.minutes:g} minutes" + (f" or {args.epochs:g} epochs" if args.epochs else "")
    title = f"Training for {limit}; an epoch has {steps} steps, and predicts {predicted:,} items"
    with tempfile.TemporaryDirectory() as scratch:
        best = str(pathlib.Path(scratch) / "best.weights.h5")
        with stage(title):
            held_out = sequences.held_out(2, args.validation_users, args.seed)
            measure = LeaveOneOut(predictor, held_out, args.length)
            every = args.every or 5 * args.minutes
            clock = time.process_time if args.processor_time else time.perf_counter
            course = Course(measure, steps, args.minutes, args.epochs, every, best, clock)
            data = batches(rows, args.batch, args.seed)
            # The callback ends it; the dataset shuffles.
            model.fit(data, epochs=10**6, steps_per_epoch=steps, callbacks=[course], shuffle=False, verbose=0)
            peak = peak_memory()
            print(f"   {course.milliseconds:.1f} ms for a step of {args.batch} rows")
        with stage(f"Testing: the last item of each of {len(sequences.users):,} sequences"):
            test = LeaveOneOut(predictor, sequences.held_out(1), args.length)
            last = test()
            model.load_weights(best)
            results = {
                "last": last,
                "best": test(),
                "points": course.points,
                "best_point": course.best_point,
                "milliseconds": course.milliseconds,
                "peak": peak,
            }
            for which, when in (("last", course.points[-1]), ("best", course.best_point)):
                said = ", ".join(f"{name} {value:.1%}" for name, value in results[which].items())
                print(f"   {which} weights, of epoch {when['epochs']:.1f}: {said}")
    return results, test


def show_predictions(args, sequences, predictor, test):
    """Prints what the model recommends to some users of the test."""

    def best(held_out):
        _, histories, _ = held_out
        return predictor(test.inputs(histories), training=False)["ids"].numpy()

    show_best("What comes next?", sequences, best, args.seed)


def save_and_reload(args, predictor, test):
    """Saves the recommender and loads it: the copy must answer the same."""
    with stage("Saving, loading back"), tempfile.TemporaryDirectory() as scratch:
        path = args.save or pathlib.Path(scratch) / "recommender.keras"
        predictor.save(path)
        loaded = keras.models.load_model(path)
        print(f"   {path}: {size(path)}")
        inputs, _ = test.batches[-1]
        answers = [model(inputs, training=False) for model in (predictor, loaded)]
        arrays = ({key: part.numpy() for key, part in answer.items()} for answer in answers)
        compare("answers of the loaded model", *arrays)


def export_in_int8(predictor, test, batches=8):
    """Exports the recommender with its tables as they are and in int8, and asks both."""
    with stage("Exporting in float32 and in int8"), tempfile.TemporaryDirectory() as scratch:
        for dtype in (None, "int8"):
            path = pathlib.Path(scratch) / (dtype or "float32")
            kl.export_saved_model(predictor, path, table_dtype=dtype)
            served = tf.saved_model.load(str(path))
            scores = test(served.serve, batches).items()
            said = ", ".join(f"{name} {value:.2%}" for name, value in scores)
            print(f"   {path.name:8} {size(path):>8}: {said}")
        print(f"   of the first {sum(len(items) for _, items in test.batches[:batches]):,} sequences")


def run_apart(args, kind):
    """Return the same with one head, in its own process so that its memory is its own."""
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "results.json"
        given = [a for a in sys.argv[1:] if a != "--compare"]
        own = ["--head", kind, "--results", str(path), "--save", str(pathlib.Path(scratch) / "model.keras")]
        print(f"\n{'=' * 20} {sasrec.NAMES[kind]} {'=' * 20}", flush=True)
        subprocess.run([sys.executable, __file__, *given, *own], check=True)
        return json.loads(path.read_text())


def print_table(results):
    print("\nWhat the columns say (scores in percent, of the test: the last item of each sequence):")
    print("   epochs    done in the time that every head had")
    print("   end       with the weights at the end of that time")
    print("   best      with the weights that were best on the validation items, and after how many epochs")
    print("   ms/step   milliseconds for a step of training (with --processor-time: of the processor)")
    print("   process   the most memory that the process had up to the end of the training")
    print(f"\n{'':32}{'end':>16}{'best':>16}")
    short = f"{'R@' + str(K):>8}{'NDCG':>8}"
    print(f"{'head':24}{'epochs':>8}{short}{short}{'at':>7}{'ms/step':>9}{'process':>10}")
    for kind, row in results.items():
        scores = [f"{100 * row[which][name]:>8.2f}" for which in ("last", "best") for name in (RECALL, NDCG)]
        epochs, best = row["points"][-1]["epochs"], row["best_point"]["epochs"]
        speed = f"{row['milliseconds']:>9.1f}{row['peak'] / 2**30:>7.1f} GB"
        print(f"{sasrec.NAMES[kind]:24}{epochs:>8.1f}{''.join(scores)}{best:>7.1f}{speed}")


def draw(args, results):
    if args.plots:
        with stage(f"Plot, in {args.plots}"):
            from _plots import next_item as plots

            clock = "processor time in training" if args.processor_time else "training"
            plots.course(args.plots, args.head, results["points"], clock)


def save_results(args, results):
    if args.results:
        pathlib.Path(args.results).write_text(json.dumps(results))


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--data",
        metavar="PATH",
        help="a file or folder of `user item item ...`; default: Python's own functions",
    )
    add("--head", choices=tuple(sasrec.NAMES), default="tree", help="the output layer")
    add("--compare", action="store_true", help="every head, each for --minutes: a table")
    add("--minutes", type=float, default=2, help="of training, measuring not counted")
    add("--processor-time", action="store_true", help="minutes of the processor, of all its cores together")
    add("--epochs", type=float, help="end the training after so many epochs, if time is left")
    add("--every", type=float, metavar="SECONDS", help="measure so often; default: a twelfth of the time")
    add("--batch", type=int, default=128, help="sequences in a batch")
    add("--length", type=int, default=50, help="the most items that the model reads")
    add("--least", type=int, default=2, help="default data: names that fewer functions use are left out")
    add("--dim", type=int, default=64, help="width of all vectors")
    add("--blocks", type=int, default=2, help="blocks of self-attention")
    add("--samples", type=int, default=1024, help="negatives of the heads that draw some, per step")
    add("--dropout", type=float, default=0.2, help="share of values left out in training")
    add("--learning-rate", type=float, default=2e-3)
    add("--validation-users", type=int, default=2000, help="measure at most so many on the way")
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="few sequences, few steps, narrow layers: does everything work?")
    add("--plots", metavar="DIR", help="a PNG of the validation by time; heads drawn before stay in it")
    add("--save", metavar="FILE.keras", help="keep the recommender; default: saved for a test, then removed")
    add("--int8", action="store_true", help="export it in float32 and in int8, and say what int8 costs")
    add("--results", metavar="FILE.json", help="write the numbers to a file")
    args = parser.parse_args()
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.every, args.dim, args.blocks, args.samples = 3, 1.0, 16, 1, 64
    return args


if __name__ == "__main__":
    main()
