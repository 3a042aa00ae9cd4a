"""keras_largeout: the chief of a local cluster, for `benchmarks.parameter_server`."""

import json
import pathlib
import re
import sys
import tempfile
import time

import keras
import tensorflow as tf

import keras_largeout as kl
from benchmarks import _data
from benchmarks._processes import processor_seconds

ZIPF_EXPONENT = 1.1
REST = 5.0  # seconds, in which the chief has nothing to do
TICK = 0.01  # seconds: the clock of processor times


def main():
    config = json.loads(sys.argv[1])
    strategy = kl.distribute.strategy(exchange_dtype=config["exchange_dtype"])
    servers = len(strategy.cluster.addresses["ps"])
    workers = len(strategy.cluster.addresses["worker"])
    counts = _data.zipf_counts(config["words"], ZIPF_EXPONENT)
    folder = tempfile.TemporaryDirectory()
    path = _file(config, folder.name)
    data = _batches(config, path)
    planned = _model(config, strategy, counts, _plan(config, counts, servers))

    def fit(steps):
        if config["by_workers"]:  # each reads for itself
            history = planned.fit(lambda _: _batches(config, path).repeat(), steps_per_epoch=steps, verbose=0)
        else:
            history = planned.fit(data.take(steps), verbose=0)
        return history.history["loss"][0]

    count, per_call = config["count"], config["per_call"]
    fit(max(20, per_call))  # traces; the servers' memory is touched
    _, resting, rest = _spent(time.sleep, REST)
    _, once, once_seconds = _spent(fit, per_call)
    wire = _bytes_on_the_wire()
    loss, cpu, seconds = _spent(fit, count)
    wire = _bytes_on_the_wire() - wire
    # The chief's work for steps: without what it does at rest, and once per `fit`.
    at_rest = resting["chief"] / rest
    chief = max(TICK, cpu["chief"] - once["chief"] - at_rest * (seconds - once_seconds))
    loads = _loads(planned, data.take(20))
    contiguous = _loads(_model(config, strategy, counts, None), data.take(20))
    result = {
        "examples_per_second": count * config["batch"] / seconds,
        "wire_bytes": wire / count,
        "counted_bytes": sum(load.bytes_per_step for load in loads.values()),
        "planned": {name: load.imbalance for name, load in loads.items()},
        "contiguous": {name: load.imbalance for name, load in contiguous.items()},
        "worker_cpu": cpu["worker"] / count,
        "server_cpu": cpu["ps"] / count,
        "chief_cpu": chief / (count - per_call),
        "chief_at_rest": at_rest,
        "workers": workers,
        "loss": loss,
    }
    print("RESULT " + json.dumps(result), flush=True)


def _file(config, folder):
    """Return the batches, one after the other, as int32 `[count, batch, steps + 1]`: the path of a file of
    them.
    """
    shape = (config["count"], config["batch"], config["steps"] + 1)
    path = f"{folder}/batches"
    _data.zipf_ranks(config["words"], ZIPF_EXPONENT, shape, seed=1).astype("<i4").tofile(path)
    return path


def _batches(config, path):
    shape = (config["batch"], config["steps"] + 1)

    def read(record):
        ids = tf.reshape(tf.io.decode_raw(record, tf.int32), shape)
        return ids[:, :-1], ids[:, 1:]

    return tf.data.FixedLengthRecordDataset(path, 4 * shape[0] * shape[1]).map(read)


def _tree(config, counts):
    return kl.trees.head_tail(counts, dim=config["dim"], tokens=config["batch"] * config["steps"])


def _plan(config, counts, servers):
    tables = [kl.distribute.TableSpec("words", config["words"], config["dim"], slots=2, counts=counts)]
    tokens = config["batch"] * config["steps"]
    return kl.distribute.plan(tables, devices=servers, batch_size=tokens, small=0)


def _model(config, strategy, counts, plan):
    keras.utils.set_random_seed(0)
    tree, tokens = _tree(config, counts), config["batch"] * config["steps"]
    servers = len(strategy.cluster.addresses["ps"])
    of_tree = "auto"
    if plan is None and servers > 1:
        of_tree = kl.distribute.place_tree(tree, servers, counts, "range", config["dim"], tokens)
    with strategy.scope():
        ids = keras.Input((config["steps"],), dtype="int32")
        embedding = kl.layers.ShardedEmbedding(
            config["words"], config["dim"], placement=plan or "range", name="words"
        )
        head = kl.layers.HierarchicalSoftmax(config["words"], counts, tree, placement=of_tree, name="output")
        model = kl.Model(ids, head(keras.layers.Dense(config["dim"])(embedding(ids))))
        model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss, steps_per_execution=config["per_call"])
    return model


def _loads(model, data):
    balance = kl.callbacks.LoadBalance(warn_above=None, record=False)
    model.fit(data, verbose=0, callbacks=[balance])
    return balance.loads


def _spent(function, *args):
    """Return what `function(*args)` returns; the processor time of this cluster's processes by job; the
    seconds.
    """
    before, start = _processor_seconds(), time.perf_counter()
    result = function(*args)
    seconds = time.perf_counter() - start
    return result, {job: s - before[job] for job, s in _processor_seconds().items()}, seconds


def _processor_seconds():
    """Return processor time of this cluster's processes so far, by job: of all of a job's together."""
    return {job: sum(seconds) for job, seconds in processor_seconds().items()}


def _bytes_on_the_wire():
    """Return what the loopback interface has sent."""
    fields = re.search(r"^\s*lo:(.*)$", pathlib.Path("/proc/net/dev").read_text(), re.M).group(1).split()
    return int(fields[8])


if __name__ == "__main__":
    main()
