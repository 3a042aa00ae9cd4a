"""Several small models, or one large one? A committee and a mixture of experts, each tower on its own device.

python examples/towers.py                   # four towers; four logical CPUs where there are fewer GPUs
python examples/towers.py --devices 2       # another number of them
"""

import math

import _common
import keras
import numpy as np

import keras_largeout as kl

INPUTS, REGIMES = 10, 4
NOISE = np.array([0.05, 0.1, 0.2, 0.4])  # the deviation of each regime


def arguments(argv=None):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--width", type=int, default=32, help="of the two hidden layers of a tower")
    add("--rows", type=int, default=20_000, help="to train on; half as many to validate")
    add("--epochs", type=int, default=30)
    add("--batch", type=int, default=100)
    add("--learning-rate", type=float, default=1e-2, help="at the start; it falls to 0")
    args = parser.parse_args(argv)
    args.devices = args.devices or (2 if args.quick else 4)
    if args.devices < 2:
        parser.error(f"--devices must be 2 or more. Received: {args.devices}")
    if args.quick:
        args.rows, args.epochs = 2_000, 2
    return args


def make_data(rows, seed):
    """Return rows to train on and to validate, `(x, y)`, and the deviation of each row of the second.

    The regime of a row is the largest of four linear functions of its inputs. In each of them the target is
    another function of the inputs, a sine and a line, and the noise has another size.
    """
    rng = np.random.default_rng(seed)
    borders = rng.normal(size=(INPUTS, REGIMES))
    waves, slopes = rng.normal(size=(2, INPUTS, REGIMES)) * (2 / INPUTS) ** 0.5
    x = rng.normal(size=(rows + rows // 2, INPUTS))
    regime = np.argmax(x @ borders, axis=1)
    clean = (np.sin(2 * x @ waves) + x @ slopes / 2)[np.arange(len(x)), regime]
    y = clean + NOISE[regime] * rng.normal(size=len(x))
    x, y = x.astype("float32"), y[:, None].astype("float32")
    return (x[:rows], y[:rows]), (x[rows:], y[rows:]), NOISE[regime[rows:]]


def build(width):
    x = inputs = keras.Input((INPUTS,), name="x")
    for _ in range(2):
        x = keras.layers.Dense(width, activation="relu", kernel_initializer="he_normal")(x)
    return kl.Model(inputs, keras.layers.Dense(1)(x))


def rmse(model, x, y):
    return float(np.sqrt(np.mean((model.predict(x, batch_size=1000, verbose=0) - y) ** 2)))


def nll(error, deviation):
    """Return the mean of -log of the likelihood of gaussian errors that were taken for another deviation."""
    return 0.5 * math.log(2 * math.pi * deviation**2) + 0.5 * (error / deviation) ** 2


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    strategy = kl.distribute.strategy(args.devices)  # it makes the logical CPUs, if there are no GPUs
    devices = [name.rpartition("device:")[2] for name in strategy.extended.worker_devices]
    train, validation, deviation = make_data(args.rows, args.seed)
    one, count = build(args.width), len(devices)
    half = (INPUTS + 3) / 2  # a model has width^2 + (INPUTS + 3) width + 1 weights
    models = {
        "one tower": one,
        "one wide model": build(round(math.sqrt(half**2 + count * one.count_params() - 1) - half)),
        f"{count} towers, their mean": kl.distribute.parallelize(one, "towers", devices, mix="mean"),
        f"{count} towers, gated": kl.distribute.parallelize(one, "towers", devices, mix="gated"),
    }
    print(f"{'':24}{'weights':>9}{'s/epoch':>9}{'RMSE':>9}{'-log lik.':>11}")
    for name, model in models.items():
        steps = args.epochs * math.ceil(args.rows / args.batch)
        rate = keras.optimizers.schedules.CosineDecay(args.learning_rate, steps)
        model.compile(keras.optimizers.Adam(rate), "mse")
        clock = _common.Clock()
        model.fit(*train, batch_size=args.batch, epochs=args.epochs, callbacks=[clock], verbose=0)
        error = rmse(model, *validation)
        if name.endswith("gated"):  # its loss is the -log of the likelihood of the mixture
            likelihood = model.evaluate(*validation, batch_size=1000, verbose=0)
        else:
            likelihood = nll(error, rmse(model, *train))
        seconds = clock.seconds / args.epochs
        print(f"{name:24}{model.count_params():>9,}{seconds:>9.2f}{error:>9.4f}{likelihood:>11.4f}")
    error, likelihood = np.sqrt(np.mean(deviation**2)), np.mean([nll(d, d) for d in deviation])
    print(f"{'the best possible':24}{'':>18}{error:>9.4f}{likelihood:>11.4f}")


if __name__ == "__main__":
    main()
