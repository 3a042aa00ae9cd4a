"""PyTorch's output layers with torch.optim.SGD: nn.Linear + cross_entropy, and AdaptiveLogSoftmaxWithLoss."""

import torch

from benchmarks._data import load
from benchmarks._step import Step


def _train_step(config, data, module, loss_of):
    optimizer = torch.optim.SGD(module.parameters(), config["lr"])
    hidden = [torch.from_numpy(x).requires_grad_() for x in load(data, "hidden")]
    targets = torch.from_numpy(load(data, "targets"))

    def run(i):
        x = hidden[i % len(hidden)]
        x.grad = None
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, targets[i % len(targets)])
        loss.backward()
        optimizer.step()
        return loss.item()

    return Step(run, {"parameters": sum(p.numel() for p in module.parameters())})


def full(config, data):
    layer = torch.nn.Linear(config["dim"], config["classes"])

    def loss_of(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=config.get("bfloat16", False)):
            return torch.nn.functional.cross_entropy(layer(x), y)

    return _train_step(config, data, layer, loss_of)


def adaptive(config, data):
    """Return the adaptive softmax of Grave et al. 2017.

    Its tail clusters have the widths dim / 4, / 16, ...: fewer weights than ours.
    """
    layer = torch.nn.AdaptiveLogSoftmaxWithLoss(config["dim"], config["classes"], config["cutoffs"])
    return _train_step(config, data, layer, lambda x, y: layer(x, y).loss)
