"""Texts and files between synchronous hosts: bytes, which travel as rows of integers."""

import os

import numpy as np
import tensorflow as tf

from keras_largeout.replicas.collectives import all_gather, all_gather_scalar

_COPIED, _LINE = 1 << 26, 1 << 12  # bytes of a file that travel together, as rows of so many


def all_gather_texts(hosts, text):
    """Return the texts of all hosts, a list of str: names of files or anything else."""
    if hosts.is_alone:
        return [text]
    given = os.fsencode(text)
    lengths = all_gather_scalar(hosts, len(given))
    with tf.init_scope():
        (came,) = all_gather(hosts, tf.constant(_lines(given)))
    parts = np.split(came.numpy(), np.cumsum(-(-lengths // _LINE))[:-1])
    return [os.fsdecode(part.tobytes()[:length]) for part, length in zip(parts, lengths)]


def broadcast_file(hosts, path):
    """Copy a file of the first host to the same path on all other hosts."""
    if hosts.is_alone:
        return
    first = hosts.is_first
    size = int(all_gather_scalar(hosts, os.path.getsize(path) if first else 0)[0])
    with open(path, "rb" if first else "wb") as file, tf.init_scope():
        for start in range(0, size, _COPIED):
            block = file.read(_COPIED) if first else b""
            (words,) = all_gather(hosts, tf.constant(_lines(block)))
            if not first:
                file.write(words.numpy().tobytes()[: size - start])


def _lines(given):
    """Return bytes as rows that can travel: int32 `[lines, _LINE / 4]`, padded with zeros."""
    padded = given.ljust(-(-len(given) // _LINE) * _LINE, b"\0")
    return np.frombuffer(padded, np.int32).reshape(-1, _LINE // 4)
