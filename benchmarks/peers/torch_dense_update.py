"""torch.optim's fused optimizers on one dense weight."""

import torch

from benchmarks._data import load
from benchmarks._step import Step

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-3, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-3, initial_accumulator_value=0.1, eps=1e-7, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-3, eps=1e-7, fused=True),
}


def step(config, data):
    weight = torch.nn.Parameter(torch.zeros(config["shape"]))
    weight.grad = torch.from_numpy(load(data, "grad").copy())
    optimizer = OPTIMIZERS[config["optimizer"]]([weight])

    def run(i):
        optimizer.step()
        return weight[0, 0].item()

    return Step(run)
