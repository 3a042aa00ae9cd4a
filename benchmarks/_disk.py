"""Files that are not in memory: how fast the disk reads pages of them, and how they leave memory."""

import concurrent.futures
import ctypes
import mmap
import os
import time

import numpy as np

PAGE = 4096


def page_read_seconds(folder, gigabytes=2.0, reads=20_000, threads=32):
    """Seconds per page, when many random pages of a file in `folder` are asked for at a time."""
    path, pages = os.path.join(folder, "pages"), int(gigabytes * 2**30) // PAGE
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(pages * PAGE // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    chosen = np.random.default_rng(0).integers(0, pages, reads).tolist()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(some):
        with mmap.mmap(-1, PAGE) as place:  # direct reads want memory that begins at a page
            for page in some:
                os.preadv(descriptor, [place], page * PAGE)

    try:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(read, (chosen[i::threads] for i in range(threads))))
            return (time.perf_counter() - start) / reads
    finally:
        os.close(descriptor)
        os.remove(path)


def forget(path):
    """Writes what is in memory of a file to the disk, and drops it from memory, also where it is mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip().endswith(path):
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
