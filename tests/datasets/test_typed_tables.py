"""`TabularFiles` on typed sources: Parquet, Arrow and tables in memory; orders, shards and resumed passes."""

import datetime
import decimal

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from tests.datasets._batches import ids_of

pyarrow = pytest.importorskip("pyarrow", reason="pip install keras-largeout[tables]")

MISSING_TIME = np.iinfo(np.int64).min
TABLE = {
    "user": pyarrow.array([2**60, None, -7]),
    "ad": pyarrow.array([3, 4, 5], pyarrow.uint8()),
    "name": pyarrow.array(["ann", None, "bob"]).dictionary_encode(),
    "price": pyarrow.array([decimal.Decimal("1.5"), None, decimal.Decimal("2.25")]),
    "seen": pyarrow.array([1_000_000_000_500, None, -1], pyarrow.timestamp("ms", "Europe/Berlin")),
    "day": pyarrow.array([datetime.date(1970, 1, 2), datetime.date(1969, 12, 31), None]),
    "tags": pyarrow.array([[1, 2], None, [None]]),
    "words": pyarrow.array([["a"], [], ["b", None]], pyarrow.large_list(pyarrow.string())),
    "scores": pyarrow.array([[0.5, 1], [2, None], None], pyarrow.list_(pyarrow.float64(), 2)),
    "clicked": [1, 0, 1],
}
USES = {
    "ids": ["user", "ad"],
    "categories": ["name"],
    "numbers": ["price"],
    "times": ["seen", "day"],
    "lists": ["tags", "words", "scores"],
    "target": "clicked",
}


class Frame:
    """What data frames have in common: `__arrow_c_stream__`."""

    def __init__(self, table):
        self.__arrow_c_stream__ = table.__arrow_c_stream__


def write_parquet(table, path, rows=7):
    from pyarrow.parquet import write_table

    write_table(table, path, row_group_size=rows)


def write_feather(table, path, rows=7):
    from pyarrow.feather import write_feather

    write_feather(table, str(path), chunksize=rows)


def write_stream(table, path, rows=7):
    with pyarrow.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table, max_chunksize=rows)


WRITERS = {"a.parquet": write_parquet, "a.feather": write_feather, "a.arrows": write_stream}


@pytest.fixture(params=[*WRITERS, "table", "frame"])
def source(request, tmp_path):
    """Return a function that hands a table on as one kind of source."""

    def made(table):
        if request.param in WRITERS:
            WRITERS[request.param](table, tmp_path / request.param)
            return tmp_path / request.param
        return Frame(table) if request.param == "frame" else table

    return made


def numbered(rows, first=0):
    """Return a table with ids in a row, a list of `id % 3` elements in each, and a target."""
    ids = np.arange(first, first + rows)
    return pyarrow.table({"id": ids, "tags": [[int(i)] * (i % 3) for i in ids], "clicked": ids % 2})


NUMBERED = {"ids": ["id"], "lists": ["tags"], "target": "clicked"}


def test_types_and_missing_values(source):
    ((x, y),) = kl.datasets.TabularFiles(source(pyarrow.table(TABLE)), **USES).dataset(3)
    assert x["user"].dtype == tf.int64 and x["user"].numpy().tolist() == [2**60, -1, -7]
    assert x["ad"].dtype == tf.int64 and x["ad"].numpy().tolist() == [3, 4, 5]
    assert x["name"].numpy().tolist() == [b"ann", b"", b"bob"]
    np.testing.assert_array_equal(x["price"], np.float32([1.5, np.nan, 2.25]))
    assert x["seen"].numpy().tolist() == [1_000_000_000, MISSING_TIME, -1]
    assert x["day"].numpy().tolist() == [86_400, -86_400, MISSING_TIME]
    assert x["tags"].dtype == tf.int64 and x["tags"].to_list() == [[1, 2], [], [-1]]
    assert x["words"].to_list() == [[b"a"], [], [b"b", b""]]
    assert x["scores"].dtype == tf.float32 and x["scores"].row_lengths().numpy().tolist() == [2, 2, 0]
    np.testing.assert_array_equal(x["scores"].flat_values, [0.5, 1, 2, np.nan])
    assert y.dtype == tf.float32 and y.numpy().tolist() == [1, 0, 1]


