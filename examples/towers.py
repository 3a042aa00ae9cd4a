"""Several small models, or one large one? A committee and a mixture of experts, each tower on its own device.

python examples/towers.py                   # four towers; four logical CPUs where there are fewer GPUs
python examples/towers.py --towers 2        # another number of them
python examples/towers.py --quick           # does everything work? less than half a minute
"""

import argparse
import math
import os
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import keras
import numpy as np
import tensorflow as tf
from _report import stage

import keras_largeout as kl

INPUTS, REGIMES = 10, 4
#: The standard deviation of the noise in each regime.
NOISE = np.array([0.05, 0.1, 0.2, 0.4])


def main():
    args = arguments()
    devices = devices_for(args.towers)
    keras.utils.set_random_seed(args.seed)
    with stage("Making the data"):
        train, validation, best = make_data(args)
        print(f"   {args.rows:,} rows to train on, {len(validation[0]):,} to validate, {INPUTS} inputs")
        print(f"   {REGIMES} regimes: each is another function of the inputs, with noise of another size")
    results = {}
    for name, (model, count) in make_models(args.width, devices).items():
        with stage(f"{name}: {model.count_params():,} weights, on {', '.join(devices[:count])}"):
            results[name] = fit(args, model, train, validation)
    print_table(results, best)
    print_words(results, devices)


