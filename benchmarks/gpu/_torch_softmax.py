"""Cross-entropy over many classes in PyTorch, the way of Cut Cross-Entropy: no logits are kept."""

import torch


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of hidden @ weight.T + bias, a block of classes after the other.

    After Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models" (2024), in plain PyTorch: the
    forward pass keeps a running logsumexp; the backward pass computes the logits of a block again and turns
    them into gradients at once. Products are of the type of hidden and weight, the rest is float32.
    """

    @staticmethod
    def _logits(hidden, weight, bias, block):
        return (hidden @ weight[block].T).float() + bias[block]

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, size):
        lse = torch.full((hidden.shape[0],), -torch.inf, device=hidden.device)
        for at in range(0, weight.shape[0], size):
            logits = ChunkedCrossEntropy._logits(hidden, weight, bias, slice(at, at + size))
            lse = torch.logaddexp(lse, logits.logsumexp(1))
        of_target = (hidden.float() * weight[targets].float()).sum(1) + bias[targets]
        ctx.save_for_backward(hidden, weight, bias, targets, lse)
        ctx.size = size
        return (lse - of_target).mean()

    @staticmethod
    def backward(ctx, grad):
        hidden, weight, bias, targets, lse = ctx.saved_tensors
        scale = grad / hidden.shape[0]
        d_hidden = torch.zeros(hidden.shape, device=hidden.device)
        d_weight, d_bias = torch.empty_like(weight), torch.empty_like(bias)
        for at in range(0, weight.shape[0], ctx.size):
            block = slice(at, at + ctx.size)
            of_logits = ChunkedCrossEntropy._logits(hidden, weight, bias, block).sub_(lse[:, None]).exp_()
            width = of_logits.shape[1]
            inside = (targets >= at) & (targets < at + width)  # no host waits for how many
            column = (targets - at).clamp_(0, width - 1)[:, None]
            of_logits.scatter_add_(1, column, -inside.float()[:, None]).mul_(scale)
            d_bias[block] = of_logits.sum(0)
            of_logits = of_logits.to(weight.dtype)
            d_weight[block] = of_logits.T @ hidden
            d_hidden += (of_logits @ weight[block]).float()
        return d_hidden.to(hidden.dtype), d_weight, d_bias, None, None


def chunked(hidden, weight, bias, targets, size=8192):
    return ChunkedCrossEntropy.apply(hidden, weight, bias, targets, size)


def whole(hidden, weight, bias, targets):
    """Return what `torch.compile` gets, and what runs as it stands: all logits are in memory."""
    logits = (hidden @ weight.T).float() + bias
    return torch.nn.functional.cross_entropy(logits, targets)