@pytest.mark.parametrize("batch_size", [1, 4, 10, 100])
def test_batches_of_every_source(source, batch_size, small_blocks):
    data = kl.datasets.TabularFiles(source(numbered(37)), **NUMBERED).dataset(batch_size)
    assert ids_of(data) == list(range(37))
    assert int(data.cardinality()) == -(-37 // batch_size) == len(list(data))


def test_views():
    """polars hands strings on as views, and categories as dictionaries of them."""
    views = pyarrow.array(["a", None, "b"], pyarrow.string_view())
    codes = pyarrow.array([1, None, 0], pyarrow.uint32())
    dictionary = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["x", "y"], pyarrow.string_view()))
    lists = pyarrow.ListArray.from_arrays([0, 1, 1, 3], views)
    table = pyarrow.table({"view": views, "code": dictionary, "list": lists})
    (x,) = kl.datasets.TabularFiles(table, ["view", "code"], lists=["list"]).dataset(3)
    assert x["view"].numpy().tolist() == [b"a", b"", b"b"] and x["code"].numpy().tolist() == [b"y", b"", b"x"]
    assert x["list"].to_list() == [[b"a"], [], [b"", b"b"]]


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_data_frames(name):
    frames = pytest.importorskip(name)
    table = numbered(9)
    frame = table.to_pandas() if name == "pandas" else frames.from_arrow(table)
    assert ids_of(kl.datasets.TabularFiles(frame, **NUMBERED).dataset(4)) == list(range(9))


def test_several_sources(tmp_path, small_blocks):
    for i, (name, write) in enumerate(WRITERS.items()):
        write(numbered(13, 13 * i), tmp_path / f"{i}-{name}")
    files = kl.datasets.TabularFiles([tmp_path, numbered(13, 39)], **NUMBERED)
    assert ids_of(files.dataset(5)) == list(range(52))
    assert files.rows_read == 52 and files.bytes_read == files.bytes


def test_ids_and_times_of_csv(tmp_path):
    text = "id,at\n9007199254740993,2001-09-09 01:46:40.9\n,\n-3,2001-09-09T03:46:40+02:00\n4,1969-12-31\n"
    (tmp_path / "rows.csv").write_text(text)
    (x,) = kl.datasets.TabularFiles(tmp_path / "rows.csv", ids=["id"], times=["at"]).dataset(4)
    assert x["id"].numpy().tolist() == [9007199254740993, -1, -3, 4]
    assert x["at"].numpy().tolist() == [10**9, MISSING_TIME, 10**9, -86_400]
    (tmp_path / "rows.csv").write_text("id,at\n1,2001-09-09\n2.5,soon\n")
    for uses, message in (
        ({"ids": ["id"]}, "line 3: 'id' must be an integer. Received: '2.5'"),
        ({"times": ["at"]}, "line 3: 'at' must be a date or a time. Received: 'soon'"),
    ):
        with pytest.raises(ValueError, match=message):
            list(kl.datasets.TabularFiles(tmp_path / "rows.csv", **uses).blocks())


def test_targets_of_other_types(source):
    table = source(numbered(6))
    ((x, y),) = kl.datasets.TabularFiles(table, ids=["id"], target="id", numbers=["clicked"]).dataset(6)
    assert list(x) == ["clicked"] and y.dtype == tf.int64 and y.numpy().tolist() == list(range(6))
    ((_, y),) = kl.datasets.TabularFiles(table, ["id"], lists=["tags"], target="tags").dataset(6)
    assert y.to_list() == [[], [1], [2, 2], [], [4], [5, 5]]


