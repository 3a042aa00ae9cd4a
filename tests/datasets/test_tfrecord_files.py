"""`TabularFiles` on TFRecord files: types, malformed examples, orders, shards and resumed passes."""

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from tests.datasets._batches import ids_of as ids_of_batches

pytest.importorskip("pyarrow", reason="pip install keras-largeout[tables]")

NUMBERED = {"ids": ["id"], "lists": ["tags"], "categories": ["name"], "target": "clicked"}


def feature(values):
    if not values:
        return tf.train.Feature()
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write(path, rows):
    """Write dictionaries of lists of values, as they are, into a file; return its path."""
    with tf.io.TFRecordWriter(str(path), "GZIP" if path.name.endswith(".gz") else "") as writer:
        for row in rows:
            features = tf.train.Features(feature={name: feature(values) for name, values in row.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return str(path)


def numbered(first, stop):
    return [
        {"id": [i], "tags": [i] * (i % 3), "name": [b"n%d" % i], "clicked": [float(i % 2)]}
        for i in range(first, stop)
    ]


def ids_of(dataset):
    return ids_of_batches(dataset, named=True)


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecords.gz", "a.tfrecord-00000-of-00002"])
def test_types_and_missing_values(tmp_path, name):
    rows = [
        {"id": [2**60], "price": [1.5], "name": [b"\xff"], "n": [3], "tags": [1, 2], "words": [b"a", b"b"]},
        {"id": [-7], "price": [], "tags": []},
        {"name": [b"c"], "scores": [0.5, 2.0]},
    ]
    path = write(tmp_path / name, rows)
    files = kl.datasets.TabularFiles(
        path, ["name", "n"], ["price"], ids=["id"], lists=["tags", "words", "scores"]
    )
    (x,) = files.dataset(4)
    assert x["id"].dtype == tf.int64 and x["id"].numpy().tolist() == [2**60, -7, -1]
    assert x["name"].numpy().tolist() == [b"\xff", b"", b"c"] and x["n"].numpy().tolist() == [b"3", b"", b""]
    np.testing.assert_array_equal(x["price"], np.float32([1.5, np.nan, np.nan]))
    assert x["tags"].dtype == tf.int64 and x["tags"].to_list() == [[1, 2], [], []]
    assert x["words"].to_list() == [[b"a", b"b"], [], []]
    assert x["scores"].dtype == tf.float32 and x["scores"].to_list() == [[], [], [0.5, 2.0]]
    assert files.rows_read == 3 and files.bytes_read == files.bytes
    assert len(list(files.dataset(2))) == 2


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_orders_shards_and_resumed_passes(tmp_path, batch_size, small_blocks):
    for i in range(3):
        write(tmp_path / f"{i}.tfrecord", numbered(13 * i, 13 * i + 13))
    files = kl.datasets.TabularFiles(tmp_path, **NUMBERED)
    assert ids_of(files.dataset(batch_size)) == list(range(39))
    assert ids_of(files.dataset(batch_size, shard=(1, 2))) == list(range(13, 26))
    by_rows = [ids_of(files.dataset(batch_size, shard=(i, 2), shard_by="rows")) for i in range(2)]
    assert sorted(by_rows[0] + by_rows[1]) == list(range(39)) and min(map(len, by_rows)) >= 18
    assert ids_of(files.dataset(batch_size, keep=lambda row: row % 10 == 3)) == [3, 13, 23, 33]
    order = {"shuffle": 20, "shuffle_files": True, "seed": 1, "epoch": 2}
    whole = ids_of(files.dataset(batch_size, **order))
    assert whole != sorted(whole) == list(range(39))
    assert ids_of(files.dataset(batch_size, **order, skip=1)) == whole[batch_size:]


WRONG = {
    "no such column": (
        {"ids": ["none"]},
        r"a.tfrecord must have the columns \['none'\]. Received: \['clicked'",
    ),
    "type": ({"ids": ["name"]}, ".ids. must name columns of integers. Received: 'name' of type binary"),
    "time": (
        {"times": ["id"]},
        ".times. must name columns of dates or timestamps. Received: 'id' of type int64",
    ),
}


@pytest.mark.parametrize(("uses", "message"), WRONG.values(), ids=WRONG)
def test_columns_are_checked_at_once(tmp_path, uses, message):
    with pytest.raises(ValueError, match=message):
        kl.datasets.TabularFiles(write(tmp_path / "a.tfrecord", numbered(0, 3)), **uses)


MALFORMED = {
    "several values": ({"id": [1, 2]}, "example 2: 'id' must have one value. Received: 2"),
    "no number": ({"text": [b"x"]}, "example 2: 'text' must be a number. Received: b'x'"),
    "no target": ({"y": []}, "example 2: the target 'y' is missing"),
}


@pytest.mark.parametrize(("changed", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_examples(tmp_path, changed, message):
    rows = [{"id": [i], "text": [b"%d.5" % i], "y": [1]} for i in range(3)]
    rows[1] |= changed
    path = write(tmp_path / "a.tfrecord", rows)
    uses = {"ids": ["id"], "numbers": ["text"], "target": "y"}
    with pytest.raises(ValueError) as error:
        list(kl.datasets.TabularFiles(path, **uses).blocks())
    assert f"{path}, {message}" in str(error.value)
    files = kl.datasets.TabularFiles(path, **uses, on_malformed="skip")
    with pytest.warns(UserWarning, match="1 malformed rows were skipped"):
        ((x, _),) = files.dataset(4)
    assert x["id"].numpy().tolist() == [0, 2] and x["text"].numpy().tolist() == [0.5, 2.5]


def test_other_files_and_damaged_ones(tmp_path):
    write(tmp_path / "1.tfrecord", numbered(0, 3))
    path = write(tmp_path / "2.tfrecord", [row | {"tags": [b"a"]} for row in numbered(0, 3)])
    with pytest.raises(
        ValueError, match=r"2.tfrecord: 'tags' must have lists of the same kind as in the first"
    ):
        list(kl.datasets.TabularFiles(tmp_path, **NUMBERED).blocks())
    write(tmp_path / "2.tfrecord", [*numbered(0, 3), {"id": [b"x"]}])
    with pytest.raises(ValueError, match=r"2.tfrecord cannot be read as TFRecord: .*id"):
        list(kl.datasets.TabularFiles(tmp_path, **NUMBERED).blocks())
    whole = (tmp_path / "1.tfrecord").read_bytes()
    for damaged in (whole[:-5], whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]):
        (tmp_path / "2.tfrecord").write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot be read as TFRecord") as error:
            list(kl.datasets.TabularFiles(tmp_path, **NUMBERED).blocks())
        assert path in str(error.value)


def test_an_empty_file(tmp_path):
    write(tmp_path / "1.tfrecord", numbered(0, 3))
    write(tmp_path / "2.tfrecord", [])
    with pytest.raises(ValueError, match=r"2.tfrecord must have the columns .* Received: \[\]"):
        list(kl.datasets.TabularFiles(tmp_path, **NUMBERED).blocks())
