"""Vowpal Wabbit, from its text format or from its cache, in which the text has been parsed."""

import vowpalwabbit

from benchmarks._step import Step

BITS = "-b 24 --loss_function logistic --quiet"


def one_pass(config, data):
    """Return each step learns all rows, from weights of zero. The loss is that of each row before its
    update.
    """
    text = data["text"]
    cache, options = f"{text}.cache", f"-d {text} {BITS}"
    if config["file"] == "cache":
        options += f" --cache_file {cache}"
        _learn(f"{options} -k")  # writes it
    if config.get("ftrl"):
        options += " --ftrl"
    return Step(lambda _: _learn(options))


def _learn(options):
    learner = vowpalwabbit.Workspace(options)
    learner.run_parser()
    loss = learner.get_sum_loss() / learner.get_weighted_examples()
    learner.finish()
    return loss
