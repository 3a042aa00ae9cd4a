"""The files of a table whose rows are in files: `table.json`, and whether the files are those that it names.

When a folder is closed, `table.json` says of each file how long it is, when it was changed last, and what the
CRC-32 of a sample of its pages is. A file that is gone, or another one (an older copy), is noticed when the
folder is opened again, at a cost that does not grow with the table. Damage elsewhere in a file is noticed
when the row is looked up: each has a digest (`record_marks`).
"""

import json
import math
import os
import zlib

from keras_largeout.files.atomic_write import whole_file

ABOUT, LOCK, ROWS = "table.json", "lock", ".rows"
_PAGE, _SAMPLED = 4096, 64
#: Seconds by which a copy may round the time of a file down.
_ROUNDED = 2


def read_json(path):
    """Return the content of a JSON file.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it is damaged.
    """
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise OSError(f"{path} is damaged: it must be JSON. Received: {error}") from error


def read_about(folder):
    """Return the content of `table.json`, a dict; None where a folder holds no table.

    Raises:
        OSError: it is damaged, or gone although there are rows.
    """
    path = os.path.join(folder, ABOUT)
    try:
        content = read_json(path)
    except FileNotFoundError:
        rows = rows_files(folder)
        if rows:
            raise FileNotFoundError(
                f"{path} is gone, and must be there: the folder has rows. Bring it back from a copy, or "
                f"remove the folder and load the last save of the model. Received: {', '.join(rows)}"
            ) from None
        return None
    missing = {"table", "first", "layouts", "closed"}.difference(content if isinstance(content, dict) else ())
    if missing:
        raise OSError(f"{path} is damaged: it must have {sorted(missing)}. Received: {content!r:.200}")
    return content


def write_about(folder, content):
    """Replaces `table.json`."""
    with whole_file(os.path.join(folder, ABOUT)) as new, open(new, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)


def write_closed(folder):
    """Puts all files of a folder on the disk, and says in `table.json` that they are complete."""
    content = read_about(folder)
    write_about(
        folder, {**content, "closed": True, "files": {n: _print(folder, n) for n in rows_files(folder)}}
    )


def rows_files(folder):
    """Return the names of the files with rows in a folder, in order."""
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    return sorted(name for name in names if name.endswith(ROWS))


def words_of(table, layout):
    """Return the float32 words of a record in a file of rows.

    Args:
        table: dict, the entry "table" of `table.json`.
        layout: dict, one of its "layouts".
    """
    value_bytes = 2 if table["dtype"] == "bfloat16" else 4
    row = -(-math.prod(table["shape"][1:]) * value_bytes // 4)
    return 1 + row + sum(words for _, words, _ in layout["slots"])


def check_rows(folder, content):
    """Compares the files of a folder that was closed with its `table.json`.

    Args:
        folder: str.
        content: what `read_about` returns.

    Raises:
        OSError: a file is gone, or is not the one that was closed.
    """
    for name, known in content.get("files", {}).items():
        found = difference(folder, name, known)
        if found is not None:
            raise OSError(
                f"{os.path.join(folder, name)} must be the file that {ABOUT} names, as it was when the "
                "folder was closed. Bring it back from a copy, or remove the folder and load the last save "
                f"of the model (`python -m keras_largeout.files check` looks at all files). Received: {found}"
            )


def difference(folder, name, known):
    """Return what is wrong with a file of rows; None where it is as `table.json` says."""
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size != known["bytes"]:
                return f"{found.st_size} bytes in the place of {known['bytes']}"
            if _crc(file, known["pages"]) != known["crc32"]:
                return "other rows"
    except FileNotFoundError:
        return "no such file"
    if found.st_mtime < known["time"] - _ROUNDED:
        return f"one that is {known['time'] - found.st_mtime:.0f} seconds older"
    return None


def _print(folder, name):
    with open(os.path.join(folder, name), "rb") as file:
        os.fsync(file.fileno())
        found = os.fstat(file.fileno())
        pages = _sample(file, found.st_size)
        return {
            "bytes": found.st_size,
            "time": found.st_mtime,
            "pages": pages,
            "crc32": _crc(file, pages),
        }


def _sample(file, size):
    """Return the offsets of some pages that were written: spread evenly over the file."""
    pages = set()
    for i in range(_SAMPLED):
        try:
            data = os.lseek(file.fileno(), size * i // _SAMPLED, os.SEEK_DATA)
        except OSError:  # there are only holes behind
            break
        pages.add(data // _PAGE * _PAGE)
    return sorted(pages)


def _crc(file, pages):
    found = 0
    for page in pages:
        found = zlib.crc32(os.pread(file.fileno(), _PAGE, page), found)
    return found
