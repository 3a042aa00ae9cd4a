"""Two towers for retrieval, with TensorFlow Recommenders: users and items become vectors of one space.

python examples/two_tower.py                # which names does a function of Python's library use?
python examples/two_tower.py --layers keras # the same with Keras's own Embedding, to compare
python examples/two_tower.py --devices 8    # over 8 GPUs; 8 logical CPUs where there are none
python examples/two_tower.py --data FOLDER  # lines `user item item ...` in train.txt[.gz], ...
"""

import argparse
import json
import pathlib
import time

import _towers  # first: it imports TensorFlow, in such a way that TensorFlow Recommenders can be imported

# isort: split
import keras
from _next_item.sequences import read, show_best
from _report import Course, export_and_serve, peak_memory, stage

import keras_largeout as kl


def main():
    args = arguments()
    started = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)
    sequences = read(args)
    with strategy.scope():
        model = make_model(args, sequences)
    results = fit(args, sequences, model)
    results["test"] = test(args, sequences, model)
    recommender = _towers.recommender(model, len(sequences.counts))
    show_recommendations(args, sequences, recommender)
    export(args, sequences, recommender)
    draw(args, results)
    print_table(args, results)
    results["peak"] = peak_memory()
    minutes = (time.perf_counter() - started) / 60
    print(f"\nDone in {minutes:.1f} minutes, with at most {results['peak'] / 2**30:.1f} GB of memory")
    if args.results:
        pathlib.Path(args.results).write_text(json.dumps(results))


def make_model(args, sequences):
    with stage("Building the towers"):
        users, items = len(sequences.users), len(sequences.counts)
        model = _towers.build(users, items, args.length, args.dim, args.layers, args.temperature)
        optimizer = kl.optimizers.LazyAdam if args.layers == "ours" else keras.optimizers.Adam
        model.compile(optimizer(args.learning_rate))
        counted = model.query.count_params() + model.item.count_params()
        print(f"   {counted:,} weights: vectors of {args.dim} for users, items, and items of a history")
    return model


def fit(args, sequences, model):
    """Trains; after each epoch it measures some users, by the item before their last one."""
    data = _towers.pairs(sequences, args.length, args.batch, args.seed)
    held_out, items = sequences.held_out(2, args.validation_users, args.seed), len(sequences.counts)
    course = Course(lambda: _towers.evaluate(model, held_out, args.length, items))
    with stage(f"Training for {args.epochs} epochs of {len(data):,} steps, {args.batch:,} pairs in each"):
        model.fit(data, epochs=args.epochs, callbacks=[course], shuffle=False, verbose=0)
        milliseconds = 1000 * min(course.seconds) / len(data)
        print(f"   {milliseconds:.1f} ms for a step")
    return {"course": course.scores, "milliseconds": milliseconds}


def test(args, sequences, model):
    held_out = sequences.held_out(1, args.test_users, args.seed)
    with stage(f"Testing: the last item of each of {len(held_out[0]):,} users"):
        return _towers.evaluate(model, held_out, args.length, len(sequences.counts))


def show_recommendations(args, sequences, recommender):
    """Prints what some users of the test are told."""

    def best(held_out):
        return recommender(_towers.inputs_of(held_out, args.length))["ids"].numpy()

    show_best("What is recommended?", sequences, best, args.seed)


def export(args, sequences, recommender, asked=64):
    inputs = _towers.inputs_of(sequences.held_out(1, asked, args.seed), args.length)
    answers = {key: value.numpy() for key, value in recommender(inputs).items()}
    export_and_serve(args.export, recommender, inputs, answers)


def print_table(args, results):
    name = "ShardedEmbedding, LazyAdam" if args.layers == "ours" else "keras.layers.Embedding, Adam"
    print(
        f"\nThe last item of each user, in percent, after {args.epochs} epochs. all@k: it is among the k best"
    )
    print("of all items. Recall@k: among the k best of those that the user does not have yet.")
    print(f"\n{'':32}" + "".join(f"{column:>11}" for column in results["test"]) + f"{'ms/step':>11}")
    scores = "".join(f"{100 * value:>11.2f}" for value in results["test"].values())
    print(f"{name:32}{scores}{results['milliseconds']:>11.1f}")


def draw(args, results):
    if args.plots:
        with stage(f"Plot, in {args.plots}"):
            from _plots import two_tower as plots

            plots.course(args.plots, args.layers, results["course"])


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--data",
        metavar="PATH",
        help="a file or folder of `user item item ...`; default: Python's own functions",
    )
    add("--layers", choices=("ours", "keras"), default="ours", help="whose embeddings and optimizer")
    add("--epochs", type=int, default=5)
    add("--batch", type=int, default=1024, help="pairs in a batch: each item stands against all others")
    add("--length", type=int, default=50, help="the most items of a history that the tower reads")
    add("--least", type=int, default=2, help="default data: names that fewer functions use are left out")
    add("--dim", type=int, default=64, help="width of all vectors")
    add("--temperature", type=float, default=1.0, help="scores are divided by it")
    add("--learning-rate", type=float, default=2e-3)
    add("--validation-users", type=int, default=2000, help="measure at most so many after each epoch")
    add("--test-users", type=int, help="test at most so many; default: all")
    add("--devices", type=int, help="how many GPUs, or logical CPUs in their place; default: all GPUs")
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="few users, few steps, narrow vectors: does everything work?")
    add("--plots", metavar="DIR", help="a PNG of the validation by epoch; layers drawn before stay in it")
    add("--export", metavar="DIR", help="keep the SavedModel; default: made for a test, then removed")
    add("--results", metavar="FILE.json", help="write the numbers to a file")
    args = parser.parse_args()
    args.share = 0.04 if args.quick else 1.0
    if args.quick:
        args.epochs, args.dim, args.batch = 3, 16, 128
    return args


if __name__ == "__main__":
    main()
