"""`resize`: a model whose tables have other numbers of rows, with what the old ones had learned."""

import functools
import json
import os
import shutil
import tempfile
import zipfile
from typing import Any

import keras

from keras_largeout._checks import positive_int
from keras_largeout._keras import all_layers
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model
from keras_largeout.files.origin import loading_from
from keras_largeout.files.verified_loading import other_rows
from keras_largeout.layers.dynamic_vocabulary import DynamicVocabulary, whole_buckets
from keras_largeout.replicas.texts import broadcast_file

_CONFIG = "config.json"
_VOCABULARY = "keras_largeout>DynamicVocabulary"
# Registered names of what has a table, and how its config calls the number of rows.
_ROWS = {
    "keras_largeout>ShardedEmbedding": "input_dim",
    "keras_largeout>SparseDense": "input_dim",
    "keras_largeout>TableConfig": "vocabulary_size",
    "keras_largeout>FullSoftmax": "num_classes",
    "keras_largeout>SampledSoftmax": "num_classes",
    "keras_largeout>SparseOutput": "num_classes",
    "keras_largeout>Retrieval": "num_items",
}


def resize(
    model: keras.Model | str | os.PathLike,
    rows: dict[str, int] | None = None,
    custom_objects: dict[str, Any] | None = None,
    into: keras.Model | None = None,
) -> keras.Model:
    """Return a copy of a model in which tables have other numbers of rows, and heads other numbers of
    classes.

    Rows that both have keep their values, and those of their optimizer slots. New rows, from the old number
    on, begin as the rows of a new table do. Everything else is as it was: other weights, the optimizer, what
    `compile` was given. So a model goes on training when its vocabulary has grown.

    The model goes through a `.keras` file in a temporary folder, which takes as much of the disk as the model
    does. The old model stays as it is: while both are used there are two in memory. To have one at a time,
    save the old one, leave it, and give the path of the file. On several hosts all of them make this call:
    the file goes from the first host to the others.

    An embedding and a head that shares its rows (`kernel=`) change together. It is enough to name one.

    The sizes of a subclassed model are known to its own code alone. Make one with the new sizes, compile and
    build it, and give it as `into`.

    Ids outside a table get a row by `out_of_range`. For "modulo", "hash" and "default_row" that row depends
    on the number of rows.

    Args:
        model: a built `keras.Model`, or the path of a `.keras` file. Of a model on several devices the copy
            is on the same ones; a file is read into the current strategy.
        rows: dict from names to int > 0. A layer has its own name, a table of a `DistributedEmbedding` that
            of its `TableConfig`. Layers: `ShardedEmbedding`, `SparseDense` (its `input_dim`), `FullSoftmax`,
            `SampledSoftmax`, `SparseOutput` (new classes get connections as those of a new head), `Retrieval`
            (its `num_items`; new items are not in its index yet). For tables of a `DynamicVocabulary` give
            the vocabulary's name and its new capacity. It keeps its ids with their rows (a smaller one those
            that were used most, or last). It forgets how often ids without a row came, and gradients that
            were being accumulated. Defaults to `None`.
        custom_objects: as in `keras.models.load_model`.
        into: None, or in place of `rows` a built model with the layers of `model` and other numbers of rows.
            It takes the weights, and the state of the optimizer where it is compiled. Defaults to `None`.

    Returns:
        A `keras.Model`; `into`, where it is given.

    Raises:
        ValueError: a table that the model does not have, or whose ids come from a `DynamicVocabulary`, or
            that an optimizer of Keras's trains (whose slots are no rows); a head that has a number for each
            class (`counts` of a `SampledSoftmax` or `Retrieval`, `label_weights`, `class_weight`); two
            numbers for an embedding and the head that shares its rows.

    Example:

    ```python
    larger = kl.resize(model, {"items": 1_200_000})   # it had 1 million
    larger.fit(data)
    ```
    """
    if (rows is None) == (into is None):
        raise ValueError(f"One of `rows` and `into` must be given. Received: rows={rows!r}, into={into!r}")
    saved = isinstance(model, (str, os.PathLike))
    with tempfile.TemporaryDirectory(prefix="largeout-resize-") as folder:
        if into is not None:
            path = model if saved else _saved(model, model.save_weights, folder, "model.weights.h5")
            with other_rows():
                into.load_weights(path)
            return into
        rows = {name: positive_int(f"rows[{name!r}]", count) for name, count in rows.items()}
        if saved:
            path = shutil.copyfile(model, os.path.join(folder, "model.keras"))
            with loading_from(model, bounded=False):
                return _loaded(path, rows, custom_objects)
        try:
            path = _saved(model, model.save, folder, "model.keras")
        except NotImplementedError as error:
            raise ValueError(
                "`model` must have a config whose numbers of rows can be changed. Make one with the new "
                f"sizes, and give it as `into`. Received: {type(model).__name__}, which has none ({error})"
            ) from error
        with model.distribute_strategy.scope():
            return _loaded(path, rows, custom_objects, safe_mode=False)  # it was made here


def _saved(model, save, folder, name):
    """Return the path of a file that `save` writes of a model, on every host."""
    path = os.path.join(folder, name)
    save(path)
    broadcast_file(hosts_of_model(model), path)
    return path


