"""The same neural model in PyTorch: sparse tables in CPU memory and SparseAdam, Adam for the dense layers."""

import torch


def train(rows, dim, batches, positive, after_step):
    """Trains until `after_step()` is true. The dense layers are on the GPU where there is one.

    Args:
        rows, dim: int, of either table.
        batches: int32 `[2, batches, pairs]`, users and items.
        positive: int, the first so many pairs of a batch have the label 1.
        after_step: function without arguments.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tables = [torch.nn.Embedding(rows, dim, sparse=True) for _ in batches]
    narrow = max(1, dim // 2)
    layers = [torch.nn.Linear(2 * dim, dim), torch.nn.ReLU(), torch.nn.Linear(dim, narrow), torch.nn.ReLU()]
    dense = torch.nn.Sequential(*layers, torch.nn.Linear(narrow, 1)).to(device)
    of_tables = torch.optim.SparseAdam([table.weight for table in tables], 2e-3)
    optimizers = of_tables, torch.optim.Adam(dense.parameters(), 2e-3)
    label = torch.zeros(batches.shape[2], 1, device=device)
    label[:positive] = 1
    ids, step = torch.from_numpy(batches).long(), 0
    while True:
        vectors = [table(some[step % len(some)]).to(device) for table, some in zip(tables, ids)]
        score = dense(torch.cat(vectors, dim=-1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, label)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        loss.item()
        step += 1
        if after_step():
            return
