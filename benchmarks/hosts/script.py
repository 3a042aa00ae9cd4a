"""keras_largeout: one process of `benchmarks.hosts`, or the chief of the parameter servers.

`python script.py CONFIG`; the first process prints `PREFIX`, and JSON.
"""

import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl
from benchmarks import _data
from benchmarks._processes import bytes_sent, processor_seconds
from keras_largeout.replicas.collectives import all_gather_vector, all_reduce_sum, counted_blocks
from keras_largeout.replicas.hosts import hosts_of

ZIPF_EXPONENT = 1.1
PREFIX = "RESULT "


def main(config):
    if config["quick"]:  # it takes longer than the few steps
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = kl.distribute.strategy(config.get("devices"))
    hosts = hosts_of(strategy)
    batch, steps = config["batch"] // config["parts"], config["steps"] * config["parts"]
    with strategy.scope():
        model = _model(config)
    data, clock = _examples(config).batch(batch, drop_remainder=True).repeat(), _Clock()
    # The first round traces, and touches memory.
    model.fit(data, epochs=1 + config["rounds"], steps_per_epoch=steps, verbose=0, callbacks=[clock])
    seconds, wire, processor = np.median(np.diff(clock.seen, axis=0)[1:], axis=0)
    result = {
        "examples_per_second": config["batch"] * config["steps"] / seconds,
        "wire_bytes": wire / config["steps"],
        "processor_seconds": processor / config["steps"],
    }
    if not hosts.is_alone:
        result |= _exchanged(hosts, model, data, config)
    if hosts.is_first:
        print(PREFIX + json.dumps(result), flush=True)


def _examples(config):
    shape = (config["batch"] * config["batches"],)
    users = _data.zipf_ranks(config["users"], ZIPF_EXPONENT, shape, seed=1)
    items = _data.zipf_ranks(config["items"], ZIPF_EXPONENT, (*shape, config["history"] + 1), seed=2)
    return tf.data.Dataset.from_tensor_slices(((users, items[:, :-1]), items[:, -1]))


def _model(config):
    keras.utils.set_random_seed(0)
    dim, embedding = config["dim"], kl.layers.ShardedEmbedding
    user = keras.Input((), dtype="int64")
    history = keras.Input((config["history"],), dtype="int64")
    rows = [
        embedding(config["users"], dim, placement="permutation", name="users")(user),
        embedding(config["items"], dim, placement="permutation", combiner="mean", name="items")(history),
    ]
    hidden = keras.layers.Dense(dim, "relu")(keras.layers.Concatenate()(rows))
    counts = _data.zipf_counts(config["items"], ZIPF_EXPONENT)
    head = kl.layers.HierarchicalSoftmax(config["items"], counts, name="next")
    model = kl.Model([user, history], head(hidden))
    model.compile(kl.optimizers.Adagrad(0.05), loss=head.loss, steps_per_execution=config["per_call"])
    return model


class _Clock(keras.callbacks.Callback):
    """The time, the bytes on the wire and the processor's time at the end of each epoch."""

    def __init__(self):
        super().__init__()
        cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
        self._ports = [int(a.rpartition(":")[2]) for addresses in cluster.values() for a in addresses]
        self.seen = []

    def on_train_begin(self, logs=None):
        self._look()

    def on_epoch_end(self, epoch, logs=None):
        self._look()

    def _look(self):
        on_cluster = bool(self._ports)
        processor = sum(map(sum, processor_seconds().values())) if on_cluster else time.process_time()
        self.seen.append((time.perf_counter(), bytes_sent(self._ports), processor))


def _exchanged(hosts, model, data, config):
    """Return what the blocks between hosts hold in a step, and the time of sending such blocks and nothing
    else.

    For each kind of rows: width, dtype, how many times all exchange some, and of all hosts together the rows
    needed, the rows if all blocks were as large as the largest, and the rows sent.
    """
    with counted_blocks() as counts:
        model.make_train_function(force=True)
        model.fit(data, epochs=1, steps_per_epoch=config["steps"], verbose=0)
    kinds = sorted(counts)
    of_all = all_reduce_sum(hosts, tf.concat([counts[kind] for kind in kinds], axis=0)).numpy().reshape(-1, 4)
    of_all = of_all / config["steps"] / [hosts.count, 1, 1, 1]
    blocks = [[*kind, *numbers] for kind, numbers in zip(kinds, of_all.tolist())]

    @tf.function
    def exchange():
        for width, dtype, times, _, _, sent in blocks:
            rows = round(sent / times / hosts.count / (hosts.count - 1))
            for _ in range(round(times)):
                all_gather_vector(hosts, tf.zeros([rows * width], dtype))

    times = []
    for _ in range(2 + config["steps"]):
        start = time.perf_counter()
        exchange()
        times.append(time.perf_counter() - start)
    return {"blocks": blocks, "exchange_seconds": float(np.median(times[2:]))}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
