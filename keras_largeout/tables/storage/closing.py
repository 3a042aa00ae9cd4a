"""`close_files`: a model's tables in files are put on the disk and given up."""

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
    for layer in all_layers(model):
        for shard in shards_of(layer):
            shard.array.table.close()
