"""Looks for damage: `python -m keras_largeout.files check FOLDER`.

Checked are tables in files (`storage="file:<folder>"`) and what models were saved to (`.keras`,
`.weights.h5`, `.weights.json`), in FOLDER and below it. What killed processes have left of their saves is
removed, and times of files are corrected in a `table.json` where their rows are right. Every row of a table
is read and compared with its digest. The exit code is 1 where something is wrong that was not repaired.
"""

import argparse
import fcntl
import os
import sys

import numpy as np

from keras_largeout.files.atomic_write import remove_leftovers, scratches
from keras_largeout.files.record_marks import written_records
from keras_largeout.files.table_files import (
    ABOUT,
    LOCK,
    ROWS,
    check_rows,
    difference,
    read_about,
    rows_files,
    words_of,
    write_about,
)
from keras_largeout.files.verified_loading import verify_file

_SAVES = ".keras", ".weights.h5", ".weights.json"


def check(folder):
    """Prints what is found in a folder; whether nothing is wrong, or is wrong no longer."""
    good, something = True, False
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.endswith(".partial"))
        left = scratches(path)
        remove_leftovers(path)
        for name in sorted(left - scratches(path)):
            print(f"{path}: removed {name}, a save that was killed")
            something = True
        found = {os.path.join(path, file): verify_file for file in sorted(files) if file.endswith(_SAVES)}
        if ABOUT in files or rows_files(path):
            found[path] = _check_table
        something = something or bool(found)
        for where, verify in found.items():
            try:
                said = verify(where)
                print(f"{where}: {said if isinstance(said, str) else 'no damage found'}")
            except OSError as error:
                good = False
                print(f"{where}: {error}")
    if not something:
        print(f"{folder}: there is no table and no saved model here")
    return good


def _check_table(folder):
    """Return what is said of the folder of a table. Raises OSError where something is wrong."""
    with open(os.path.join(folder, LOCK), "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "in use, not checked"
        content = read_about(folder)
        if not content["closed"]:
            raise OSError(
                "It was not closed: the process that trained it was killed, and rows may be torn. Load the "
                "last save of the model, or remove the folder"
            )
        older = [n for n, known in content.get("files", {}).items() if _is_only_older(folder, n, known)]
        for name in older:
            content["files"][name]["time"] = os.path.getmtime(os.path.join(folder, name))
        check_rows(folder, content)
        rows = sum(_check_records(folder, name, content) for name in content["layouts"])
        if older:
            write_about(folder, content)
        corrected = ", whose times were corrected" if older else ""
        return f"closed, with all of its files{corrected}; {rows:,} rows are as they were written"


def _check_records(folder, part, content):
    """Return how many rows of a part of a table were written. Raises OSError where one is damaged."""
    layout = content["layouts"][part]
    path = os.path.join(folder, f"{part}.{layout['number']}{ROWS}")
    words = words_of(content["table"], layout)
    return sum(np.count_nonzero(records[:, 0].view("uint32")) for _, records in written_records(path, words))


def _is_only_older(folder, name, known):
    """Return whether the time alone is wrong: in what is compared, the rows are right."""
    return difference(folder, name, known) is not None and (
        difference(folder, name, {**known, "time": 0.0}) is None
    )


def main(arguments=None):
    parser = argparse.ArgumentParser("python -m keras_largeout.files", description=__doc__)
    parser.add_argument("what", choices=["check"])
    parser.add_argument("folder")
    folder = parser.parse_args(arguments).folder
    if not os.path.isdir(folder):
        parser.error(f"FOLDER must be a folder. Received: {folder}")
    sys.exit(0 if check(folder) else 1)


if __name__ == "__main__":
    main()
