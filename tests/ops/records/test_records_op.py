"""The update and the lookup of records, rows and their slots side by side."""

import threading

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.files.record_marks import PLAIN_MARK, record_marks
from keras_largeout.ops import records as rec
from keras_largeout.ops import row_update as ru
from tests.ops.records._records import file_of, in_file, mapped

pytestmark = pytest.mark.usefixtures("on_cpu")

HYPER = {
    "sgd": ru.sgd_hyper(0.1, 0.01),
    "momentum": ru.momentum_hyper(0.1, 0.9),
    "nesterov": ru.momentum_hyper(0.1, 0.9, 0.01),
    "adagrad": ru.adagrad_hyper(0.1, 1e-7),
    "row_wise_adagrad": ru.adagrad_hyper(0.1, 1e-7, 0.01),
    "lazy_adam": ru.lazy_adam_hyper(ru.adam_alpha(0.1, 0.9, 0.999, 3), 0.9, 0.999, 1e-7),
    "ftrl": ru.ftrl_hyper(0.1, -0.5, 0.01, 0.1, 0.01, 0.1),
}
SLOTS = {"sgd": 0, "lazy_adam": 2, "ftrl": 2}
DTYPES = ["float32", "bfloat16"]
WRONG = (tf.errors.InvalidArgumentError, ValueError)


def width(rule, dim):
    return SLOTS.get(rule, 1) * (1 if rule == "row_wise_adagrad" else dim)


def make(rng, rule, rows, dim, dtype, more=0):
    """Records, and the same as a table and its slots. What belongs to neither is NaN."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    begin, size = rec.record_words(dtype, dim), 1 if rule == "row_wise_adagrad" else dim
    records = np.full((rows, begin + width(rule, dim) + more), np.nan, np.float32)
    table = rng.normal(size=(rows, dim)).astype(kind)
    row_bytes = dim * table.itemsize
    records.view(np.uint8)[:, 4 : 4 + row_bytes] = table.view(np.uint8).reshape(rows, row_bytes)
    slots = []
    for k in range(SLOTS.get(rule, 1)):
        slots.append(np.abs(rng.normal(size=(rows, size))).astype("float32") + 0.1)
        records[:, begin + k * size : begin + (k + 1) * size] = slots[-1]
    if rule == "row_wise_adagrad":
        slots = [slot[:, 0] for slot in slots]
    records[:, 0] = np.where(rng.integers(0, 2, rows), record_marks(records[:, 1:], np.arange(rows)), 0)
    return records, table, slots


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, dim, n", [(123, 17, 80), (40, 64, 0)])
def test_update_has_the_bits_of_row_update(rng, tmp_path, rule, dtype, rows, dim, n):
    records, table, slots = make(rng, rule, rows, dim, dtype, more=2)
    indices = rng.integers(0, rows, n).astype(rng.choice(["int32", "int64"]))
    values = tf.cast(rng.normal(size=(n, dim)), rng.choice(DTYPES))
    variable = in_file(tmp_path / "records", records)

    @tf.function
    def step():
        rec.record_update(rule, variable, indices, values, HYPER[rule], dtype, dim)

    step()
    got = np.array(file_of(tmp_path / "records", records.shape))
    table, slots = tf.Variable(table), [tf.Variable(slot) for slot in slots]
    ru.row_update(rule, table, slots, indices, values, HYPER[rule])
    rows_got, _ = rec.gather_records_reference(got, np.arange(rows), dtype, dim)
    assert rows_got.tobytes() == table.numpy().tobytes()
    begin = rec.record_words(dtype, dim)
    for k, slot in enumerate(slots):
        size = width(rule, dim) // len(slots)
        np.testing.assert_array_equal(
            got[:, begin + k * size : begin + (k + 1) * size], np.reshape(slot, (rows, size))
        )
    # Marks that are set are those of the new records. Every other bit is as it was: the unused half of a
    # word, what follows.
    written = records[:, 0].view(np.uint32) != 0
    marks = np.where(written, record_marks(got[:, 1:], np.arange(rows)), np.float32(0))
    assert got[:, 0].tobytes() == marks.tobytes()
    want = np.array(records)
    want[:, 0] = got[:, 0]
    want.view(np.uint8)[:, 4 : 4 + rows_got[0].nbytes] = rows_got.view(np.uint8).reshape(rows, -1)
    want[:, begin : begin + width(rule, dim)] = got[:, begin : begin + width(rule, dim)]
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_update_equals_reference(rng, rule, dtype):
    records, _, _ = make(rng, rule, 50, 7, dtype, more=1)
    variable = tf.Variable(records)
    indices, values = rng.integers(0, 50, 30), rng.normal(size=(30, 7)).astype("float32")
    rec.record_update(rule, variable, indices, values, HYPER[rule], dtype, 7)
    want = rec.record_update_reference(rule, records, indices, values, HYPER[rule], dtype, 7)
    all_rows, tolerance = np.arange(50), 1e-2 if dtype == "bfloat16" else 1e-5
    got_rows, got_marks = rec.gather_records_reference(variable.numpy(), all_rows, dtype, 7)
    want_rows, want_marks = rec.gather_records_reference(want, all_rows, dtype, 7)
    np.testing.assert_allclose(
        got_rows.astype("float32"), want_rows.astype("float32"), rtol=tolerance, atol=tolerance
    )
    np.testing.assert_array_equal(got_marks, want_marks)
    begin = rec.record_words(dtype, 7)
    np.testing.assert_allclose(variable.numpy()[:, begin:], want[:, begin:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "index_dtype"), [(0, "int32"), (3, "int64")])
def test_gather_copies_bytes(rng, tmp_path, dtype, dim, index_dtype):
    words = rec.record_words(dtype, dim) + 3
    records = rng.integers(0, 2**32, (90, words), np.uint32).view(np.float32)  # NaN of every kind among them
    marks = record_marks(records[:, 1:], np.arange(90))
    records[:, 0] = np.choose(rng.integers(0, 3, 90), [np.zeros_like(marks), marks, PLAIN_MARK])
    variable = in_file(tmp_path / "records", np.zeros((90, words), np.float32))
    file_of(tmp_path / "records", (90, words)).view(np.uint32)[:] = records.view(np.uint32)
    for n in (0, 1, 200):
        indices = rng.integers(0, 90, n).astype(index_dtype)
        rows, written = rec.gather_records(variable, indices, dtype, dim)
        want, want_written = rec.gather_records_reference(records, indices, dtype, dim)
        assert rows.shape == (n, dim) and rows.dtype == dtype
        assert rows.numpy().tobytes() == want.tobytes()
        np.testing.assert_array_equal(written, want_written)


def by_hand(contents, row):
    """The mark of one record, from the formula of records.h, in Python's integers."""
    w = [*contents.view(np.uint32).tolist(), 0]
    key = [(j + 1) * 0x9E3779B1 for j in range(len(w))]
    low, high = ([(w[j] + key[j]) % 2**32 for j in range(begin, len(w), 2)] for begin in (0, 1))
    total = (row * 0xC2B2AE3D27D4EB4F + sum(a * b for a, b in zip(low, high))) % 2**64
    mark = ((total ^ total >> 29) * 0x9E3779B185EBCA87 % 2**64) >> 32
    return mark ^ 2**31 if mark in (0, 0x3F800000) else mark


