"""The `xxhash` package, called for each string, as in a program that prepares data."""

import xxhash

from benchmarks._step import Step
from benchmarks.peers.sparse_inputs._inputs import strings


def hash_each(config, data):
    values, bins = strings(data), config["bins"]
    digest = xxhash.xxh64_intdigest

    def run(_):
        return sum(digest(value) % bins for value in values) / len(values) / bins

    return Step(run)
