"""Files that appear under their names when they are complete."""

import contextlib
import os


@contextlib.contextmanager
def whole_file(filepath, overwrite):
    """A path beside `filepath`, renamed when everything is written: `filepath` is never half written."""
    path = os.fspath(filepath)
    whole = path.endswith((".keras", ".weights.h5", ".h5")) and "://" not in path
    if not whole or (os.path.exists(path) and not overwrite) or os.path.isdir(path):
        yield filepath
        return
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{os.getpid()}-{name}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(beside)
