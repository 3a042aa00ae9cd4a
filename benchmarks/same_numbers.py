"""Does training on N devices give the numbers of one device?

A model with a sharded embedding and a hierarchical softmax is trained for 50 steps on the same global batches
on 1, 2, 4 and 8 devices (GPUs where there are so many, else logical CPUs), with every optimizer. Printed is
the largest difference to one device: of the losses relative to the loss, of the tables and of their slots
relative to the largest value in them. Sums of float32 in another order differ in the last bits, and Adam's
division by the root of a small second moment enlarges that: 1e-4 is the line.

python -m benchmarks.same_numbers [--quick]
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl
from benchmarks import _table
from keras_largeout.planning.tree_placement import place_tree

WORDS, DIM, BATCH, LENGTH = 30_000, 32, 64, 8
TOLERANCE = 1e-4
COUNTS = 1e7 / np.arange(1, WORDS + 1) ** 1.1

OPTIMIZERS = {
    "SGD": lambda: kl.optimizers.SGD(0.1),
    "SGD, momentum": lambda: kl.optimizers.SGD(0.05, momentum=0.9),
    "SGD, Nesterov": lambda: kl.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "Adagrad": lambda: kl.optimizers.Adagrad(0.1),
    "RowWiseAdagrad": lambda: kl.optimizers.RowWiseAdagrad(0.1),
    "LazyAdam": lambda: kl.optimizers.LazyAdam(0.005),
    "Ftrl": lambda: kl.optimizers.Ftrl(0.1),
}


def batches(steps):
    rng = np.random.default_rng(1)
    words = rng.choice(WORDS, (steps * BATCH, LENGTH + 1), p=COUNTS / COUNTS.sum()).astype("int32")
    return tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, 1:])).batch(BATCH)


def train(devices, optimizer, tree, steps):
    """Return losses of all steps, and the tables with their slots by name."""
    keras.utils.set_random_seed(3)
    with kl.distribute.strategy(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        x = kl.layers.ShardedEmbedding(WORDS, DIM, placement="permutation")(tokens)
        x = keras.layers.Dense(DIM, activation="tanh")(x)
        place = "auto" if devices == 1 else place_tree(tree, devices, COUNTS, how="planned", dim=DIM)
        head = kl.layers.HierarchicalSoftmax(WORDS, counts=COUNTS, tree=tree, placement=place)
        model = keras.Model(tokens, head(x))
        model.compile(optimizer(), loss=head.loss)
    losses = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    model.fit(batches(steps), verbose=0, shuffle=False, callbacks=[record])
    tables = {"embedding": model.layers[1].table, "kernel": head.kernel_table, "bias": head.bias_table}
    values = {name: table.numpy() for name, table in tables.items()}
    slots = {key: slot.numpy() for key, slot in model.optimizer._row_slots.slots.items()}
    return np.array(losses), values, slots


def difference(got, want):
    """Return the largest difference, relative to the largest value of each array."""
    return max(
        (float(np.abs(got[key] - want[key]).max() / max(np.abs(want[key]).max(), 1e-12)) for key in want),
        default=0.0,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two optimizers, 1 and 2 devices, 10 steps")
    quick = parser.parse_args().quick
    steps, several = (10, (2,)) if quick else (50, (2, 4, 8))
    kl.distribute.strategy(max(several))  # makes the devices, before anything runs on one
    tree = kl.trees.head_tail(COUNTS, dim=DIM, tokens=BATCH * LENGTH)
    names = ("SGD", "LazyAdam") if quick else OPTIMIZERS
    rows, worst = [], 0.0
    for name in names:
        losses, values, slots = train(1, OPTIMIZERS[name], tree, steps)
        for devices in several:
            got = train(devices, OPTIMIZERS[name], tree, steps)
            loss = float(np.abs(got[0] - losses).max() / losses.max())
            found = [loss, difference(got[1], values), difference(got[2], slots)]
            worst = max(worst, *found)
            rows.append([name, f"{devices} devices", *(f"{value:.1e}" for value in found)])
            print("  ".join(rows[-1]), flush=True)
    print(f"\nAfter {steps} steps, the largest relative difference to one device:\n")
    print(_table.aligned(["optimizer", "on", "losses", "tables", "slots"], rows))
    print(f"\n{'within' if worst <= TOLERANCE else 'ABOVE'} {TOLERANCE:g}: the largest is {worst:.1e}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
