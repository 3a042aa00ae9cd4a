"""The reference of `full_softmax` on NumPy arrays, in float64, with all logits at once."""

import numpy as np


def full_softmax_reference(hidden, targets, table, bias=None, skip_target=False, upstream=None):
    """Return the terms of `full_softmax_terms`, and the gradients of a weighted sum of them.

    Args:
        hidden: `[tokens, dim]`.
        targets: integers `[tokens]`, -1: none.
        table: `[classes, dim]`.
        bias: `None`, or `[classes]`.
        skip_target: whether the class of the target is left out.
        upstream: the gradients of `lse`, `ce` and `sum`, `[tokens]` each; `None` for ones.

    Returns:
        `(lse, ce, sum)`, and a dict of gradients: `hidden`, `table` and `bias`.

    Raises:
        IndexError: a target that is no class.
    """
    hidden, table = np.asarray(hidden).astype(np.float64), np.asarray(table).astype(np.float64)
    tokens, classes = len(hidden), len(table)
    bad = [t for t, y in enumerate(targets) if not -1 <= y < classes]
    if bad:
        where = f"{targets[bad[0]]} at position {bad[0]}"
        raise IndexError(f"`targets` must be in [0, {classes}), or -1. Received: {where}")
    logits = hidden @ table.T + (0.0 if bias is None else np.asarray(bias).astype(np.float64))
    chosen = np.zeros((tokens, classes), bool)
    aimed = np.asarray(targets) >= 0
    chosen[aimed, np.asarray(targets)[aimed]] = True
    counted = ~chosen if skip_target else np.ones_like(chosen)
    if skip_target:
        aimed = np.zeros_like(aimed)
    with np.errstate(divide="ignore", invalid="ignore"):
        high = np.max(np.where(counted, logits, -np.inf), axis=1, initial=-np.inf)
        high = np.where(np.isfinite(high), high, 0.0)
        exps = np.where(counted, np.exp(logits - high[:, None]), 0.0)
        lse = high + np.log(exps.sum(axis=1))
        probs = np.divide(exps, exps.sum(axis=1)[:, None], out=np.zeros_like(exps), where=counted)
    picked = np.where(chosen, logits, 0.0).sum(axis=1)
    ce = np.where(aimed, lse - picked, 0.0)
    total = np.zeros(tokens) if skip_target else logits.sum(axis=1)
    of_lse, of_ce, of_sum = (np.ones((3, tokens)) if upstream is None else np.asarray(upstream, np.float64))[
        :, :, None
    ]
    of_ce = np.where(aimed[:, None], of_ce, 0.0)
    of_sum = np.zeros_like(of_sum) if skip_target else of_sum
    d_logits = np.where(counted, (of_lse + of_ce) * probs - of_ce * chosen + of_sum, 0.0)
    gradients = {"hidden": d_logits @ table, "table": d_logits.T @ hidden, "bias": d_logits.sum(axis=0)}
    return (lse, ce, total), gradients