@pytest.mark.parametrize("words", [2, 3, 8, 17, 194])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_written_records_have_digests(rng, tmp_path, words, index_dtype):
    variable = in_file(tmp_path / "records", np.zeros((1000, words), np.float32))
    contents = rng.normal(size=(5, words - 1)).astype("float32")
    rows = np.array([3, 999, 0, 17, 500], index_dtype)
    tf.function(rec.write_records)(variable, rows, contents)
    rec.write_records(variable, rows[:0], contents[:0])
    got = file_of(tmp_path / "records", (1000, words))
    np.testing.assert_array_equal(got[rows, 1:], contents)
    want = [by_hand(c, row) for c, row in zip(contents, rows.tolist())]
    assert got[rows, 0].view(np.uint32).tolist() == want
    assert record_marks(contents, rows).view(np.uint32).tolist() == want
    assert not np.delete(got, rows, axis=0).any()
    rec.write_records(variable, [7, 7], contents[:2])  # the last one stays
    np.testing.assert_array_equal(got[7, 1:], contents[1])


def test_no_written_row_has_the_mark_of_another_kind():
    """Of all words: two whose digests would be 0 and 1.0."""
    kinds = []
    for bits in (0, 0x3F800000):
        # sum ^ (sum >> 29), times an odd number: both can be inverted.
        total = (bits << 32) * pow(0x9E3779B185EBCA87, -1, 2**64) % 2**64
        value = total
        for _ in range(3):
            value = total ^ value >> 29
        # The row alone makes the sum, if one factor of each product is 0.
        row = value * pow(0xC2B2AE3D27D4EB4F, -1, 2**64) % 2**64
        content = np.array([[(-0x9E3779B1) % 2**32, 5]], np.uint32)
        kinds.append(record_marks(content, np.array([row], np.uint64)).view(np.uint32)[0])
        assert by_hand(content[0], row) == kinds[-1]
    assert kinds == [0x80000000, 0xBF800000]


