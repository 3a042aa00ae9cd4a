"""Opens the folder of a table in files, or says why the table cannot be in files."""

import keras

from keras_largeout.tables.storage.folder import FORMAT, TableFolder
from keras_largeout.tables.storage.lazy_initializer import LazyInitializer
from keras_largeout.tables.storage.places import NEW, READ_ONLY, number_folder

#: Kinds of placements of which a formula tells the row at a position.
_IN_FILES = ("range", "modulo", "permutation", "table", "replicated")


def open_folder(table, files, initializer, dtype):
    """Return the `TableFolder` of a table in files.

    Args:
        table: `ShardedTable`, whose shape, placement and hosts are known.
        files: what `files_of` gives; None for a table that is not in files.
        initializer: Keras initializer of the table.
        dtype: dtype name.

    Returns:
        A `TableFolder`; None where `files` is None.

    Raises:
        ValueError: it cannot be in files, or the folder is that of another table.
        OSError: the folder is in use, was not closed, is not there or may not be written.
    """
    if files is None:
        return None
    root, path, mode, overwrite = files
    if not table.hosts.is_alone:
        raise ValueError(
            "`storage` of a table over several hosts must be 'device' or 'host'. "
            f"Received: files in {path}, over {table.hosts.count} hosts"
        )
    if table.remote or table.placement.kind not in _IN_FILES:
        raise ValueError(
            "`storage` of a table on parameter servers, and of one that is placed by columns, by a table "
            "of owners or with replicated rows beside others, must be 'device' or 'host'. "
            f"Received: files in {path}, with {table.placement!r}"
        )
    first = LazyInitializer.of(keras.initializers.get(initializer), table.shape, dtype).laws
    about = {
        "shape": list(table.shape),
        "dtype": dtype,
        "placement": table.placement.digest,
        "format": FORMAT,
    }
    laws = [list(law) for law in first]
    if mode != READ_ONLY:
        number_folder(root)
    return TableFolder(path, about, laws, mode == READ_ONLY, mode == NEW and not overwrite, overwrite)
