"""PyTorch: a CSR matrix [labels, inputs] times the inputs [inputs, batch], trained by torch.optim.Adam."""

import numpy as np
import torch

from benchmarks._data import load
from benchmarks._step import Step


def _matrix(config):
    labels, fan_in, inputs = config["labels"], config["fan_in"], config["inputs"]
    columns = np.sort(np.random.default_rng(3).integers(0, inputs - fan_in, (labels, fan_in), np.int32), -1)
    columns += np.arange(fan_in, dtype=np.int32)  # no two alike in a row
    rows = torch.arange(labels + 1, dtype=torch.int32) * fan_in
    limit = fan_in**-0.5
    values = torch.empty(labels * fan_in).uniform_(-limit, limit)
    return rows, torch.from_numpy(columns.reshape(-1)), values, (labels, inputs)


def _hidden(data):
    return [torch.from_numpy(x) for x in load(data, "hidden")]


def forward(config, data):
    matrix, bias = torch.sparse_csr_tensor(*_matrix(config)), torch.zeros(config["labels"], 1)
    hidden = _hidden(data)

    def run(i):
        with torch.no_grad():
            return (matrix @ hidden[i % len(hidden)].T + bias)[0, 0].item()

    return Step(run)


class Product(torch.autograd.Function):
    """values, as a CSR matrix, times x.T. PyTorch's own gradient of the matrix is dense: 88 GB of zeros."""

    @staticmethod
    def forward(ctx, values, x, rows, columns, shape):
        matrix = torch.sparse_csr_tensor(rows, columns, values, shape)
        ctx.matrix, ctx.x = matrix, x
        return matrix @ x.T

    @staticmethod
    def backward(ctx, upstream):
        of_values = torch.sparse.sampled_addmm(ctx.matrix, upstream, ctx.x, beta=0.0).values()
        return of_values, (ctx.matrix.t() @ upstream).T, None, None, None


def train(config, data):
    """Return the gradient of the weights at the connections alone, by `torch.sparse.sampled_addmm`."""
    rows, columns, values, shape = _matrix(config)
    values.requires_grad_()
    bias = torch.zeros(config["labels"], 1, requires_grad=True)
    optimizer = torch.optim.Adam([values, bias], config["lr"], eps=1e-7)
    hidden = [x.requires_grad_() for x in _hidden(data)]
    targets = torch.from_numpy(load(data, "targets").astype(np.int64))

    def run(i):
        x, y = hidden[i % len(hidden)], targets[i % len(targets)]
        x.grad = None
        optimizer.zero_grad(set_to_none=True)
        logits = Product.apply(values, x, rows, columns, shape) + bias
        of_labels = logits.T.gather(1, y)
        terms = torch.relu(1 - of_labels).square() - torch.relu(1 + of_labels).square()
        loss = (torch.relu(1 + logits).square().sum() + terms.sum()) / len(x)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Step(run)