@pytest.mark.parametrize("in_graph", [False, True])
def test_damage_is_named(rng, tmp_path, in_graph):
    variable = in_file(path := tmp_path / "records", np.zeros((64, 9), np.float32))
    splits = tf.zeros([0], tf.int64)

    def rows(ids):
        return rec.gather_records(variable, ids, "float32", 4)[0]

    def bags(ids):
        return rec.record_lookup(variable, [ids], splits, "sum", "error", "float32", 4)[0]

    if in_graph:
        rows, bags = tf.function(rows), tf.function(bags)
    rec.write_records(variable, tf.range(64), rng.normal(size=(64, 8)).astype("float32"))
    right = np.array(file_of(path, (64, 9)))
    bags(tf.constant([3, 5]))  # these two are not compared again
    file_of(path, (64, 9))[[3, 11, 40], 6] += 1  # in their slots
    before = rows(tf.constant([3, 5]))
    np.testing.assert_array_equal(before, right[[3, 5], 1:5])
    for look in (rows, bags):
        for ids, row in (([1, 40, 11], 40), ([11], 11)):
            with pytest.raises(
                tf.errors.DataLossError, match=rf"records is damaged: row {row} must have the"
            ):
                look(tf.constant(ids))
        look(tf.constant([1, 2, 12]))
    rec.write_records(variable, [11], right[11:12, 1:])
    np.testing.assert_array_equal(rows(tf.constant([11])), right[11:12, 1:5])
    ordinary = tf.Variable(file_of(path, (64, 9)))  # in memory everything is compared
    with pytest.raises(tf.errors.DataLossError, match=r"`variable` is damaged: row 3 must"):
        rec.gather_records(ordinary, [5, 3], "float32", 4)


def test_record_words():
    assert [rec.record_words("float32", d) for d in (0, 1, 64)] == [1, 2, 65]
    assert [rec.record_words(tf.bfloat16, d) for d in (0, 1, 2, 3)] == [1, 2, 2, 3]