def test_a_missing_list_as_a_target_is_malformed():
    table = pyarrow.table({"id": [1, 2], "tags": pyarrow.array([None, [3]])})
    uses = {"ids": ["id"], "lists": ["tags"], "target": "tags"}
    with pytest.raises(ValueError, match="the table, row 1: the target 'tags' is missing"):
        list(kl.datasets.TabularFiles(table, **uses).blocks())
    files = kl.datasets.TabularFiles(table, **uses, on_malformed="skip")
    with pytest.warns(UserWarning, match="1 malformed rows were skipped"):
        ((x, y),) = files.dataset(2)
    assert x["id"].numpy().tolist() == [2] and y.to_list() == [[3]]


WRONG = {
    "id": (
        {"ids": ["price"]},
        "`ids` must name columns of integers. Received: 'price' of type decimal.*, a column for `numbers`",
    ),
    "number": (
        {"numbers": ["day"]},
        "`target` must name columns of numbers. Received: 'day' of type date32.*, a column for `times`",
    ),
    "time": (
        {"times": ["ad"]},
        "`times` must name columns of dates or timestamps. Received: 'ad' of type uint8, a column for `ids`",
    ),
    "category": ({"categories": ["tags"]}, "strings or integers. Received: 'tags' of type list"),
    "list": (
        {"lists": ["name"]},
        "`lists` must name columns of lists of .* Received: 'name' of type dictionary",
    ),
    "none": ({"ids": ["none"]}, r"must have the columns \['none'\]. Received: \['user', 'ad'"),
}


@pytest.mark.parametrize(("uses", "message"), WRONG.values(), ids=WRONG)
def test_types_are_checked_at_once(source, uses, message):
    with pytest.raises(ValueError, match=message):
        kl.datasets.TabularFiles(source(pyarrow.table(TABLE)), **uses)


def test_other_files_are_checked_in_the_pass(tmp_path):
    write_parquet(numbered(3), tmp_path / "1.parquet")
    for column, message in (
        ({"tags": [["a"]]}, "'tags' must have lists of the same kind as in the first file"),
        ({"tags": ["a"]}, "2.parquet: `lists` must name columns of lists"),
        ({}, r"2.parquet must have the columns \['tags'\]"),
    ):
        write_parquet(pyarrow.table({"id": [1], "clicked": [1]} | column), tmp_path / "2.parquet")
        with pytest.raises(ValueError, match=message):
            list(kl.datasets.TabularFiles(tmp_path, **NUMBERED).blocks())


def test_lists_of_too_large_integers():
    table = pyarrow.table({"tags": pyarrow.array([[2**64 - 1]], pyarrow.list_(pyarrow.uint64()))})
    with pytest.raises(ValueError, match="the table: 'tags' must have int64 values"):
        list(kl.datasets.TabularFiles(table, lists=["tags"]).blocks())


def test_lists_of_csv_files_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("tags\n1\n")
    with pytest.raises(ValueError, match=r"`lists` must not name columns of CSV files. Received: .*rows.csv"):
        kl.datasets.TabularFiles(tmp_path / "rows.csv", lists=["tags"])


