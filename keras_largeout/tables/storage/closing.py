"""A model's tables in files: they are put on the disk and given up, or begin again after a kill."""

import keras

from keras_largeout._keras import all_layers
from keras_largeout.replicas.optimizer_check import shards_of


def close_files(model: keras.Layer) -> None:
    """Close the files of all tables of a model that are in files. Other models may then open them.

    What was trained is on the disk when the call returns. The layers that had these tables can no longer be
    used. A model that goes closes its files by itself, and so does the end of the process.

    Args:
        model: `keras.Model` or `keras.layers.Layer`.

    Example:

    ```python
    kl.close_files(model)
    model = build_model()  # with the same `storage`: it finds the rows again
    ```
    """
    for table in _tables(model):
        table.close()


def begin_again(model):
    """Give tables in files that a killed process has left their first values: see `TableFolder.begin_again`.

    Returns:
        list of str, their folders.
    """
    folders = {table.folder for table in _tables(model) if table.folder is not None}
    return sorted(folder.path for folder in folders if folder.begin_again())


def _tables(model):
    return (shard.array.table for layer in all_layers(model) for shard in shards_of(layer))
