"""A temporary folder that synchronous hosts find under one name."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from keras_largeout.replicas.collectives import all_gather_scalar, barrier
from keras_largeout.replicas.hosts import current_hosts
from keras_largeout.replicas.texts import all_gather_texts


@contextlib.contextmanager
def shared_folder() -> Iterator[str]:
    """A temporary folder, which on synchronous hosts has the same name for all of them.

    The first host makes it, where `tempfile` makes folders (`TMPDIR`), and removes it when all have left this
    context. Where there are not several hosts in the current strategy it is `tempfile.TemporaryDirectory`.

    Yields:
        str, its path.

    Raises:
        OSError: another host does not find it: they share no file system, or `TMPDIR` is not in one.

    Example:

    ```python
    with strategy.scope(), kl.distribute.shared_folder() as folder:
        model.save(f"{folder}/model.keras")  # the first host writes
        loaded = keras.models.load_model(f"{folder}/model.keras")  # all read
    ```
    """
    hosts = current_hosts()
    with tempfile.TemporaryDirectory() if hosts.is_first else contextlib.nullcontext("") as folder:
        with hosts.naming_lost():
            folder = all_gather_texts(hosts, folder)[0]  # the others have an empty one
            found = all_gather_scalar(hosts, os.path.isdir(folder))
        if not found.all():
            raise OSError(
                "Temporary files of several hosts must be in a folder that all of them share, as TMPDIR. "
                f"Received: {folder}, which is not there on every host"
            )
        yield folder
        with hosts.naming_lost():
            barrier(hosts)
