"""Two towers and a ranking model of PyTorch, whatever looks the vectors up: also used for TorchRec."""

import itertools

import torch
from torch import nn

from benchmarks._data import load
from benchmarks._step import Step

OPTIMIZERS = {
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr, initial_accumulator_value=0.1, eps=1e-7),
    "adam": lambda p, lr: torch.optim.SparseAdam(p, lr, eps=1e-7),
}


class Lookups(nn.Module):
    """`nn.Embedding(sparse=True)` for each of several tables. Ids `[batch, tables]` to vectors."""

    def __init__(self, rows, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, dim, sparse=True) for n in rows)
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.05, 0.05)

    def forward(self, ids):
        return [table(ids[:, i]) for i, table in enumerate(self.tables)]


class Ranking(nn.Module):
    """DLRM: dot products of all pairs of features."""

    def __init__(self, tables, dim, bottom=(13, 64, 16), top=(128, 64, 1)):
        super().__init__()
        self.bottom = nn.Sequential(*_dense(bottom))
        count = tables + 1
        self.register_buffer("pairs", torch.stack(list(torch.tril_indices(count, count, -1))))
        self.top = nn.Sequential(*_dense((dim + count * (count - 1) // 2, *top))[:-1])  # logits

    def forward(self, dense, vectors):
        below = self.bottom(dense)
        vectors = torch.stack([below, *vectors], dim=1)
        dots = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([below, dots[:, self.pairs[0], self.pairs[1]]], dim=1))


def _dense(widths):
    return [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]


def two_tower(config, data, lookups=None):
    """Return the step of two towers. `lookups`: a module that makes its own updates; None: `Lookups`."""
    ids = torch.stack([torch.from_numpy(load(data, side)) for side in ("user", "item")], dim=-1)
    own, parameters = lookups is not None, []
    if not own:
        lookups = Lookups([config["rows"]] * 2, config["dim"])
        parameters = list(lookups.parameters())
    target = torch.arange(ids.shape[1])

    def loss_of(i):
        user, item = lookups(ids[i % len(ids)])
        return nn.functional.cross_entropy(user @ item.T, target)

    return _step(loss_of, parameters, config)


def ranking(config, data, lookups=None):
    """Return the step of the ranking model. `lookups`: as of `two_tower`."""
    ids, dense, labels = (torch.from_numpy(load(data, name)) for name in ("ids", "numbers", "labels"))
    model = Ranking(len(config["rows"]), config["dim"])
    parameters = list(model.parameters())
    if lookups is None:
        lookups = Lookups(config["rows"], config["dim"])
        parameters += lookups.parameters()

    def loss_of(i):
        i %= len(ids)
        return nn.functional.binary_cross_entropy_with_logits(model(dense[i], lookups(ids[i])), labels[i])

    return _step(loss_of, parameters, config)


def _step(loss_of, parameters, config):
    optimizer = OPTIMIZERS[config["optimizer"]](parameters, config["lr"]) if parameters else None

    def run(i):
        if optimizer:
            optimizer.zero_grad(set_to_none=True)
        loss = loss_of(i)
        loss.backward()
        if optimizer:
            optimizer.step()
        return loss.item()

    return Step(run)
