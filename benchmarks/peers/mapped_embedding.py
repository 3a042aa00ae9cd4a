"""Tables in mapped files with other libraries: PyTorch's `torch.from_file`, and NumPy by hand."""

import os

import numpy as np

from benchmarks._data import load
from benchmarks._step import Step


def torch_step(config, data):
    """Return the rows in the file, SparseAdam's moments in memory."""
    import torch

    from benchmarks.peers import torch_embedding

    os.makedirs(config["folder"], exist_ok=True)
    rows, dim = config["rows"], config["dim"]
    file = torch.from_file(f"{config['folder']}/rows", shared=True, size=rows * dim)
    bag = torch.nn.EmbeddingBag(rows, dim, _weight=file.view(rows, dim), mode="sum", sparse=True)
    return torch_embedding.step(config, data, bag)


def numpy_step(config, data):
    os.makedirs(config["folder"], exist_ok=True)
    shape = (config["rows"], config["dim"])
    table = np.memmap(f"{config['folder']}/rows", np.float32, "w+", shape=shape)
    grad, ids = load(data, "grad"), load(data, "ids")
    each = ids.shape[-1]

    def run(i):
        rows, inverse = np.unique(ids[i % len(ids)], return_inverse=True)
        inverse = inverse.reshape(-1, each)
        values = table[rows]
        loss = float((values[inverse].sum(axis=1) * grad).sum())
        gradient = np.zeros_like(values)
        np.add.at(gradient, inverse.reshape(-1), np.repeat(grad, each, axis=0))
        table[rows] = values - config["lr"] * gradient
        return loss

    return Step(run)
