"""Graphs of nearest rows (HNSW) by three libraries, with the same calls.

Each is made of `rows`, float32 `[n, dim]`, the neighbours of a row in the graph, and how many candidates are
kept while it is made. `save(path)` writes a file, of which `load(path, dim)` makes it again. `search(queries,
k, effort)` returns squared distances, float32, and rows, int64, `[queries, k]` each, the nearest first; the
row -1 where it found fewer.
"""

import importlib

import numpy as np

from keras_largeout._checks import check_one_of


def load_library(name):
    """Return the class that stands for a library.

    Raises:
        ValueError: it is not one of `LIBRARIES`.
        ImportError: it is not installed.
    """
    check_one_of("library", name, sorted(LIBRARIES))
    graph, package = LIBRARIES[name]
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"`library={name!r}` is not installed: pip install {package}") from error
    return graph


class _Faiss:
    def __init__(self, rows, connectivity, effort):
        import faiss

        self._index = faiss.IndexHNSWFlat(rows.shape[1], connectivity)
        self._index.hnsw.efConstruction = effort
        self._index.add(rows)

    def save(self, path):
        import faiss

        faiss.write_index(self._index, path)

    @classmethod
    def load(cls, path, dim):
        import faiss

        graph = cls.__new__(cls)
        graph._index = faiss.read_index(path)
        return graph

    def search(self, queries, k, effort):
        self._index.hnsw.efSearch = effort
        return self._index.search(queries, k)


# Threads that add the first rows side by side leave some of them where no search finds them: of 20 thousand
# random rows, 0.3% of the 20 best were missed, and 0 with this.
_BY_ONE_THREAD = 2_000


class _Usearch:
    def __init__(self, rows, connectivity, effort):
        from usearch.index import Index

        options = {"metric": "l2sq", "dtype": "f32", "connectivity": connectivity, "expansion_add": effort}
        self._index = Index(ndim=rows.shape[1], **options)
        keys = np.arange(len(rows), dtype=np.uint64)
        self._index.add(keys[:_BY_ONE_THREAD], rows[:_BY_ONE_THREAD], threads=1)
        if len(rows) > _BY_ONE_THREAD:
            self._index.add(keys[_BY_ONE_THREAD:], rows[_BY_ONE_THREAD:])

    def save(self, path):
        self._index.save(path)

    @classmethod
    def load(cls, path, dim):
        from usearch.index import Index

        graph = cls.__new__(cls)
        graph._index = Index.restore(path)
        return graph

    def search(self, queries, k, effort):
        self._index.expansion_search = effort
        found = self._index.search(queries, k)
        width = found.keys.shape[-1]  # of one query: a vector, as long as what was found
        there = np.arange(width) < np.reshape(getattr(found, "counts", width), [-1, 1])
        distances, ids = np.full([len(queries), k], np.inf, np.float32), np.full([len(queries), k], -1)
        np.copyto(distances[:, :width], found.distances, where=there)
        np.copyto(ids[:, :width], found.keys, where=there, casting="unsafe")
        return distances, ids


class _Hnswlib:
    def __init__(self, rows, connectivity, effort):
        import hnswlib

        self._index = hnswlib.Index("l2", rows.shape[1])
        self._index.init_index(len(rows), M=connectivity, ef_construction=effort)
        self._index.add_items(rows)

    def save(self, path):
        self._index.save_index(path)

    @classmethod
    def load(cls, path, dim):
        import hnswlib

        graph = cls.__new__(cls)
        graph._index = hnswlib.Index("l2", dim)
        graph._index.load_index(path)
        return graph

    def search(self, queries, k, effort):
        self._index.set_ef(effort)
        ids, distances = self._index.knn_query(queries, k)
        return distances, ids.astype(np.int64)


#: The name of a library, which is also that of its module: its class here, and its package on PyPI.
LIBRARIES = {
    "faiss": (_Faiss, "faiss-cpu"),
    "usearch": (_Usearch, "usearch"),
    "hnswlib": (_Hnswlib, "hnswlib"),
}