@pytest.mark.parametrize("count", [2, 3])
def test_shards_by_rows(source, count, small_blocks):
    files = kl.datasets.TabularFiles(source(numbered(16)), **NUMBERED)
    shards = [ids_of(files.dataset(4, shard=(i, count), shard_by="rows")) for i in range(count)]
    assert [i for shard in shards for i in shard] == list(range(16))
    assert {len(shard) for shard in shards} <= {16 // count, -(-16 // count)}


def test_more_shards_than_rows():
    files = kl.datasets.TabularFiles(numbered(2), **NUMBERED)
    assert [ids_of(files.dataset(4, shard=(i, 3), shard_by="rows")) for i in range(3)] == [[], [0], [1]]


def test_shards_by_rows_of_csv_files(tmp_path):
    for i in range(2):
        rows = "".join(f"{10 * i + j}\n" for j in range(10))
        (tmp_path / f"{i}.csv").write_text("id\n" + rows)
    files = kl.datasets.TabularFiles(tmp_path, ids=["id"])
    shards = [
        [int(i) for x in files.dataset(3, shard=(k, 3), shard_by="rows") for i in x["id"]] for k in range(3)
    ]
    assert shards == [[i for i in range(20) if i % 10 % 3 == k] for k in range(3)]


ORDERS = {
    "in order": {},
    "shuffled": {"shuffle": 25, "seed": 1},
    "files": {"shuffle_files": True, "seed": 1},
    "both": {"shuffle": 15, "shuffle_files": True, "seed": 1, "epoch": 3},
    "shard": {"shuffle": 5, "shard": (1, 2), "shard_by": "rows", "seed": 1},
    "keep": {"shuffle": 5, "seed": 1, "keep": lambda row: row % 3 != 0},
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_skip_goes_on_where_a_pass_was(source, order, small_blocks):
    files = kl.datasets.TabularFiles(source(numbered(101)), **NUMBERED)
    whole = ids_of(files.dataset(4, **order))
    for skip in (1, 12):
        assert ids_of(files.dataset(4, **order, skip=skip)) == whole[4 * skip :]


def test_skip_of_csv_files(tmp_path):
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(50)))
    data = kl.datasets.TabularFiles(tmp_path / "rows.csv", ids=["id"]).dataset(4, skip=5)
    assert [int(i) for x in data for i in x["id"]] == list(range(20, 50))


def test_skipped_row_groups_are_not_read(tmp_path, small_blocks):
    write_parquet(numbered(100), tmp_path / "a.parquet", rows=20)
    files = kl.datasets.TabularFiles(tmp_path / "a.parquet", **NUMBERED)
    whole = (tmp_path / "a.parquet").read_bytes()
    assert ids_of(files.dataset(4, skip=15)) == list(range(60, 100))
    end = (
        pyarrow.parquet.ParquetFile(tmp_path / "a.parquet")
        .metadata.row_group(3)
        .column(0)
        .dictionary_page_offset
    )
    (tmp_path / "a.parquet").write_bytes(whole[:4] + bytes(end - 4) + whole[end:])  # nothing before is left
    assert ids_of(files.dataset(4, skip=15)) == list(range(60, 100))
    with pytest.raises(tf.errors.InvalidArgumentError):
        ids_of(files.dataset(4))


@pytest.mark.parametrize("order", [{"shuffle": 20}, {"shuffle": 20, "shuffle_files": True}])
def test_orders_of_passes(small_blocks, order):
    files = kl.datasets.TabularFiles(numbered(60), **NUMBERED)
    data = files.dataset(4, seed=5, **order)
    passes = []
    for _ in range(2):
        next(iter(data))  # as `fit` does to build a model: no pass
        passes.append(ids_of(data))
    assert passes == [ids_of(files.dataset(4, seed=5, epoch=i, **order)) for i in range(2)]
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1]) == list(range(60))


def test_orders_of_passes_whose_length_is_unknown(small_blocks):
    files = kl.datasets.TabularFiles(numbered(60), **NUMBERED)
    some = {"shuffle": 20, "keep": lambda row: row % 2 == 0}
    data = files.dataset(4, seed=5, **some)
    next(iter(data))
    first, second = ids_of(data), ids_of(data)
    assert first == ids_of(files.dataset(4, seed=5, **some)) != second
    assert second == ids_of(files.dataset(4, seed=5, epoch=1, **some))


def test_no_seed():
    data = kl.datasets.TabularFiles(numbered(60), **NUMBERED).dataset(4, shuffle=20)
    assert ids_of(data) != ids_of(data)


