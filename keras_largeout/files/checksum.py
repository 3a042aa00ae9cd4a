"""A checksum of a whole file, written behind its end: damage of any byte is noticed.

HDF5 does not look behind the end of its data, so what reads HDF5 reads a file with a checksum. A program that
changes such a file by HDF5 cuts the checksum off, and the file is one without.
"""

import json
import os
import re
import zlib
from concurrent.futures import ThreadPoolExecutor

_MARK = b"\n#keras_largeout:"
_END = re.compile(rb"([0-9a-f]{8})(\d{8})\n")  # the CRC-32 of what stands before, and its length
_END_BYTES = 17
_PIECE = 64 << 20
_READ = 4 << 20


def add_checksum(path, note=None):
    """Appends the checksum of all bytes of a file to it.

    Args:
        path: str.
        note: dict that JSON can hold, kept with the digest.
    """
    said = {**digest_of_file(path), "note": note or {}}
    line = _MARK + json.dumps(said).encode()
    with open(path, "ab") as file:
        file.write(line + b"%08x%08d\n" % (zlib.crc32(line), len(line)))


def digest_of_file(path):
    """Return the digest of all bytes of a file, a dict that JSON can hold."""
    size = os.path.getsize(path)
    return {"bytes": size, "piece": _PIECE, "crc32": _digests(path, size, _PIECE)}


def verify_checksum(path):
    """Compares a file with its checksum.

    Args:
        path: str.

    Returns:
        The `note` beside the checksum, a dict; None where the file has no checksum.

    Raises:
        OSError: the file is damaged.
    """
    said, size = _read_checksum(path)
    if said is None:
        return None
    check_file(path, said, size)
    return said["note"]


def check_file(path, said, size=None):
    """Compares a file with its digest.

    Args:
        path: str.
        said: what `digest_of_file` has returned.
        size: int, how many of its bytes the digest is of; None: all of them.

    Raises:
        OSError: the file is another.
    """
    size = os.path.getsize(path) if size is None else size
    if said["bytes"] != size:
        raise OSError(f"{path} is damaged: it must have {said['bytes']} bytes. Received: {size} bytes")
    for i, (expected, found) in enumerate(zip(said["crc32"], _digests(path, size, said["piece"]))):
        if expected != found:
            start = i * said["piece"]
            raise OSError(
                f"{path} is damaged: its bytes {start} .. {min(start + said['piece'], size)} must have the "
                f"CRC-32 that they were saved with, {expected:08x}. Received: {found:08x}"
            )


def note_of(path):
    """Return the note beside the checksum of a file, whose own bytes are not read; {} where there is none.

    Raises:
        OSError: the checksum is damaged.
    """
    said, _ = _read_checksum(path)
    return {} if said is None else said["note"]


def _read_checksum(path):
    """Return what a checksum says, and the number of bytes before it; None, 0 where there is none."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        end = _END.fullmatch(file.read())
        size -= _END_BYTES + (int(end[2]) if end else 0)
        if end is None or size < 0:
            return None, 0
        file.seek(size)
        line = file.read(int(end[2]))
    if not line.startswith(_MARK):
        return None, 0
    if zlib.crc32(line) != int(end[1], 16):
        raise OSError(
            f"{path} is damaged: the digest at its end must have the CRC-32 {end[1].decode()}. "
            f"Received: {zlib.crc32(line):08x}"
        )
    return json.loads(line[len(_MARK) :]), size


def _digests(path, size, piece):
    """Return the CRC-32 of each `piece` bytes, some at a time: reading and `crc32` do not hold Python's
    lock.
    """
    descriptor = os.open(path, os.O_RDONLY)

    def digest(start):
        found, end = 0, min(start + piece, size)
        while start < end:
            read = os.pread(descriptor, min(_READ, end - start), start)
            if not read:
                break
            found, start = zlib.crc32(read, found), start + len(read)
        return found

    try:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
            return list(threads.map(digest, range(0, size, piece)))
    finally:
        os.close(descriptor)
