"""`resize`: a model whose tables have other numbers of rows, with what the old ones had learned."""

import json
import os
import shutil
import tempfile
import zipfile

import keras

from keras_largeout._checks import positive_int
from keras_largeout.files.loading import other_rows

_CONFIG = "config.json"
# Registered names of what has a table, and how its config calls the number of rows.
_ROWS = {"keras_largeout>ShardedEmbedding": "input_dim", "keras_largeout>TableConfig": "vocabulary_size"}


def resize(model, rows, custom_objects=None):
    """A copy of a model in which tables have other numbers of rows.

    Rows that both have keep their values, and those of their optimizer slots. New rows, from the old number
    on, begin as the rows of a new table do. Everything else is as it was: other weights, the optimizer, what
    `compile` was given. So a model goes on training when its vocabulary has grown.

    The model goes through a `.keras` file in a temporary folder, which takes as much of the disk as the model
    does. The old model stays as it is: while both are used there are two in memory. To have one at a time,
    save the old one, leave it, and give the path of the file.

    Ids outside a table get a row by `out_of_range`. For "modulo", "hash" and "default_row" that row depends
    on the number of rows.

    Args:
        model: a built `keras.Model`, or the path of a `.keras` file. Of a model on several devices the copy
            is on the same ones; a file is read into the current strategy.
        rows: dict from names to int > 0. A `ShardedEmbedding` has the name of the layer, a table of a
            `DistributedEmbedding` that of its `TableConfig`.
        custom_objects: as in `keras.models.load_model`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: a table that the model does not have, or whose ids come from a `DynamicVocabulary` (which
            has a capacity), or that an optimizer of Keras's trains (whose slots are no rows); a head that
            shares the rows (`kernel=`) and would have other classes.

    Example:

    >>> larger = kl.resize(model, {"items": 1_200_000})   # it had 1 million
    >>> larger.fit(data)
    """
    rows = {name: positive_int(f"rows[{name!r}]", count) for name, count in rows.items()}
    with tempfile.TemporaryDirectory(prefix="largeout-resize-") as folder:
        path = os.path.join(folder, "model.keras")
        if isinstance(model, (str, os.PathLike)):
            shutil.copyfile(model, path)
            return _loaded(path, rows, custom_objects)
        model.save(path)
        with model.distribute_strategy.scope():
            return _loaded(path, rows, custom_objects, safe_mode=False)  # it was made here


def _loaded(path, rows, custom_objects, safe_mode=True):
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read(_CONFIG))
    found = list(_tables(config))
    names = {table["config"]["name"] for table in found}
    if not rows.keys() <= names:
        raise ValueError(
            f"`rows` must name tables of the model, which are {sorted(names)}. "
            f"Received: {sorted(rows.keys() - names)}"
        )
    found = [table for table in found if table["config"]["name"] in rows]
    for table in found:
        _check(table["config"], config)
        table["config"][_ROWS[table["registered_name"]]] = rows[table["config"]["name"]]
    _replace(path, _CONFIG, json.dumps(config))
    with other_rows():
        return keras.models.load_model(path, custom_objects, safe_mode=safe_mode)


def _tables(config):
    """The configs of all tables, in which a table that several features use may come several times."""
    for part in _parts(config):
        if part.get("registered_name") in _ROWS:
            yield part


def _check(table, model):
    if table.get("vocabulary") is not None:
        raise ValueError(
            f"`rows` must not name {table['name']!r}: the ids of its rows come from a DynamicVocabulary, "
            "which has a fixed capacity"
        )
    optimizer = (model.get("compile_config") or {}).get("optimizer")
    foreign = isinstance(optimizer, dict) and optimizer.get("module", "").startswith("keras.optimizers")
    if table.get("optimizer") is None and foreign and "Optimizer" not in optimizer["class_name"]:
        raise ValueError(
            f"The optimizer that trains {table['name']!r} must be one of keras_largeout.optimizers: slots of "
            f"Keras's own cannot be resized. Received: {optimizer['class_name']}"
        )


def _parts(config):
    """All dicts in a nested config."""
    if isinstance(config, dict):
        yield config
        config = config.values()
    elif not isinstance(config, list):
        return
    for value in config:
        yield from _parts(value)


def _replace(path, member, text):
    """Writes a member of a zip archive anew. The others, which may be large, stay where they are.

    Readers take the last one of a name. (`zipfile` warns of a second one where the first is in its list.)
    """
    with zipfile.ZipFile(path, "a") as archive:
        info = archive.NameToInfo.pop(member)
        archive.filelist.remove(info)
        archive.writestr(member, text)
