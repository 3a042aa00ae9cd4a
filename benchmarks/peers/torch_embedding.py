"""torch.nn.EmbeddingBag(sparse=True, mode="sum") with torch's own sparse optimizers."""

import torch

from benchmarks._data import load
from benchmarks._step import Step

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr, initial_accumulator_value=0.1, eps=1e-7),
    "adam": lambda p, lr: torch.optim.SparseAdam(p, lr, eps=1e-7),
}


def step(config, data, bag=None):
    """Return `bag`: an `EmbeddingBag` with weights; None: a new one in memory."""
    if bag is None:
        bag = torch.nn.EmbeddingBag(config["rows"], config["dim"], mode="sum", sparse=True)
        torch.nn.init.constant_(bag.weight, config["init"])
    optimizer = OPTIMIZERS[config["optimizer"]](list(bag.parameters()), config["lr"])
    grad = torch.from_numpy(load(data, "grad"))
    ids = torch.from_numpy(load(data, "ids"))

    def run(i):
        optimizer.zero_grad(set_to_none=True)
        loss = (bag(ids[i % len(ids)]) * grad).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Step(run)