def test_shape_functions(tmp_path):
    variable = mapped(tmp_path / "records", [10, 7])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)])
    def unknown(indices, values):
        rows, written = rec.gather_records(variable, indices, "bfloat16", 3)
        assert rows.shape.as_list() == [None, 3] and written.shape.as_list() == [None]
        rec.prefetch_rows(variable, indices)
        rec.record_update("adagrad", variable, indices, values, HYPER["adagrad"], "float32", 3)
        return rows

    assert unknown([1, 1, 9], tf.ones([3, 3])).shape == (3, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`indices` must have the shape \[n\]"):
        unknown([[1]], tf.ones([1, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`values` must have the shape \[1,3\]"):
        unknown([1], tf.ones([2, 3]))

    @tf.function(input_signature=[tf.TensorSpec([5], tf.int32)])
    def known(indices):
        rows, written = rec.gather_records(variable, indices, "float32", 0)
        assert rows.shape == (5, 0) and written.shape == (5,)
        return written

    assert not known([0, 1, 2, 3, 4]).numpy().any()


UPDATE = {"rule": "adagrad", "indices": [1, 2], "values": (2, 3), "dtype": "float32", "dim": 3, "hyper": 3}
WRONG_UPDATES = {  # change, the op's words, the words of its shape function
    "words": (
        {"dim": 4, "values": (2, 4)},
        r"`variable` must have at least 9 words in a record, for a mark and a row of 4 float with the slots "
        r"of rule `adagrad`. Received: shape=\[10,7\]",
        None,
    ),
    "slots": ({"rule": "ftrl", "hyper": 6}, "at least 10 words .* the slots of rule `ftrl`", None),
    "half": ({"dtype": "bfloat16", "dim": 5, "values": (2, 5)}, "at least 9 words .* 5 bfloat16", None),
    "index": (
        {"indices": [1, 10]},
        r"`indices` must be in \[0, 10\), the rows of `variable`. Received: indices\[1\] = 10; nothing was",
        None,
    ),
    "negative": ({"indices": [-1, 2]}, r"indices\[0\] = -1; nothing was updated", None),
    "rank": ({"indices": [[1, 2]]}, r"`indices` must have the shape \[n\]", "must be rank 1"),
    "values": (
        {"values": (2, 4)},
        r"`values` must have the shape \[2,3\].*Received: \[2,4\]",
        "must be 3 but",
    ),
    "count": ({"values": (3, 3)}, r"`values` must have the shape \[2,3\]", "must be equal, but are 2 and 3"),
    "hyper": ({"hyper": 2}, r"`hyper` of rule `adagrad` must have the shape \[3\]", "must be 3 but is 2"),
    "dim": ({"dim": 2**31}, "`dim` must be less than 2^31", "`dim` must be less than|must be 2147483648"),
}


@pytest.mark.parametrize("case", WRONG_UPDATES)
def test_wrong_updates_change_nothing(case):
    change, message, inferred = WRONG_UPDATES[case]
    a = {**UPDATE, **change}
    variable = tf.Variable(tf.ones([10, 7]))

    def step():
        values, hyper = tf.ones(a["values"]), tf.ones(a["hyper"])
        rec.record_update(a["rule"], variable, a["indices"], values, hyper, a["dtype"], a["dim"])

    message = message.replace("2^31", r"2\^31")
    with pytest.raises(WRONG, match=message):
        step()
    with pytest.raises(WRONG, match=inferred or message):
        tf.function(step)()
    np.testing.assert_array_equal(variable, np.ones([10, 7]))


def test_wrong_writes_change_nothing(tmp_path):
    variable = tf.Variable(tf.ones([10, 3]))
    for rows, contents, message in [
        ([1, 10], (2, 2), r"`indices` must be in \[0, 10\).*indices\[1\] = 10; nothing was written"),
        ([1], (1, 3), r"`contents` must have the shape \[1,2\], the words behind .*Received: \[1,3\]"),
        ([1, 2], (1, 2), r"`contents` must have the shape \[2,2\]|must be equal, but are 2 and 1"),
        ([[1]], (1, 2), r"`indices` must have the shape \[n\]|must be rank 1"),
    ]:
        for write in (rec.write_records, tf.function(rec.write_records)):
            with pytest.raises(WRONG, match=message):
                write(variable, rows, tf.zeros(contents))
    np.testing.assert_array_equal(variable, np.ones([10, 3]))
    np.ones([4, 3], np.float32).tofile(tmp_path / "records")
    with pytest.raises(tf.errors.FailedPreconditionError, match="opened to be read only"):
        rec.write_records(mapped(tmp_path / "records", [4, 3], read_only=True), [1], tf.zeros([1, 2]))


def test_wrong_lookups():
    variable = tf.Variable(tf.ones([10, 3]))
    with pytest.raises(WRONG, match=r"at least 4 words in a record, for a mark and a row of 3 float. Rec"):
        rec.gather_records(variable, [1], "float32", 3)
    with pytest.raises(WRONG, match=r"`indices` must be in \[0, 10\).*Received: indices\[2\] = -3"):
        rec.gather_records(variable, [1, 2, -3], "float32", 2)
    for bad in (tf.Variable(tf.ones([10])), tf.Variable(tf.ones([10, 3, 1]))):
        with pytest.raises(WRONG, match=r"`variable` must have the shape \[rows, words\]"):
            rec.gather_records(bad, [1], "float32", 1)
        with pytest.raises(WRONG, match=r"`variable` must have the shape \[rows, words\]"):
            tf.function(rec.gather_records)(bad, [1], "float32", 1)
    with pytest.raises(WRONG, match=r"`variable` must be of type float\. Received: bfloat16"):
        rec.gather_records(tf.Variable(tf.ones([10, 3], tf.bfloat16)), [1], "float32", 1)
    with pytest.raises(WRONG, match=r"`indices` must be in \[0, 10\), .*indices\[1\] = 10"):
        rec.prefetch_rows(variable, [1, 10])
    with pytest.raises(WRONG, match=r"at least one axis|rank 1"):
        rec.prefetch_rows(tf.Variable(1.0), [0])


def test_ordinary_memory_keeps_what_was_read():
    variable = tf.Variable(tf.zeros([4, 3]))
    before = variable.read_value()
    rec.record_update("sgd", variable, [1], tf.ones([1, 2]), ru.sgd_hyper(1.0), "float32", 2)
    assert not before.numpy().any()
    np.testing.assert_array_equal(variable[1], [0, -1, -1])


def test_lookups_run_beside_updates(rng, tmp_path):
    """A row is seen before or after an update, never half of it."""
    variable = mapped(tmp_path / "records", [64, 65])
    rec.write_records(variable, tf.range(64), tf.zeros([64, 64]))
    stop, torn = threading.Event(), []

    def look():
        while not stop.is_set():
            rows, _ = rec.gather_records(variable, tf.range(64), "float32", 64)
            torn.append(np.ptp(rows.numpy(), axis=1).max())

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        rec.record_update("sgd", variable, tf.range(64), tf.ones([64, 64]), HYPER["sgd"], "float32", 64)
    stop.set()
    for thread in threads:
        thread.join()
    assert torn and max(torn) == 0
