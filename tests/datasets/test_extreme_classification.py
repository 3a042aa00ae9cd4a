"""The reader of the Extreme Classification Repository's text format, and its batches."""

import gzip
import os
import pathlib

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from sklearn.datasets import load_svmlight_file
from sklearn.feature_extraction.text import HashingVectorizer

from keras_largeout.datasets import ExtremeClassification, LabeledRows, _xmc_text

TEXT = "4 6 9\n3,0,8 0:1 5:-2.5e-1\n 2:0.5\n7 \n1,1 1:2 1:3\n"
DATA = (
    pathlib.Path(os.environ.get("LARGEOUT_DATA", pathlib.Path(__file__).parents[3] / "shared/data")) / "xmc"
)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.txt"
    path.write_text(TEXT)
    return ExtremeClassification(path)


def _lists(rows):
    inputs, labels = rows.batch()
    return labels.to_list(), inputs["ids"].to_list(), inputs["values"].to_list()


def _write(path, rows):
    """Any `LabeledRows` as a file."""
    labels, ids, values = _lists(rows)
    lines = [f"{len(rows)} {rows.num_features} {rows.num_labels}"]
    for row in zip(labels, ids, values):
        features = " ".join(f"{f}:{v:.6g}" for f, v in zip(row[1], row[2]))
        lines.append(",".join(map(str, row[0])) + " " + features)
    path.write_text("\n".join(lines) + "\n")
    return path


def _random_rows(rng, rows=57, features=30, labels=40):
    x = scipy.sparse.random(rows, features, 0.2, "csr", random_state=1, dtype=np.float32)
    y = scipy.sparse.random(rows, labels, 0.05, "csr", random_state=2)
    return LabeledRows.from_scipy(x, y)


