"""Many labels per row, out of tens or hundreds of thousands: a sparse output layer on a wide hidden one.

python examples/extreme_classification.py               # what do Python's own functions call?
python examples/extreme_classification.py --compare     # also with dense outputs, for a table
python examples/extreme_classification.py --data DIR    # train.txt[.gz], test.txt[.gz] of the Extreme
                                                        # Classification Repository
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import _functions
import _outputs
import keras
import numpy as np
from _report import compare, draws, meet, peak_memory, progress, size, stage
from _xmc_callbacks import Epochs

import keras_largeout as kl

KS = (1, 3, 5)


def main():
    args = arguments()
    started = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    task = read_task(args)
    with strategy.scope():
        model, head, memory = make_model(args, task)
    results = fit(args, task, model, head)
    results["weights"], results["training"] = memory
    show_predictions(args, task, head.predictor(model, k=KS[-1]))
    with strategy.scope():
        save_and_reload(args, task, model)
    results["peak"] = peak_memory()
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {results['peak'] / 2**30:.1f} GB of memory")
    if args.plots and draws(strategy):
        with stage(f"Plot, in {args.plots}"):
            from _plots import extreme_classification as plots

            plots.outputs(args.plots, args.output, results)
    meet(strategy)
    if args.results and draws(strategy):
        pathlib.Path(args.results).write_text(json.dumps(results))
    results = {args.output: results}
    if args.compare:
        results |= {kind: run_apart(args, kind) for kind in _outputs.NAMES if kind != args.output}
    print_table(results)


def read_task(args):
    with stage("Reading the data"):
        if args.data:
            train, test = (_reader(args.data, side).load() for side in ("train", "test"))
            task = _functions.Task(pathlib.Path(args.data).name, train, test)
        else:
            task = _functions.standard_library(args.seed, share=args.share)
        counts = task.train.label_counts()
        print(f"   {task.name}")
        for name, rows in (("train", task.train), ("test", task.test)):
            each = len(rows.labels) / len(rows), len(rows.features) / len(rows)
            print(f"   {len(rows):,} rows to {name}, {each[0]:.1f} labels and {each[1]:.1f} features in each")
        print(
            f"   {task.train.num_labels:,} labels, {np.count_nonzero(counts > 2):,} of them more than twice"
        )
        print(f"   {task.train.num_features:,} features")
        popular = np.tile(np.argsort(-counts, kind="stable")[: KS[-1]], (len(task.test), 1))
        at = ", ".join(f"{_precision(task.test, popular, k):.1%}" for k in KS)
        print(f"   P@1, 3, 5 of the most frequent labels: {at}")
    return task


def _reader(folder, side):
    for name in (f"{side}.txt", f"{side}.txt.gz"):
        if (path := pathlib.Path(folder) / name).exists():
            return kl.datasets.ExtremeClassification(path)
    sys.exit(f"`--data` must be a folder with {side}.txt or {side}.txt.gz. Received: {folder}")


def _precision(rows, ids, k):
    metric = kl.metrics.PrecisionAtK(k)
    metric.update_state(rows.batch()[1], ids)
    return float(metric.result())


def batches(args, rows, shuffle=False, train=False):
    """Return batches of ragged features and of padded labels (-1); to train a softmax, of one label of
    each row.
    """
    dataset = rows.dataset(args.batch, shuffle=shuffle, seed=args.seed)
    if train and args.output in _outputs.SOFTMAX:
        return dataset.map(lambda inputs, labels: (inputs, *_outputs.one_label(labels)))
    return dataset.map(lambda inputs, labels: (inputs, labels.to_tensor(-1)))


def make_model(args, task):
    with stage(f"Building the model, with {_outputs.NAMES[args.output]} as its output"):
        rows = task.train
        ids = keras.Input((None,), dtype="int32", ragged=True, name="ids")
        values = keras.Input((None,), dtype="float32", ragged=True, name="values")
        # A linear layer on sparse rows: the sum of the vectors of a row's features, times their values.
        x = kl.layers.ShardedEmbedding(
            rows.num_features,
            args.hidden,
            combiner="sum",
            embeddings_initializer=keras.initializers.RandomNormal(stddev=args.feature_scale, seed=args.seed),
            name="bag",
        )(ids, values)
        x = keras.layers.Activation("relu")(x)
        x = keras.layers.Dropout(args.dropout, seed=args.seed, name="dropout")(x)
        between, head = _outputs.make_output(args.output, args, rows.label_counts())
        for layer in between:
            x = layer(x)
        model = kl.Model({"ids": ids, "values": values}, head(x))
        _outputs.begin_with(head, rows.label_counts(), len(rows))
        model.compile(make_optimizer(args), loss=head.loss)
        weights, besides = _outputs.memory(head, between)
        widths = [args.hidden, *(layer.units for layer in between), rows.num_labels]
        print(f"   {rows.num_features:,} features -> " + " -> ".join(f"{width:,}" for width in widths))
        print(f"   output: {weights / 2**20:.1f} MB of weights, {besides / 2**20:.1f} MB to train them")
    return model, head, (weights, besides)


def make_optimizer(args):
    """Return LazyAdam, with its own learning rate for the vectors of the features.

    Most features are rare. LazyAdam moves a feature's vector only when the feature occurs; Adam would go on
    moving it for some ten steps, by its momentum. A larger learning rate makes up for it, where the features
    have much to learn (`_outputs.SETTINGS`).
    """
    rest = kl.optimizers.LazyAdam(args.learning_rate)
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        print("   this Keras has no MultiOptimizer: --learning-rate for the features too")
        return rest
    features = {"bag/.*": kl.optimizers.LazyAdam(args.feature_rate)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(rest, features))


def fit(args, task, model, head):
    with stage(f"Training: {args.epochs} epochs of {len(task.train):,} rows"):
        predictor = head.predictor(model, k=KS[-1])
        propensities = kl.metrics.propensities(task.train.label_counts(), len(task.train))
        metrics = [
            *(kl.metrics.PrecisionAtK(k, name=f"P@{k}") for k in KS),
            kl.metrics.NDCGAtK(KS[-1], name=f"nDCG@{KS[-1]}"),
            kl.metrics.PropensityScoredPrecisionAtK(propensities, KS[-1], name=f"PSP@{KS[-1]}"),
        ]
        epochs = Epochs(predictor, batches(args, task.test), metrics)
        callbacks = [epochs]
        if isinstance(head, kl.layers.SparseOutput) and args.rewire:
            callbacks.insert(
                0,
                kl.callbacks.Rewire(
                    head, fraction=args.rewire, every=args.rewire_every, until=0.66, grow=args.grow
                ),
            )
        verbose, more = progress()
        model.fit(
            batches(args, task.train, shuffle=True, train=True),
            epochs=args.epochs,
            shuffle=False,  # the dataset does that itself
            callbacks=[*callbacks, *more],
            verbose=verbose,
        )
        return {
            "scores": epochs.scores[-1],
            "history": epochs.scores,
            "seconds": float(np.median(epochs.seconds)),
            "epochs": epochs.seconds,
        }


def show_predictions(args, task, predictor, shown=5):
    """Prints what the model says of some rows of the test."""
    if task.label_names is None:
        return
    with stage("What do these functions call? (in the order of the scores; * where it is so)"):
        chosen = np.random.default_rng(args.seed).choice(len(task.test), shown, replace=False)
        rows = task.test.take(chosen)
        inputs, labels = rows.batch()
        found = predictor(inputs)["ids"].numpy()
        for name, truth, ids in zip([task.test_names[i] for i in chosen], labels.to_list(), found):
            said = "   ".join(task.label_names[i] + "*" * (i in truth) for i in ids)
            print(f"   {name} ({len(truth)} names)\n       {said}")


def save_and_reload(args, task, model):
    """Saves the model and loads it: the copy must predict the same, and learn on in the same way."""
    with stage("Saving, loading back, training on"), kl.distribute.shared_folder() as scratch:
        path = args.save or pathlib.Path(scratch) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        print(f"   {path}: {size(path)}")
        inputs, _ = task.test.take(np.arange(min(200, len(task.test)))).batch()
        predictors = [m.layers[-1].predictor(m, k=KS[-1]) for m in (model, loaded)]
        compare(
            "answers of the loaded model",
            *({key: part.numpy() for key, part in predictor(inputs).items()} for predictor in predictors),
        )
        for m in (model, loaded):  # Keras does not save how far dropout has drawn
            m.get_layer("dropout").seed_generator.state.assign([args.seed, 0])
        following = list(batches(args, task.train, train=True).take(3))
        losses = [{"loss": np.array([m.train_on_batch(*b) for b in following])} for m in (model, loaded)]
        compare("losses of the next 3 steps", *losses)


def run_apart(args, kind):
    """Return the same with another output layer, in its own process so that its memory is its own."""
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "results.json"
        own = ["--output", kind, "--results", str(path), "--save", str(pathlib.Path(scratch) / "model.keras")]
        command = [sys.executable, __file__, *(a for a in sys.argv[1:] if a != "--compare"), *own]
        print(f"\n{'=' * 20} {_outputs.NAMES[kind]} {'=' * 20}", flush=True)
        subprocess.run(command, check=True)
        return json.loads(path.read_text())


def print_table(results):
    print("\nWhat the columns say (scores in percent, of the rows to test):")
    print("   weights   of the output layer, with the wide or narrow layer below it")
    print("   training  what training takes besides: Adam's moments, the gradient where there is one")
    print("   process   the most memory that the whole process had")
    print("   s/epoch   seconds of training per epoch (the median), without the measuring after it")
    print("   P@k       of the k best labels, how many are right (precision)")
    print("   nDCG@k    the same, a hit higher up counting more")
    print("   PSP@k     the same, a rare label counting more (propensity-scored precision)")
    print(f"\n{'output':38}{'weights':>10}{'training':>10}{'process':>10}{'s/epoch':>9}", end="")
    print("".join(f"{name:>8}" for name in next(iter(results.values()))["scores"]))
    for kind in (kind for kind in _outputs.NAMES if kind in results):
        row = results[kind]
        sizes = "".join(f"{row[key] / 2**20:>7.1f} MB" for key in ("weights", "training", "peak"))
        scores = "".join(f"{100 * score:>8.1f}" for score in row["scores"].values())
        print(f"{_outputs.NAMES[kind]:38}{sizes}{row['seconds']:>9.1f}{scores}")


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("--data", metavar="DIR", help="a data set of the repository; default: Python's own functions")
    add("--output", choices=tuple(_outputs.NAMES), default="sparse", help="the output layer")
    add("--compare", action="store_true", help="the other outputs as well, and a table")
    add("--loss", choices=("binary_crossentropy", "squared_hinge"), default="binary_crossentropy")
    add("--fan-in", type=int, default=32, help="connections of a label")
    add("--hidden", type=int, default=512, help="width of the first layer")
    add("--wide", type=int, default=16_384, help="width of the layer below the sparse output")
    add("--bottleneck", type=int, default=64, help="width of the layer below --output bottleneck")
    add("--samples", type=int, default=4096, help="candidates per step of --output sampled")
    add("--epochs", type=int, default=3)
    add("--batch", type=int, default=64)
    add("--learning-rate", type=float, help="default: what serves the output, here and in the next three")
    add("--feature-rate", type=float, help="learning rate of the vectors of features")
    add("--feature-scale", type=float, help="standard deviation that the vectors of features begin with")
    add("--dropout", type=float, help="share of the hidden values left out")
    add("--rewire", type=float, default=0.1, help="share of the connections exchanged each time; 0: never")
    add("--rewire-every", type=int, default=300, help="steps between two times")
    add("--grow", choices=("random", "gradient"), default="random", help="where connections are regrown")
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="few files, few epochs, narrow layers: does everything work?")
    add(
        "--plots",
        metavar="DIR",
        help="a PNG of precision by time and memory; outputs drawn before stay in it",
    )
    add("--save", metavar="FILE.keras", help="keep the model; default: saved for a test, then removed")
    add("--results", metavar="FILE.json", help="write the numbers to a file")
    args = parser.parse_args()
    if args.compare and "TF_CONFIG" in os.environ:
        parser.error(
            "--compare trains each output in its own process, and is not for a cluster. "
            f"Received: TF_CONFIG={os.environ['TF_CONFIG']}"
        )
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.hidden, args.wide, args.rewire_every = 3, 64, 1024, 10
        args.learning_rate = args.feature_rate = 1e-2
    for name, value in dataclasses.asdict(_outputs.SETTINGS[args.output]).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


if __name__ == "__main__":
    main()
