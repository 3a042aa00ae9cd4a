"""The update and the lookup of records, rows and their slots side by side."""

import threading

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

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
    records[:, 0] = rng.integers(0, 2, rows)
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
    # Every other bit is as it was: marks, the unused half of a word, what follows.
    want = np.array(records)
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
    records.view(np.uint32)[:, 0] = rng.choice([0, 1, 0x3F800000, 0x80000000], 90)
    variable = in_file(tmp_path / "records", np.zeros((90, words), np.float32))
    file_of(tmp_path / "records", (90, words)).view(np.uint32)[:] = records.view(np.uint32)
    for n in (0, 1, 200):
        indices = rng.integers(0, 90, n).astype(index_dtype)
        rows, written = rec.gather_records(variable, indices, dtype, dim)
        want, want_written = rec.gather_records_reference(records, indices, dtype, dim)
        assert rows.shape == (n, dim) and rows.dtype == dtype
        assert rows.numpy().tobytes() == want.tobytes()
        np.testing.assert_array_equal(written, want_written)


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
