"""Files of strangers: loading one in safe mode writes nothing outside of its own folder."""

import json
import os
import random
import shutil
import zipfile

import keras
import numpy as np
import pytest

import keras_largeout as kl
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, ShardedEmbedding, TableConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*exists and stays as it is")

_PLACES = ("storage", "name", "input_dim", "vocabulary_size", "embedding_dim", "output_dim", "storage_id")


def model_in(storage):
    ids = keras.Input((2,), dtype="int32")
    words = ShardedEmbedding(20, 4, storage=storage, name="words")(ids)
    tables = [TableConfig(name, 10, 4, storage=storage) for name in "ab"]
    features = DistributedEmbedding([FeatureConfig(t.name, t) for t in tables], name="features")([ids, ids])
    dense = keras.layers.Dense(1)(keras.layers.Concatenate()([keras.layers.Flatten()(words), *features]))
    return kl.Model(ids, dense)


def nodes_of(config):
    if isinstance(config, dict):
        yield config
    for value in config.values() if isinstance(config, dict) else config:
        if isinstance(value, (dict, list)):
            yield from nodes_of(value)


def edited(path, to, edit):
    """Copies a `.keras` file; `edit(node)` changes the dicts in its config."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(to, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "config.json":
                config = json.loads(data)
                for node in list(nodes_of(config)):
                    edit(node)
                data = json.dumps(config)
            target.writestr(name, data)
    return to


def put_at(storage):
    def edit(node):
        if "storage" in node:
            node["storage"] = storage
            node.pop("storage_id", None)

    return edit


def entries(folder):
    return {os.path.join(at, name) for at, *names in os.walk(folder) for name in (*names[0], *names[1])}


@pytest.fixture
def jail(tmp_path, monkeypatch):
    """`tmp_path` with a folder `own` for the file, the current folder `here`, and what others have."""
    for name in ("own", "here", "victim/rows", "maker"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "victim")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def saved(jail):
    """A file whose tables are not on this machine."""
    model = model_in(f"file:{jail}/maker/rows")
    model.save(jail / "own" / "m.keras")
    kl.close_files(model)
    shutil.rmtree(jail / "maker")
    return jail / "own" / "m.keras"


def test_two_hundred_changed_files(jail, saved):
    draw = random.Random(0)
    paths = [f"{jail}/victim", f"{jail}/victim/new", "../victim", "rows/../../victim", "link", "link/x"]
    paths += [f"{jail}/own/x", "..", ".", ".ssh", "rows", "a/b", "~", "//", "", "a/./b", f"{jail}/here", "\0"]
    names = ["../victim", "..", ".", "", f"{jail}/victim/x", "../../victim/rows", "a/b", ".x", "x" * 300]
    before = {folder: entries(jail / folder) for folder in ("here", "victim")}
    most = os.path.getsize(saved)
    loaded = 0
    for _ in range(200):
        values = {
            "storage": f"file:{draw.choice(paths)}{draw.choice(['', '', '?mode=new', '?mode=ro', '?mode='])}",
            "name": draw.choice(names),
            "storage_id": draw.choice([None, "", "0" * 32]),
            **{place: draw.choice([1 << 20, 1 << 40, -1, 30]) for place in _PLACES if "_dim" in place},
            "vocabulary_size": draw.choice([1 << 20, 1 << 40]),
        }
        chosen = ["storage", *draw.sample(_PLACES, draw.choice([0, 0, 1, 2]))]

        def edit(node, values=values, chosen=chosen):
            if "storage" in node:
                node.update({place: values[place] for place in chosen if place in node})

        path = edited(saved, jail / "own" / "changed.keras", edit)
        try:
            model = keras.models.load_model(path, compile=False)
        except Exception:
            continue
        loaded += 1
        kl.close_files(model)
    assert 0 < loaded < 100
    assert before == {folder: entries(jail / folder) for folder in before}
    assert {path.name for path in jail.iterdir()} == {"own", "here", "victim"}
    assert all(os.path.getsize(path) <= most + (1 << 12) for path in entries(jail / "own"))


@pytest.mark.parametrize("path", ["/rows", "../rows", "a/../../rows", ".rows", "link"])
def test_other_folders_are_refused(jail, saved, path):
    path = f"{jail}{path}" if path[0] == "/" else path
    changed = edited(saved, jail / "own" / "changed.keras", put_at(f"file:{path}"))
    with pytest.raises(ValueError, match=r"`storage` in a file that is loaded in safe mode .*kl\.storage\("):
        keras.models.load_model(changed)
    assert not (jail / "rows").exists()


def test_where_the_caller_says(jail, saved):
    want = {"words", "features"}
    with kl.storage(jail / "mine"):
        model = keras.models.load_model(saved)
    assert {path.name for path in (jail / "mine").iterdir()} - {"storage_id"} == want
    assert not (jail / "maker").exists()
    assert model.get_layer("words").get_config()["storage"] == f"file:{jail}/mine"
    keras.models.load_model(saved, safe_mode=False)
    assert {path.name for path in (jail / "maker" / "rows").iterdir()} - {"storage_id"} == want


def test_a_relative_path_is_below_the_folder_of_the_file(jail, saved):
    changed = edited(saved, jail / "own" / "changed.keras", put_at("file:a/rows"))
    keras.models.load_model(changed)
    assert (jail / "own" / "a" / "rows" / "words" / "table.json").exists()
    assert not list((jail / "here").iterdir())


def test_the_folder_of_the_saved_model(jail):
    """Its own tables are there: it has the number that the file has, whatever the path is."""
    model = model_in("file:rows")  # below the current folder
    model.save(jail / "own" / "m.keras")
    rows = model.get_layer("words").table.numpy()
    loaded = keras.models.load_model(jail / "own" / "m.keras")
    np.testing.assert_array_equal(loaded.get_layer("words").table.numpy(), rows)
    assert (jail / "here" / "rows" / "words-2").exists() and not (jail / "own" / "rows").exists()
    kl.close_files(model)
    shutil.rmtree(jail / "here" / "rows" / "words")
    (jail / "here" / "rows" / "storage_id").write_text("another")
    keras.models.load_model(jail / "own" / "m.keras")
    assert (jail / "own" / "rows" / "words").exists()


def test_a_layer_that_was_never_built_can_be_copied(jail):
    tables = [TableConfig("a", 10, 4, storage=f"file:{jail}/rows")]
    layer = DistributedEmbedding([FeatureConfig("a", tables[0])], name="features")
    copy = type(layer).from_config(layer.get_config())
    copy.build()
    assert (jail / "rows" / "features").exists()


@pytest.mark.parametrize("kind", ["device", "file:rows", "vocabulary"])
def test_sizes_beyond_the_file_are_refused(tmp_path, kind):
    ids = keras.Input((2,), dtype="int64")
    vocabulary = kl.layers.DynamicVocabulary(16, name="vocabulary")
    if kind == "vocabulary":
        model = keras.Model(ids, vocabulary(ids))
    else:
        model = keras.Model(ids, ShardedEmbedding(20, 4, storage="device", name="words")(ids))
    model.save(tmp_path / "m.keras")

    def enlarge(node):
        if "storage" in node:
            node |= {"storage": kind, "input_dim": 1 << 40}
        if "capacity" in node:
            node["capacity"] = 1 << 40

    with pytest.raises(ValueError, match=r"must be at most that of the file that is loaded, .* bytes"):
        keras.models.load_model(edited(tmp_path / "m.keras", tmp_path / "changed.keras", enlarge))


@pytest.mark.parametrize("name", ["..", ".hidden"])
def test_names_of_tables_are_names_of_folders(tmp_path, name):
    layer = ShardedEmbedding(20, 4, storage=f"file:{tmp_path}/rows", name=name)
    with pytest.raises(ValueError, match="The name of a table in files must not begin with"):
        layer.build()
    assert not list(tmp_path.iterdir())