def devices_for(count):
    """Names of so many devices: GPUs where there are enough, else logical CPUs. Nothing has run before."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= count:
        return [f"GPU:{i}" for i in range(count)]
    if gpus:
        tf.config.set_visible_devices([], "GPU")  # else the models of one device would have it
    (cpu,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"CPU:{i}" for i in range(count)]


def make_data(args):
    """Return rows to train on and to validate, both `(x, y)`; what the best possible model has: `(rmse,
    nll)`.

    The regime of a row is the largest of four linear functions of its inputs.
    """
    rng = np.random.default_rng(args.seed)
    borders = rng.normal(size=(INPUTS, REGIMES))
    waves, slopes = rng.normal(size=(2, INPUTS, REGIMES)) * (2 / INPUTS) ** 0.5

    def rows(count):
        x = rng.normal(size=(count, INPUTS))
        regime = np.argmax(x @ borders, axis=1)
        clean = np.sin(2 * x @ waves) + x @ slopes / 2
        deviation = NOISE[regime]
        y = clean[np.arange(count), regime] + deviation * rng.normal(size=count)
        return (x.astype("float32"), y[:, None].astype("float32")), deviation

    train, _ = rows(args.rows)
    validation, deviation = rows(max(1, args.rows // 2))
    rmse = math.sqrt(np.mean(deviation**2))
    return train, validation, (rmse, float(np.mean(np.log(deviation))) + 0.5 * math.log(2 * math.pi * math.e))


def make_models(width, devices):
    """Return a dict from names to `(model, number of devices)`."""
    count = len(devices)
    one = build(width)
    wide = build(width_for(count * one.count_params()))
    return {
        "one tower": (one, 1),
        "one wide model": (wide, 1),
        f"{count} towers, their mean": (kl.distribute.parallelize(one, "towers", devices, mix="mean"), count),
        f"{count} towers, gated": (kl.distribute.parallelize(one, "towers", devices, mix="gated"), count),
    }


def build(width):
    x = inputs = keras.Input((INPUTS,), name="x")
    for _ in range(2):
        x = keras.layers.Dense(width, activation="relu", kernel_initializer="he_normal")(x)
    return kl.Model(inputs, keras.layers.Dense(1)(x))


def width_for(weights):
    """Return how wide `build` makes its layers for about so many weights: width^2 + (INPUTS + 3) width +
    1.
    """
    half = (INPUTS + 3) / 2
    return round(math.sqrt(half**2 + weights - 1) - half)


def fit(args, model, train, validation):
    """Trains; returns a dict of what the table shows."""
    steps = args.epochs * math.ceil(args.rows / args.batch)
    rate = keras.optimizers.schedules.CosineDecay(args.learning_rate, steps)
    model.compile(keras.optimizers.Adam(rate), "mse")
    seconds = Seconds()
    model.fit(*train, batch_size=args.batch, epochs=args.epochs, callbacks=[seconds], verbose=0)
    result = {"weights": model.count_params(), "seconds": float(np.median(seconds.epochs[1:]))}
    result["rmse"] = rmse_of(model, validation)
    if is_gated(model):
        result["nll"] = model.evaluate(*validation, batch_size=1000, verbose=0)
    else:
        result["nll"] = gaussian(result["rmse"], rmse_of(model, train))
    print(f"   validation: RMSE {result['rmse']:.4f}, -log likelihood {result['nll']:.4f}")
    return result


def is_gated(model):
    return any(layer.name == "gate" for layer in model.layers)


def rmse_of(model, data):
    predicted = model.predict(data[0], batch_size=1000, verbose=0)
    return float(np.sqrt(np.mean((predicted - data[1]) ** 2)))


def gaussian(rmse, deviation):
    """Return the mean of -log likelihood where errors are taken for gaussian, all of one deviation."""
    return 0.5 * math.log(2 * math.pi * deviation**2) + 0.5 * (rmse / deviation) ** 2


class Seconds(keras.callbacks.Callback):
    """Attribute `epochs`: list of the seconds that each took. (The first one includes the tracing.)"""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(time.perf_counter() - self._begun)


def print_table(results, best):
    print(f"\n{'':24}{'weights':>9}{'s/epoch':>9}{'RMSE':>9}{'-log lik.':>11}")
    for name, of in results.items():
        print(f"{name:24}{of['weights']:>9,}{of['seconds']:>9.2f}{of['rmse']:>9.4f}{of['nll']:>11.4f}")
    print(f"{'the best possible':24}{'':>18}{best[0]:>9.4f}{best[1]:>11.4f}")


def print_words(results, devices):
    """Print what the table shows, whichever model is better."""
    one, wide, *committees = results
    print("\nWhat the table shows, for this seed, with one learning rate for all:")
    for key, what in (("rmse", "RMSE"), ("nll", "-log likelihood")):
        order = sorted(results, key=lambda name: results[name][key])
        print(f"- {what}, best first: " + "; ".join(order))
    for name in committees:
        found = [f"{change(results, name, other)} that of {other}" for other in (one, wide)]
        print(f"- {name}: RMSE " + ", ".join(found))
    times = [f"{name} {results[name]['seconds'] / results[wide]['seconds']:.1f}" for name in committees]
    print(f"- an epoch, where that of {wide} takes 1: " + "; ".join(times))
    if devices[0].startswith("CPU"):
        cores = len(os.sched_getaffinity(0))
        print(f"  (logical devices of a machine with {cores} cores: this says nothing about GPUs)")
    print("- only the gated towers know how large the noise is where: -log likelihood rewards that")
    print("- the regimes have linear borders, as the gate has: it can find them. Other data may have others")


def change(results, name, other):
    percent = 100 * (results[name]["rmse"] / results[other]["rmse"] - 1)
    return f"{abs(percent):.0f}% {'below' if percent < 0 else 'above'}"


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--towers", type=int, help="how many, each on its own device: 4, or 2 with --quick")
    add("--width", type=int, default=32, help="of the two hidden layers of a tower")
    add("--rows", type=int, default=20_000, help="to train on; half as many to validate")
    add("--epochs", type=int, default=30)
    add("--batch", type=int, default=100)
    add("--learning-rate", type=float, default=1e-2, help="at the start; it falls to 0")
    add("--seed", type=int, default=0, help="of the data and of the models")
    add("--quick", action="store_true", help="two towers, a few rows, two epochs: does everything work?")
    args = parser.parse_args()
    args.towers = args.towers or (2 if args.quick else 4)
    if args.towers < 2:
        parser.error("--towers must be at least 2")
    if args.quick:
        args.rows, args.epochs = 2_000, 2
    if args.epochs < 2:
        parser.error("--epochs must be at least 2: the first one is not timed")
    return args


if __name__ == "__main__":
    main()