def test_shuffled_files_keep_the_numbers_of_rows(tmp_path, small_blocks):
    for i in range(4):
        write_parquet(numbered(15, 15 * i), tmp_path / f"{i}.parquet")
    files = kl.datasets.TabularFiles(tmp_path, **NUMBERED)
    mixed = ids_of(files.dataset(4, shuffle_files=True, seed=0))
    assert mixed != sorted(mixed) == list(range(60))
    kept = ids_of(files.dataset(4, shuffle_files=True, seed=0, keep=lambda row: row % 10 == 3))
    assert sorted(kept) == list(range(3, 60, 10))


def test_the_footer_of_a_shuffled_file_is_read_once_a_pass(tmp_path, monkeypatch):
    from pyarrow import parquet

    write_parquet(numbered(40), tmp_path / "a.parquet", rows=5)
    files, opened, open_file = kl.datasets.TabularFiles(tmp_path, **NUMBERED), [], parquet.ParquetFile

    def noted(*args, metadata=None, **options):
        opened.append(metadata is not None)
        return open_file(*args, metadata=metadata, **options)

    monkeypatch.setattr(parquet, "ParquetFile", noted)
    assert sorted(ids_of(files.dataset(4, shuffle_files=True, seed=0))) == list(range(40))
    assert opened == [False, False] + [True] * 7  # for the rows of the groups, and for each group


def test_training_leaves_a_table_as_it_is():
    """TensorFlow writes into an array that it was given: `x * 2` into the last slice of a block."""
    table = pyarrow.table({"x": pyarrow.array(np.ones(4096, np.float32)), "y": np.arange(4096)})
    data = kl.datasets.TabularFiles(table, numbers=["x"], ids=["y"]).dataset(1024)
    for _ in range(2):
        total = data.map(lambda x: (tf.negative(x["x"]), x["y"] * 2)).reduce(0.0, lambda t, x: t + x[0][0])
        assert float(total) == -4
    assert table["x"].to_pylist() == [1.0] * 4096 and table["y"].to_pylist() == list(range(4096))


@pytest.mark.full
def test_fit_under_a_strategy(small_blocks):
    files = kl.datasets.TabularFiles(numbered(160), **NUMBERED)

    def losses(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            inputs = {
                "id": keras.Input((), dtype="int64", name="id"),
                "tags": keras.Input((None,), dtype="int64", ragged=True, name="tags"),
            }
            table = kl.layers.TableConfig("rows", 160, 4, combiner="sum")
            features = {name: kl.layers.FeatureConfig(name, table) for name in inputs}
            rows = kl.layers.DistributedEmbedding(features)(inputs)
            model = kl.Model(inputs, keras.layers.Dense(1)(keras.layers.add(list(rows.values()))))
            model.compile(kl.optimizers.SGD(0.1), "mse")
        return model.fit(files.dataset(8, shuffle=20, seed=3), epochs=2, verbose=0).history["loss"]

    one = losses(tf.distribute.get_strategy())
    two = losses(strategy_of(2))
    np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"skip": -1}, "`skip` must be an integer of at least 0"),
        ({"skip": 3}, "`skip` must be less than the number of batches, 3. Received: skip=3"),
        ({"skip": 1, "shuffle": 10}, "`skip` must come with a `seed`"),
        ({"epoch": -1}, "`epoch` must be"),
        ({"seed": -1, "shuffle": 10}, "`seed` must be"),
        ({"shard_by": "columns"}, "`shard_by` must be one of"),
        ({"shard": (2, 2), "shard_by": "rows"}, "0 <= index < count"),
    ],
)
def test_what_a_dataset_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        kl.datasets.TabularFiles(numbered(10), **NUMBERED).dataset(4, **arguments)


def test_numbers_of_shuffled_csv_rows_are_unknown(tmp_path):
    (tmp_path / "rows.csv").write_text("id\n1\n")
    with pytest.raises(ValueError, match=r"`keep` must not be combined .* Received: .*rows.csv"):
        kl.datasets.TabularFiles(tmp_path, ids=["id"]).dataset(
            1, keep=lambda row: row > 0, shuffle_files=True
        )
