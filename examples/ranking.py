"""Who clicks? A ranking model, DCN-v2 or DLRM, on 26 categorical features of up to five million rows.

python examples/ranking.py                  # a made log: the best possible AUC is known
python examples/ranking.py --compare --plots plots      # both models, tables stacked and not: a table
python examples/ranking.py --model dlrm     # one model
python examples/ranking.py --devices 8      # over 8 GPUs; 8 logical CPUs where there are none
python examples/ranking.py --data FOLDER    # Criteo's lines in train.txt[.gz], or in several files
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
from _ranking import click_logs, criteo, models, report
from _ranking.course import Course, Predictions
from _report import compare, export_and_serve, peak_memory, size, stage

import keras_largeout as kl

RUNS = [(model, stacking) for model in models.NAMES for stacking in ("auto", "none")]


def main():
    args = arguments()
    if args.compare:
        results = [run_apart(args, *run) for run in RUNS]
        report.print_runs(results)
        save_results(args, results)
        return
    started = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    features, train, test, sample, rows = open_data(args)
    results = {"model": args.model, "stacking": args.stacking}
    with strategy.scope():
        model, results["build"] = make_model(args, features)
    use = kl.callbacks.FeatureReport()
    predictions = Predictions(model)
    course = Course(predictions, sample.cache(), args.batch, rows, 10_000 if args.quick else 50_000)
    results |= fit(model, train, course, use)
    results |= measure(predictions, test)
    with stage("Which rows were used"):
        report.print_row_use(use.features)
    if not args.skip_saving:
        with strategy.scope():
            save_and_reload(args, model, train, sample)
        export(args, model, sample)
    draw(args, results)
    results["peak"] = peak_memory()
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {results['peak'] / 2**30:.1f} GB of memory")
    save_results(args, results)


def open_data(args):
    """Return the features; what to train on, to test on and to measure on the way; how many rows to train
    on.
    """
    with stage("Opening the data"):
        truth = {}
        if args.data:
            data = criteo.Criteo(args.data, args.most_rows)
            counted = [n for n in (data.rows["train"], args.rows) if n is not None]
            rows, name = min(counted, default=None), data.name
        else:
            data = click_logs.ClickLogs(click_logs.default_features(args.most_rows), args.seed)
            rows, name, truth = args.rows, f"a made log, seed {args.seed}", {"truth": True}
        train = data.dataset(rows, args.batch)
        test = data.dataset(args.test_rows, 4096, "test", **truth)
        sample = data.dataset(min(20_000, args.test_rows or 20_000), 4096, "test", **truth)
        sizes = [f.rows for f in data.features]
        bags = sum(f.ids > 1 for f in data.features)
        print(f"   {name}: {f'{rows:,}' if rows else 'all'} rows to train on, once")
        print(
            f"   {len(sizes)} categorical features, {bags} of them bags of ids; "
            f"{min(sizes):,} to {max(sizes):,} rows each, {sum(sizes):,} together"
        )
    return data.features, train, test, sample, rows


def make_model(args, features):
    with stage(f"Building the model: {models.NAMES[args.model]}"):
        started = time.process_time()
        stacking = "auto" if args.stacking == "auto" else None
        model = models.build(args.model, features, click_logs.DENSE, args.dim, args.learning_rate, stacking)
        seconds = time.process_time() - started
        tables = model.get_layer("tables")
        in_tables = args.dim * sum(f.rows for f in features)
        print(f"   {in_tables:,} weights in {len(features)} tables, which are in {len(tables.fused_tables)}")
        print(f"   {model.count_params() - in_tables:,} weights in dense layers")
        print(f"   {seconds:.1f} s of the processor")
    return model, seconds


def fit(model, train, course, use):
    with stage("Training: one pass, as the rows come"):
        model.fit(train, callbacks=[course, use], shuffle=False, verbose=0)
        clock, processor = course.speed
        print(f"   {clock:,.0f} rows per second; {processor:,.0f} per second of the processor")
    return {"points": course.points, "clock": clock, "processor": processor, "training": peak_memory()}


def measure(predictions, test):
    with stage("Testing"):
        labels, found, truth = predictions(test)
        results = {"scores": report.scores(labels, found)}
        rows = {"this model": results["scores"]}
        if truth is not None:
            rows["the best possible"] = results["best"] = report.scores(labels, truth)
        rows["the mean for every row"] = report.scores(labels, np.full(len(labels), labels.mean()))
        report.print_scores(rows, len(labels))
        results["bins"] = report.print_calibration(labels, found)
    return results


def save_and_reload(args, model, train, sample):
    """Saves the model and loads it: the copy must predict the same, and learn on in the same way."""
    with stage("Saving, loading back, training on"), tempfile.TemporaryDirectory() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        print(f"   {path}: {size(path)}")
        inputs = next(iter(sample))[0]
        answers = [{"click": m(inputs, training=False).numpy()} for m in (model, loaded)]
        compare("answers of the loaded model", *answers)
        following = list(train.take(3))
        losses = [{"loss": np.array([m.train_on_batch(*b) for b in following])} for m in (model, loaded)]
        compare("losses of the next 3 steps", *losses)


def export(args, model, sample, asked=256):
    inputs = {name: array.numpy()[:asked] for name, array in next(iter(sample))[0].items()}
    answers = {"output_0": model(inputs, training=False).numpy()}
    export_and_serve(args.export, model, inputs, answers)


def run_apart(args, model, stacking):
    """Return the same with another model, in its own process so that its memory is its own."""
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "results.json"
        given = [a for a in sys.argv[1:] if a != "--compare"]
        own = ["--model", model, "--stacking", stacking, "--results", str(path), "--skip-saving"]
        print(f"\n{'=' * 20} {report.run_name(model, stacking)} {'=' * 20}", flush=True)
        subprocess.run([sys.executable, __file__, *given, *own], check=True)
        return json.loads(path.read_text())


def draw(args, results):
    if args.plots:
        with stage(f"Plot, in {args.plots}"):
            from _plots import ranking as plots

            plots.ranking(args.plots, args.model, results)


def save_results(args, results):
    if args.results:
        pathlib.Path(args.results).write_text(json.dumps(results))


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("--data", metavar="PATH", help="a file or folder of Criteo's lines; default: a made log")
    add("--model", choices=tuple(models.NAMES), default="dcn")
    add("--compare", action="store_true", help="both models, with stacked and with separate tables: a table")
    add("--stacking", choices=("auto", "none"), default="auto", help="tables in one variable, or separate")
    add("--rows", type=int, help="train on at most so many; default: 2 million, of --data all")
    add("--test-rows", type=int, help="test on at most so many; default: 200 thousand, of --data all")
    add("--most-rows", type=int, default=5_000_000, help="of the largest table")
    add("--dim", type=int, default=16, help="width of the tables")
    add("--batch", type=int, default=2048)
    add("--learning-rate", type=float, default=0.02, help="of the tables; Adam's own for the dense layers")
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="few rows, small tables: does everything work?")
    add("--plots", metavar="DIR", help="a PNG of calibration and AUC; models drawn before stay in it")
    add("--save", metavar="FILE.keras", help="keep the model; default: saved for a test, then removed")
    add("--export", metavar="DIR", help="keep the exported model; default: likewise")
    add("--skip-saving", action="store_true", help="neither save nor export; so do the runs of --compare")
    add("--results", metavar="FILE.json", help="write the numbers to a file")
    args = parser.parse_args()
    for name in ("rows", "test_rows", "most_rows", "dim", "batch"):
        given = getattr(args, name)
        if given is not None and given < 1:
            parser.error(f"--{name.replace('_', '-')} must be a positive integer. Received: {given}")
    if args.most_rows < 10:
        parser.error(f"--most-rows must be 10 or more. Received: {args.most_rows}")
    if args.quick:
        args.most_rows, args.batch = min(args.most_rows, 20_000), 512
    if args.quick or not args.data:
        args.rows = args.rows or (60_000 if args.quick else 2_000_000)
        args.test_rows = args.test_rows or (10_000 if args.quick else 200_000)
    return args


if __name__ == "__main__":
    main()