def _loaded(path, rows, custom_objects, safe_mode=True):
    load = functools.partial(keras.models.load_model, custom_objects=custom_objects, safe_mode=safe_mode)
    config = _config_of(path)
    smaller = {
        vocabulary["name"]: whole_buckets(rows[vocabulary["name"]])
        for vocabulary in _configs(config, _VOCABULARY)
        if whole_buckets(rows.get(vocabulary["name"], vocabulary["capacity"])) < vocabulary["capacity"]
    }
    if smaller:  # rows go where they will be before the last ones are left out
        model = load(path)
        for vocabulary in _vocabularies_of(model):
            if vocabulary.name in smaller:
                vocabulary.move_rows(smaller[vocabulary.name])
        path = _saved(model, model.save, os.path.dirname(path), "moved.keras")
        config = _config_of(path)
    _change(config, rows)
    _replace(path, _CONFIG, json.dumps(config))
    with other_rows():
        model = load(path)
    for vocabulary in _vocabularies_of(model):
        if vocabulary.name not in smaller:
            vocabulary.move_rows()
    return model


def _vocabularies_of(model):
    return [layer for layer in all_layers(model) if isinstance(layer, DynamicVocabulary)]


def _config_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(_CONFIG))


def _change(config, rows):
    """Changes the config of a model to other numbers of rows, or raises ValueError."""
    tables = [table for kind in _ROWS for table in _configs(config, kind)]
    vocabularies = list(_configs(config, _VOCABULARY))
    names = {part["name"] for part in (*tables, *vocabularies)}
    if not rows.keys() <= names:
        raise ValueError(
            f"`rows` must name tables of the model, which are {sorted(names)}. (Those of a subclassed layer "
            "or model are made by its own code: make one with the new sizes, and give it as `into`.) "
            f"Received: {sorted(rows.keys() - names)}"
        )
    for table in tables:
        if table.get("vocabulary") is not None and table["name"] in rows:
            raise ValueError(
                f"`rows` must not name {table['name']!r}: it has a row for each id of a vocabulary. "
                f"Name that, {table['vocabulary']['config']['name']!r}, and give its capacity"
            )
    rows = _tied_too({**rows, **_of_vocabularies(rows, tables)}, tables)
    for kind, argument in _ROWS.items():
        for table in _configs(config, kind):
            if table["name"] in rows:
                _check(table, config)
                table[argument] = rows[table["name"]]
    for vocabulary in vocabularies:
        if vocabulary["name"] in rows:
            vocabulary["capacity"] = whole_buckets(rows[vocabulary["name"]])


def _of_vocabularies(rows, tables):
    """Return the numbers of rows of the tables whose vocabularies are in `rows`."""
    found = {}
    for table in tables:
        vocabulary = (table.get("vocabulary") or {"config": {"name": None}})["config"]
        if vocabulary["name"] in rows:
            argument = next(name for name in _ROWS.values() if name in table)
            found[table["name"]] = (
                table[argument] - vocabulary["capacity"] + whole_buckets(rows[vocabulary["name"]])
            )
    return found


def _tied_too(rows, tables):
    """Return `rows` with the embeddings and heads that share a table with one that it names."""
    rows, sharing = dict(rows), {}
    for table in tables:
        if isinstance(table.get("kernel"), str):
            sharing.setdefault(table["kernel"], {table["kernel"]}).add(table["name"])
    for names in sharing.values():
        wanted = {name: rows[name] for name in sorted(names & rows.keys())}
        if len(set(wanted.values())) > 1:
            raise ValueError(
                f"`rows` must be the same number for {sorted(names)}, which share their rows. "
                f"Received: {wanted}"
            )
        for count in set(wanted.values()):
            rows |= dict.fromkeys(names, count)
    return rows


def _check(table, model):
    for numbers in ("counts", "label_weights", "class_weight"):
        if table.get(numbers) not in (None, "streaming"):  # these start from nothing for new items
            raise ValueError(
                f"`rows` must not name {table['name']!r}: it has `{numbers}`, a number for each of its "
                "classes. Make a model with those of all new classes, and take over its other layers' weights"
            )
    optimizer = (model.get("compile_config") or {}).get("optimizer")
    foreign = isinstance(optimizer, dict) and optimizer.get("module", "").startswith("keras.optimizers")
    if table.get("optimizer") is None and foreign and "Optimizer" not in optimizer["class_name"]:
        raise ValueError(
            f"The optimizer that trains {table['name']!r} must be one of keras_largeout.optimizers: slots of "
            f"Keras's own cannot be resized. Received: {optimizer['class_name']}"
        )


def _configs(config, kind):
    """Return the configs of all objects of a registered name in a nested config. One may come several
    times.
    """
    return [part["config"] for part in _parts(config) if part.get("registered_name") == kind]


def _parts(config):
    """Yield all dicts in a nested config."""
    if isinstance(config, dict):
        yield config
        config = config.values()
    elif not isinstance(config, list):
        return
    for value in config:
        yield from _parts(value)


def _replace(path, member, text):
    """Writes a member of a zip archive again. The others, which may be large, stay where they are.

    Readers take the last one of a name. (`zipfile` warns of a second one where the first is in its list.)
    """
    with zipfile.ZipFile(path, "a") as archive:
        info = archive.NameToInfo.pop(member)
        archive.filelist.remove(info)
        archive.writestr(member, text)
