"""How many rows of a file a reader hands on in a second, on one core.

A million rows of 1 target and 13 numbers (float32), 26 ids (int64), and a list of 0 to 7 ids, read in
batches of 4,096. In each round every reader makes two passes over the file, in turn, in one process that is
bound to one core. The second pass counts: the first has the memory that the reader before it gave back, and
the kernel clears what it hands out. Rows are counted per second of processor time, of all
threads: other processes on the machine change that less than the time on the clock, which is beside it.

`pyarrow` alone iterates over the RecordBatches of the file and converts their columns to NumPy. "Ours, in a
function" reads where `fit` does, inside of a `tf.function`; "ours" is a loop in Python.

    python -m benchmarks.readers [--quick]
"""

import argparse
import gc
import os
import sys
import tempfile
import time

import numpy as np

from benchmarks import _table
from benchmarks import machine as the_machine

ROWS, QUICK_ROWS, BATCH, LARGE_BATCH = 1_000_000, 20_000, 4096, 32_768
TEXT_PART = 10  # CSV and TFRecord files have a tenth of the rows
TARGET, NUMBERS, IDS, TAGS = "click", [f"n{i}" for i in range(13)], [f"id{i}" for i in range(26)], "tags"
OURS, IN_FUNCTION, OURS_ARROW, OURS_CSV = "ours", "ours, in a function", "ours, Arrow", "ours, CSV"
OURS_TFRECORD, TFRECORD = "ours, TFRecord", "parse_example, TFRecord"
PYARROW, PYARROW_LARGE, CSV = "pyarrow", f"pyarrow, batches of {LARGE_BATCH:,}", "make_csv_dataset, CSV"
#: (reader, peer, the most that the time of the reader may be of the peer's)
REACHES = [(OURS, PYARROW, 1.5), (IN_FUNCTION, PYARROW, 1.5), (OURS_CSV, CSV, 1.0)]


