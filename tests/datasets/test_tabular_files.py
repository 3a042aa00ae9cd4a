"""`TabularFiles`: CSV and Parquet files of any size, and invalid files."""

import gzip

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

pyarrow = pytest.importorskip("pyarrow", reason="pip install keras-largeout[tables]")

TEXT = b'user,price,clicked,ad\nann,1.5,1,x\n\xff\xfe,,0,7\n,NA,1,"a,b"\n'
USES = {"categories": ["user", "ad"], "numbers": ["price"], "target": "clicked"}
USERS, PRICES, CLICKED, ADS = (
    [b"ann", b"\xff\xfe", b""],
    [1.5, np.nan, np.nan],
    [1, 0, 1],
    [b"x", b"7", b"a,b"],
)


def written(folder, text=TEXT, name="rows.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return str(path)


def table(rows, first=0):
    number = np.arange(first, first + rows)
    return pyarrow.table(
        {"id": number, "name": [f"n{i}" for i in number], "price": number / 2, "clicked": number % 2}
    )


def parquet(folder, *args, name="rows.parquet"):
    from pyarrow.parquet import write_table

    write_table(table(*args), folder / name, row_group_size=7)
    return str(folder / name)


def all_of(dataset):
    """The columns and the targets of all batches, joined."""
    batches = list(dataset)
    x = {name: np.concatenate([x[name] for x, _ in batches]) for name in batches[0][0]}
    return x, np.concatenate([y for _, y in batches])


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
@pytest.mark.parametrize("batch_size", [1, 2, 10])
def test_csv(tmp_path, name, batch_size):
    files = kl.datasets.TabularFiles(written(tmp_path, name=name), **USES)
    batches = files.dataset(batch_size)
    assert all(len(y) <= batch_size for _, y in batches)
    x, y = all_of(batches)
    assert x["user"].tolist() == USERS and x["ad"].tolist() == ADS
    np.testing.assert_array_equal(x["price"], np.float32(PRICES))
    np.testing.assert_array_equal(y, np.float32(CLICKED))
    assert files.rows_read == 3 and files.rows_skipped == 0 and files.bytes_read == files.bytes


def test_no_header_and_another_delimiter(tmp_path):
    text = b"".join(TEXT.split(b"\n", 1)[1:]).replace(b'"a,b"', b"ab").replace(b",", b"\t")
    path = written(tmp_path, text, "rows.tsv")
    columns = ["user", "price", "clicked", "ad"]
    x, y = all_of(kl.datasets.TabularFiles(path, **USES, delimiter="\t", columns=columns).dataset(2))
    assert x["user"].tolist() == USERS and y.tolist() == CLICKED


def test_parquet(tmp_path):
    uses = {"categories": ["id", "name"], "numbers": ["price"], "target": "clicked"}
    x, y = all_of(kl.datasets.TabularFiles(parquet(tmp_path, 20), **uses).dataset(6))
    assert x["id"].tolist() == [str(i).encode() for i in range(20)]
    assert x["name"].tolist() == [f"n{i}".encode() for i in range(20)]
    np.testing.assert_array_equal(x["price"], np.arange(20, dtype="float32") / 2)
    np.testing.assert_array_equal(y, np.arange(20) % 2)


def test_parquet_with_missing_values_and_dictionaries(tmp_path):
    from pyarrow.parquet import write_table

    columns = {
        "word": pyarrow.array(["a", None, "a"]).dictionary_encode(),
        "id": pyarrow.array([1, None, 3]),
        "flag": pyarrow.array([True, False, None]),
        "price": pyarrow.array([None, 2, 3]),
    }
    write_table(pyarrow.table(columns), tmp_path / "rows.pq")
    files = kl.datasets.TabularFiles(tmp_path / "rows.pq", ["word", "id", "flag"], ["price"])
    (x,) = files.dataset(3)
    assert x["word"].numpy().tolist() == [b"a", b"", b"a"]
    assert x["id"].numpy().tolist() == [b"1", b"", b"3"]
    assert x["flag"].numpy().tolist() == [b"true", b"false", b""]
    np.testing.assert_array_equal(x["price"], [np.nan, 2, 3])


def test_folders_patterns_and_lists(tmp_path):
    for i in range(3):
        parquet(tmp_path, 5, 5 * i, name=f"{i}.parquet")
    (tmp_path / "notes.md").write_text("no table")
    lists = [tmp_path / "0.parquet", str(tmp_path / "[12].parquet")]
    for given in (tmp_path, str(tmp_path / "*.parquet"), lists):
        files = kl.datasets.TabularFiles(given, ["id"], target="clicked")
        x, _ = all_of(files.dataset(4))
        assert x["id"].tolist() == [str(i).encode() for i in range(15)]
    shards = [all_of(files.dataset(4, shard=(i, 2)))[0]["id"].tolist() for i in range(2)]
    assert [len(shard) for shard in shards] == [10, 5] and sorted(shards[0] + shards[1]) == sorted(x["id"])


def test_shuffle(tmp_path):
    files = kl.datasets.TabularFiles(parquet(tmp_path, 50), ["id"], ["price"], "clicked")
    mixed, again = (all_of(files.dataset(8, shuffle=50, seed=3)) for _ in range(2))
    assert mixed[0]["id"].tolist() == again[0]["id"].tolist() != [str(i).encode() for i in range(50)]
    ids = mixed[0]["id"].astype(int)
    assert sorted(ids) == list(range(50))
    np.testing.assert_array_equal(mixed[0]["price"], ids / 2)
    np.testing.assert_array_equal(mixed[1], ids % 2)


def test_kept_rows_are_the_same_ones_whatever_the_shuffle(tmp_path):
    files = kl.datasets.TabularFiles(parquet(tmp_path, 1000), categories=["id"], target="clicked")
    some, others = (
        {int(i) for i in all_of(files.dataset(64, shuffle, seed=0, keep=keep))[0]["id"]}
        for shuffle, keep in ((100, lambda row: row % 10 != 3), (0, lambda row: row % 10 == 3))
    )
    assert others == set(range(3, 1000, 10)) and some == set(range(1000)) - others


def test_many_blocks(tmp_path):
    rows = 100_000
    text = b"user,price,clicked,ad\n" + b"".join(b"u%d,%d,1,x\n" % (i, i) for i in range(rows))
    files = kl.datasets.TabularFiles(written(tmp_path, text), **USES)
    first = True
    for _, y in files.dataset(30_000):
        if first:
            assert 0 < files.bytes_read <= files.bytes
            assert len(y) == 30_000
        first = False
    x, y = all_of(files.dataset(30_000))
    np.testing.assert_array_equal(x["price"], np.arange(rows, dtype="float32"))
    assert x["user"][-1] == b"u99999" and len(y) == rows


MALFORMED = {
    "too few": (b"b,2\n", "line 4: a row must have 4 values. Received: 2"),
    "too many": (b"b,2,1,y,z\n", "line 4: a row must have 4 values. Received: 5"),
    "no number": (b"b,two,1,y\n", "line 4: 'price' must be a number. Received: 'two'"),
    "no number for a target": (b"b,2,yes,y\n", "line 4: 'clicked' must be a number. Received: 'yes'"),
    "no target": (b"b,2,,y\n", "line 4: the target 'clicked' is missing"),
}


@pytest.mark.parametrize(("row", "message"), MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_malformed_rows_are_named_by_file_and_line(tmp_path, row, message, name):
    # The empty line counts as a line, and is no row.
    path = written(tmp_path, b"user,price,clicked,ad\na,1,0,x\n\n" + row + b"c,3,1,z\n", name)
    files = kl.datasets.TabularFiles(path, **USES)
    with pytest.raises(ValueError) as error:
        list(files.blocks())
    assert f"{path}, {message}" in str(error.value)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(files.dataset(2))
    assert f"{path}, {message}" in str(error.value)
    skipping = kl.datasets.TabularFiles(path, **USES, on_malformed="skip")
    with pytest.warns(UserWarning, match="1 malformed rows were skipped") as warned:
        (block,) = skipping.blocks()
    assert message in str(warned[0].message)
    assert block["user"].tolist() == [b"a", b"c"] and block["price"].tolist() == [1, 3]
    assert (skipping.rows_read, skipping.rows_skipped) == (2, 1)


def test_several_malformed_rows(tmp_path):
    rows = [b"%d,1,1,x" % i for i in range(50_000)]
    for i in (10, 20_000, 49_999):
        rows[i], rows[i - 1] = b"short", b"y,none of it,1,z"
    path = written(tmp_path, b"\n".join([b"user,price,clicked,ad", *rows]))
    files = kl.datasets.TabularFiles(path, **USES, on_malformed="skip")
    with pytest.warns(UserWarning, match="6 malformed rows were skipped"):
        blocks = list(files.blocks(rows=10_000))
    users = np.concatenate([block["user"] for block in blocks])
    kept = [i for i in range(50_000) if i not in (9, 10, 19_999, 20_000, 49_998, 49_999)]
    assert users.tolist() == [b"%d" % i for i in kept]
    with pytest.raises(ValueError, match=r"line 12: a row must have 4|line 11: 'price' must be"):
        list(kl.datasets.TabularFiles(path, **USES).blocks())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + b"bob,2", "line 5: a row must have 4 values. Received: 2"),
        (TEXT + b'bob,2,1,"y', "ends in the middle of a row, in a quoted value"),
        (b"", "Empty CSV file"),
        (b"user,price\na,1\n", r"must have the columns \['ad', 'clicked'\]"),
    ],
    ids=["in a row", "in a quoted value", "empty", "no such column"],
)
def test_files_that_end_too_early(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as error:
        list(kl.datasets.TabularFiles(path, **USES).blocks())
    assert path in str(error.value)


def test_columns_are_looked_for_at_once(tmp_path):
    path = written(tmp_path, b"user,price\na,1\n")
    for options in ({}, {"columns": ["user", "price"]}):
        with pytest.raises(
            ValueError, match=r"must have the columns \['ad'\]. Received: \['user', 'price'\]"
        ):
            kl.datasets.TabularFiles(path, ["user", "ad"], **options)
    with pytest.raises(ValueError, match=r"must have the columns \['ad'\]"):
        kl.datasets.TabularFiles(parquet(tmp_path, 5), ["ad"])


def test_parquet_that_is_cut_or_lacks_a_column(tmp_path):
    path = parquet(tmp_path, 50)
    uses = {"categories": ["id"], "target": "clicked"}
    with pytest.raises(ValueError, match=r"must have the columns \['ad'\]"):
        list(kl.datasets.TabularFiles(path, ["ad"]).blocks())
    with pytest.raises(ValueError, match=r"`categories` must name .* 'price' of type double"):
        list(kl.datasets.TabularFiles(path, ["price"]).blocks())
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read as Parquet") as error:
        list(kl.datasets.TabularFiles(path, **uses).blocks())
    assert path in str(error.value)


def test_parquet_without_a_target(tmp_path):
    from pyarrow.parquet import write_table

    write_table(
        pyarrow.table({"id": [1, 2], "clicked": pyarrow.array([1.0, None])}), tmp_path / "rows.parquet"
    )
    with pytest.raises(ValueError, match="row 2: the target 'clicked' is missing"):
        list(kl.datasets.TabularFiles(tmp_path, ["id"], target="clicked").blocks())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"files": "/none/such/*.csv"}, "`files` must name a file"),
        (
            {"categories": "user"},
            "`categories` must be a list of names of columns. Received: categories='user'",
        ),
        ({"categories": [], "numbers": [], "target": None}, "must name a column"),
        ({"numbers": ["user"]}, "Each column must have one use. Received: user"),
        ({"delimiter": "||"}, "`delimiter` must be a single character"),
        ({"on_malformed": "ignore"}, "`on_malformed` must be one of"),
    ],
)
def test_what_it_refuses(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        kl.datasets.TabularFiles(**({"files": written(tmp_path)} | USES | changed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"batch_size": 2, "shuffle": -1}, "`shuffle` must be"),
        ({"batch_size": 2, "shard": (0, 2)}, "no more than there are files, 1"),
        ({"batch_size": 2, "shard": (tf.constant(0), 2)}, r"write `dataset\(...\).shard\(count, index\)`"),
        ({"batch_size": 2, "shard": (1, 1)}, "0 <= index < count"),
    ],
)
def test_what_a_dataset_refuses(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        kl.datasets.TabularFiles(written(tmp_path), **USES).dataset(**arguments)
