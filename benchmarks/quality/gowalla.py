"""Gowalla as LightGCN splits it: models of cosines beside published numbers, over several seeds.

Recall@20 and NDCG@20 follow LightGCN's code: means over the users with test items, of the 20 best items
that a user does not have in training. Recall is hits over test items. NDCG is the sum of 1 / log2(rank + 1)
over the hits, over the same sum for the first min(20, test items) ranks.
"""

import argparse

import _common
import keras
import numpy as np
import recommender as example

#: For each row: a model of the same loss in SimpleX (Mao et al., CIKM 2021, https://arxiv.org/abs/2109.12613),
#: and its Recall@20 and NDCG@20 in the table of Gowalla there, here in percent.
PUBLISHED = {"softmax": ("YoutubeNet", 17.54, 14.73), "contrastive": ("MF-CCL", 18.37, 14.93)}
ROWS = tuple(PUBLISHED)
#: How long each row trains by default.
EPOCHS = {"softmax": 40, "contrastive": 160}
COURSE = ("seconds of training", "Recall@20 of 2000 users, %")


def arguments(argv=None, row=ROWS[0]):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("--tune", action="store_true", help="train without the validation items, and measure on them")
    add("--seeds", type=int, help="how many, from --seed on")
    own, rest = parser.parse_known_args(argv)
    args = example.arguments(["--loss", row, "--epochs", str(EPOCHS[row]), *rest])
    args.tune, args.seeds = own.tune, own.seeds or (2 if args.quick else 3)
    return args


def read(args):
    """Return what the example reads; to tune, the validation items in the place of the test items."""
    train, test, items = _common.likes(args)
    if not args.tune:
        return train, test, items
    if not args.data:
        return [np.delete(own, np.s_[1::5]) for own in train], [own[1::5] for own in train], items
    parts = {path.name.split(".")[0]: _common.lists(path) for path in _common.lists_in(args.data)}
    valid = [np.int32(parts["valid"].get(user, ())) for user in sorted(set().union(*parts.values()))]
    return [np.setdiff1d(own, out) for own, out in zip(train, valid)], valid, items


def trained(args, seed, train, test, items):
    """Return what a model of one seed reaches, the seconds of its epochs, and its course."""
    keras.utils.set_random_seed(seed)
    batches = example.Batches(args, train, seed)
    model, head = example.build(args, seed, train, items, args.epochs * batches.steps)
    on_the_way = None
    if args.tune or seed == args.seed:
        on_the_way = lambda: example.measure(model, head, train, test, 2000)  # noqa: E731
    clock = _common.Clock(measure=on_the_way)
    fit = {"epochs": args.epochs, "callbacks": [clock], "shuffle": False, "verbose": 2}
    logs = model.fit(batches.dataset(), **fit).history
    scores = example.measure(model, head, train, test)
    print(f"seed {seed}, {clock.seconds:.0f} s of training: {scores}", flush=True)
    return scores, clock.seconds, list(zip(logs["seconds"], logs.get("Recall@20", ())))


def run(row, argv):
    args = arguments(argv, row)
    data = read(args)
    seeds = range(args.seed, args.seed + args.seeds)
    scores, seconds, courses = zip(*(trained(args, seed, *data) for seed in seeds))
    columns = {}
    for name in scores[0]:
        values = [found[name] for found in scores]
        spread = f" +- {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        columns[name] = f"{np.mean(values):.2f}{spread}"
    if args.data:
        name, recall, ndcg = PUBLISHED[row]
        columns["published"] = f"{name}: {recall} / {ndcg}"
    return {**columns, "s": np.mean(seconds), "GB": _common.peak_memory(), "course": courses[0]}