def write_files(folder, rows):
    """Write the rows as Parquet and as Arrow, and a part of them as TFRecord and, without lists, as CSV."""
    import pyarrow as pa
    import tensorflow as tf
    from pyarrow import csv, feather, parquet

    rng = np.random.default_rng(0)
    columns = {TARGET: rng.integers(0, 2, rows).astype(np.float32)}
    columns |= {name: rng.standard_normal(rows, np.float32) for name in NUMBERS}
    columns |= {name: np.minimum(rng.zipf(1.2, rows), 10**9) for name in IDS}
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 8, rows))]).astype(np.int32)
    values = np.minimum(rng.zipf(1.2, splits[-1]), 10**9)
    dense = pa.table(columns)
    table = dense.append_column(TAGS, pa.ListArray.from_arrays(splits, values))
    parquet.write_table(table, f"{folder}/rows.parquet", row_group_size=131_072)
    feather.write_feather(table, f"{folder}/rows.feather", compression="uncompressed")
    csv.write_csv(dense[: rows // TEXT_PART], f"{folder}/rows.csv")
    with tf.io.TFRecordWriter(f"{folder}/rows.tfrecord") as file:
        for row in table[: rows // TEXT_PART].to_pylist():
            features = tf.train.Features(feature={name: _feature(value) for name, value in row.items()})
            file.write(tf.train.Example(features=features).SerializeToString())


def _feature(value):
    import tensorflow as tf

    if isinstance(value, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.atleast_1d(value)))


def readers(folder):
    """Return `{name: function}`: each makes one pass and returns the rows."""
    import tensorflow as tf
    from pyarrow import parquet

    import keras_largeout as kl

    def by_pyarrow(batch):
        rows = 0
        with parquet.ParquetFile(f"{folder}/rows.parquet") as file:
            for record in file.iter_batches(batch):
                for name, column in zip(record.schema.names, record.columns):
                    if name == TAGS:
                        column.flatten().to_numpy(), column.offsets.to_numpy()
                    else:
                        column.to_numpy(zero_copy_only=False)
                rows += len(record)
        return rows

    def dataset(name, **lists):
        files = kl.datasets.TabularFiles(f"{folder}/{name}", numbers=NUMBERS, target=TARGET, ids=IDS, **lists)
        return files.dataset(BATCH)

    def each(data):
        return sum(len(y) for _, y in data)

    def in_function(data):
        return int(data.reduce(0, lambda rows, batch: rows + tf.size(batch[1])))

    by_tensorflow = tf.data.experimental.make_csv_dataset(
        f"{folder}/rows.csv",
        BATCH,
        column_defaults=[tf.float32] * (1 + len(NUMBERS)) + [tf.int64] * len(IDS),
        label_name=TARGET,
        num_epochs=1,
        shuffle=False,
    )
    of_types = [TARGET, *NUMBERS], IDS
    features = {
        name: tf.io.FixedLenFeature([], dtype)
        for names, dtype in zip(of_types, (tf.float32, tf.int64))
        for name in names
    }
    features[TAGS] = tf.io.RaggedFeature(tf.int64)

    def parsed(records):
        x = tf.io.parse_example(records, features)
        return x, x.pop(TARGET)

    by_hand = tf.data.TFRecordDataset(f"{folder}/rows.tfrecord").batch(BATCH).map(parsed).prefetch(4)
    typed = {name: dataset(name, lists=[TAGS]) for name in ("rows.parquet", "rows.feather", "rows.tfrecord")}
    text = dataset("rows.csv")
    return {
        OURS: lambda: each(typed["rows.parquet"]),
        IN_FUNCTION: lambda: in_function(typed["rows.parquet"]),
        PYARROW: lambda: by_pyarrow(BATCH),
        PYARROW_LARGE: lambda: by_pyarrow(LARGE_BATCH),
        OURS_ARROW: lambda: each(typed["rows.feather"]),
        OURS_TFRECORD: lambda: each(typed["rows.tfrecord"]),
        TFRECORD: lambda: each(by_hand),
        OURS_CSV: lambda: each(text),
        CSV: lambda: each(by_tensorflow),
    }


def measure(rows, rounds):
    """Return `{reader: [(processor seconds, seconds) a row, of each round]}`."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = {}
    with tempfile.TemporaryDirectory(prefix="largeout-bench-") as folder:
        write_files(folder, rows)
        chosen = readers(folder)
        for number in range(rounds):
            print(f"  round {number + 1} of {rounds} ...", file=sys.stderr, flush=True)
            for name, read in chosen.items():
                gc.collect()
                time.sleep(0.5)  # threads of the reader before this one end
                read()
                began = time.process_time(), time.perf_counter()
                count = read()
                part = rows // TEXT_PART if name.endswith(("CSV", "TFRecord")) else rows
                if count != part:
                    raise AssertionError(f"{name} must read {part} rows. Received: {count}")
                took = time.process_time() - began[0], time.perf_counter() - began[1]
                found[name] = found.get(name, []) + [[seconds / count for seconds in took]]
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, one round")
    parser.add_argument("--rounds", type=int, help="counted passes of each reader")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables as Markdown")
    options = parser.parse_args(argv)
    rows = QUICK_ROWS if options.quick else ROWS
    found = measure(rows, options.rounds or (1 if options.quick else 5))
    medians = {name: np.median(times, axis=0) for name, times in found.items()}
    header = ["reader", "", "rows/s of processor time", "rows/s", "processor time / pyarrow's"]
    lines = [
        [name, "", f"{1 / cpu:,.0f}", f"{1 / wall:,.0f}", _table.ratio(cpu / medians[PYARROW][0])]
        for name, (cpu, wall) in medians.items()
    ]
    goals = []
    for name, peer, bound in REACHES:
        ratio = medians[name][0] / medians[peer][0]
        verdict = "reached" if ratio <= bound else "MISSED"
        goals.append([f"{name} vs {peer}", f"at most {bound:g}x", _table.ratio(ratio), verdict])
    tables = [(header, lines)]
    if not options.quick:
        tables.append((["goal", "wanted", "measured", "verdict"], goals))
    print("\n\n".join(_table.aligned(*table) for table in tables))
    if options.markdown:
        about = f"One core of: {the_machine.cpu_name()}."
        text = "\n\n".join([about, *(_table.markdown(*table) for table in tables)])
        _table.write_markdown(options.markdown, "readers", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