def test_what_a_file_says(tiny):
    assert (tiny.num_rows, tiny.num_features, tiny.num_labels) == (4, 6, 9)
    rows = tiny.load()
    labels, ids, values = _lists(rows)
    assert labels == [[3, 0, 8], [], [7], [1, 1]]
    assert ids == [[0, 5], [2], [], [1, 1]]
    assert values == [[1.0, -0.25], [0.5], [], [2.0, 3.0]]
    assert rows.labels.dtype == rows.features.dtype == np.int32 and rows.values.dtype == np.float32
    assert rows.label_counts().tolist() == [1, 1, 0, 1, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("ending", ["\n", "", "\r\n"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_line_ends_and_compression_do_not_matter(tmp_path, tiny, monkeypatch, ending, block, packed):
    text = TEXT.rstrip("\n").replace("\n", "\r\n" if ending == "\r\n" else "\n") + ending
    path = tmp_path / ("x.txt.gz" if packed else "x.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    want = _lists(tiny.load())
    monkeypatch.setattr(_xmc_text, "_BLOCK", block)
    assert _lists(ExtremeClassification(path).load()) == want


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("1,2 3:0.5 x:1", "must be `label,label"),
        ("1,2 3:0.5 4:#1", "must be `label,label"),
        ("1,,2 3:1", "a comma or colon must stand between two numbers"),
        ("1, 2 3:1", "a comma or colon must stand between two numbers"),
        (",1 3:1", "a comma or colon must stand between two numbers"),
        ("1 3:", "a comma or colon must stand between two numbers"),
        ("1 :3", "a comma or colon must stand between two numbers"),
        ("1 3: 1", "a comma or colon must stand between two numbers"),
        ("1 3:1:2", "a value must be followed by a blank"),
        ("1 3:1,4:2", "a value must be followed by a blank"),
        ("1,3:1", "labels must be separated from features by a blank"),
        ("1 2 3:1", "labels must stand at the beginning"),
        ("1 3:1 2", "labels must stand at the beginning"),
        (" 1 3:1", "labels must stand at the beginning"),
        ("-1 3:1", "must be integers from 0 on"),
        ("1.0 3:1", "must be integers from 0 on"),
        ("1 3.5:1", "must be integers from 0 on"),
        ("1 3:1e", "a value must be a number"),
        ("1 3:1-2", "a value must be a number"),
        ("1 3:--1", "a value must be a number"),
        ("1 3:1e999", "a value must be finite"),
        ("9 3:1", "label ids must be below the header's 9 labels"),
        ("1 6:1", "feature ids must be below the header's 6 features"),
        ("99999999999999999999 3:1", "label ids must be below"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, monkeypatch, line, rule):
    path = tmp_path / "bad.txt"
    path.write_text(f"5 6 9\n1 2:1\n\n0,2 0:1 5:2\n{line}\n1 2:1\n")
    for block in (10, 1 << 20):
        monkeypatch.setattr(_xmc_text, "_BLOCK", block)
        with pytest.raises(ValueError, match=rf"bad.txt, line 5: .*{rule}.*Received: '"):
            ExtremeClassification(path).load()


@pytest.mark.parametrize("header", ["", "1 2", "1 2 x", "1 2 -3", "1 2 3 4", "0:1 2 3"])
def test_a_file_without_header(tmp_path, header):
    path = tmp_path / "bad.txt"
    path.write_text(header + "\n1 0:1\n")
    with pytest.raises(ValueError, match="line 1: must be the header `rows features labels`"):
        ExtremeClassification(path)


@pytest.mark.parametrize("rows", [3, 5])
def test_the_header_promises_another_number_of_rows(tmp_path, rows):
    path = tmp_path / "bad.txt"
    path.write_text(TEXT.replace("4 6 9", f"{rows} 6 9"))
    with pytest.raises(ValueError, match=rf"as many rows as its header says, {rows}. Received: 4 rows"):
        ExtremeClassification(path).load()


def test_no_rows(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("0 6 9\n")
    data = ExtremeClassification(path)
    assert len(data.load()) == 0 and list(data.dataset(2)) == []
    assert data.load().label_counts().tolist() == [0] * 9
    assert list(data.load().dataset(2, shuffle=True)) == []


def _rows_of(dataset):
    rows = []
    for inputs, labels in dataset:
        for row in zip(labels, inputs["ids"], inputs["values"]):
            rows.append([np.asarray(part).tolist() for part in row])
    return rows


@pytest.mark.parametrize("shuffle", [0, 5, 16, 1000])
def test_streamed_batches_have_every_row_once(tmp_path, rng, monkeypatch, shuffle):
    monkeypatch.setattr(_xmc_text, "_BLOCK", 300)
    rows = _random_rows(rng)
    data = ExtremeClassification(_write(tmp_path / "r.txt", rows))
    want = [list(row) for row in zip(*_lists(data.load()))]
    dataset = data.dataset(8, shuffle=shuffle, seed=3)
    first, second = _rows_of(dataset), _rows_of(dataset)
    assert dataset.cardinality() == 8
    assert [int(labels.nrows()) for _, labels in dataset] == [8] * 7 + [1]
    assert sorted(map(str, first)) == sorted(map(str, want))
    assert (first == want) == (first == second) == (shuffle == 0)
    assert _rows_of(data.dataset(8, shuffle=shuffle, seed=3)) == first


def test_batches_from_memory(rng):
    rows = _random_rows(rng)
    want = [list(row) for row in zip(*_lists(rows))]
    assert _rows_of(rows.dataset(8)) == want
    dataset = rows.dataset(8, shuffle=True, seed=1)
    first, second = _rows_of(dataset), _rows_of(dataset)
    assert first != want and first != second and sorted(map(str, first)) == sorted(map(str, want))
    assert _rows_of(rows.dataset(8, shuffle=True, seed=1)) == first
    assert dataset.cardinality() == 8


@pytest.mark.parametrize("stream", [False, True])
def test_padded_layout(tiny, stream):
    dataset = tiny.dataset(3, layout="padded") if stream else tiny.load().dataset(3, layout="padded")
    (inputs, labels), (_, last) = dataset
    np.testing.assert_array_equal(inputs["ids"], [[0, 5], [2, 0], [0, 0]])
    np.testing.assert_array_equal(inputs["values"], [[1, -0.25], [0.5, 0], [0, 0]])
    np.testing.assert_array_equal(labels, [[3, 0, 8], [-1, -1, -1], [7, -1, -1]])
    np.testing.assert_array_equal(last, [[1, 1]])
    assert labels.dtype == tf.int32
    with pytest.raises(ValueError, match="`layout` must be one of"):
        tiny.dataset(3, layout="sparse")


def test_from_scipy():
    x = scipy.sparse.csc_array(np.array([[0, 1.5, 0], [2, 0, 1]]))
    y = scipy.sparse.csr_array((np.array([1, 0, 1]), np.array([2, 0, 1]), np.array([0, 2, 3])), shape=(2, 4))
    assert _lists(LabeledRows.from_scipy(x, y)) == ([[2], [1]], [[1], [0, 2]], [[1.5], [2.0, 1.0]])
    with pytest.raises(ValueError, match="`features` and `labels` must have the same rows"):
        LabeledRows.from_scipy(x, y[:1])


def test_hashed_bags_of_words():
    """What needs no vocabulary: scikit-learn's HashingVectorizer, with feature ids up to 2^20."""
    bags = HashingVectorizer(n_features=1 << 20, alternate_sign=False, norm=None)
    rows = LabeledRows.from_scipy(
        bags.transform(["to be or not to be", "", "be"]), scipy.sparse.csr_array(np.eye(3))
    )
    assert rows.num_features == 1 << 20
    labels, ids, values = _lists(rows)
    assert labels == [[0], [1], [2]] and [sorted(v) for v in values] == [[1, 1, 2, 2], [], [1]]
    assert ids[2][0] in ids[0] and max(map(max, filter(None, ids))) < 1 << 20


@pytest.mark.parametrize("batch_size", [0, -1, 2.5])
def test_a_batch_has_rows(tiny, batch_size):
    for rows in (tiny, tiny.load()):
        with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
            rows.dataset(batch_size)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data sets in {DATA} (LARGEOUT_DATA)")
@pytest.mark.parametrize("side", ["train", "test"])
@pytest.mark.parametrize("name", ["citeulike-t", "delicious", "gowalla", "rcv1sub1", "tate"])
def test_real_files_read_like_scikit_learn(name, side):
    path = DATA / name / f"{side}.txt.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    data = ExtremeClassification(path)
    rows = data.load()
    with gzip.open(path) as file:
        file.readline()
        x, y = load_svmlight_file(
            file, n_features=data.num_features, multilabel=True, zero_based=True, dtype=np.float32
        )
    assert len(rows) == data.num_rows == x.shape[0]
    np.testing.assert_array_equal(rows.feature_splits, x.indptr)
    np.testing.assert_array_equal(rows.features, x.indices)
    np.testing.assert_array_equal(rows.values, x.data)
    labels, _, _ = _lists(rows)
    assert [sorted(row) for row in labels] == [sorted(map(int, row)) for row in y]
