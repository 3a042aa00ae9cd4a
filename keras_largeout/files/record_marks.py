"""The records in a file of rows, and the digests that they were written with.

A record is the mark, a row and its optimizer slots, in float32 words. The mark is 0 where the row was never
written, 1.0 where it was written by version 0.1, and else a digest of the record. The formula:
`custom_ops/row_update/records.h`.
"""

import os

import numpy as np

PLAIN_MARK = 1.0
_PLAIN_BITS = 0x3F800000
#: Bytes of a file that are in memory at a time.
_CHUNK = 16 << 20


def record_marks(contents, rows):
    """Return the marks of records that are written.

    Args:
        contents: array `[n, words]` of 4-byte values: what is behind the mark of each record.
        rows: integer array `[n]`, their rows.

    Returns:
        float32 array `[n]`. Its bits count: they may be those of a NaN.
    """
    words = np.ascontiguousarray(contents).view(np.uint32)
    words = np.pad(words, [(0, 0), (0, words.shape[1] % 2)])
    keys = (np.arange(1, words.shape[1] + 1, dtype=np.uint64) * 0x9E3779B1).astype(np.uint32)
    words = words + keys
    rows = np.asarray(rows).astype(np.uint64)
    sums = rows * np.uint64(0xC2B2AE3D27D4EB4F)
    sums += np.einsum("ij,ij->i", words[:, ::2], words[:, 1::2], dtype=np.uint64, casting="safe")
    sums = (sums ^ (sums >> np.uint64(29))) * np.uint64(0x9E3779B185EBCA87)
    marks = (sums >> np.uint64(32)).astype(np.uint32)
    marks ^= np.where((marks == 0) | (marks == _PLAIN_BITS), np.uint32(1 << 31), np.uint32(0))
    return marks.view(np.float32)


def written_records(path, words):
    """Yield the records of a file without its holes, in chunks.

    Args:
        path: str.
        words: int, float32 words of a record.

    Yields:
        `(first row, float32 records [n, words])`. Some may never have been written.

    Raises:
        OSError: a record is not the one that was written.
    """
    most, end = max(1, _CHUNK // (4 * words)), 0
    with open(path, "rb") as file:
        rows = os.fstat(file.fileno()).st_size // (4 * words)
        while end < rows:
            try:
                data = os.lseek(file.fileno(), 4 * end * words, os.SEEK_DATA)
            except OSError:  # none is left
                return
            hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
            start, end = max(end, data // (4 * words)), -(-hole // (4 * words))
            for first in range(start, end, most):
                count = min(most, end - first)
                file.seek(4 * first * words)
                records = np.fromfile(file, "float32", count * words).reshape(count, words)
                _check(path, first, records)
                yield first, records


def _check(path, first, records):
    found = np.ascontiguousarray(records[:, 0]).view(np.uint32)
    marks = record_marks(records[:, 1:], first + np.arange(len(records))).view(np.uint32)
    wrong = np.flatnonzero((found != marks) & (found != 0) & (found != _PLAIN_BITS))
    if wrong.size:
        raise OSError(
            f"{path} is damaged: row {first + wrong[0]} must have the digest with which it was written, "
            f"{found[wrong[0]]:08x}. Bring the folder back from a copy, or remove it and load the last save "
            f"of the model. Received: a row with the digest {marks[wrong[0]]:08x}"
            + (f", and {wrong.size - 1} more such rows near it" if wrong.size > 1 else "")
        )
