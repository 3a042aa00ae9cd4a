"""PyTorch's embeddings, and FBGEMM's where it is installed, on the sizes of our benches."""

import torch

DIM, BAG, TABLES = 128, 8, 10
ADAGRAD_EPSILON = 1e-7


def power_law(n, rows, power, generator, spread):
    """Return ids of a power law over [0, rows), drawn as the C++ benches draw them."""
    top = (rows + 1.0) ** (1.0 - power)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    ids = (((top - 1.0) * u + 1.0) ** (1.0 / (1.0 - power))).long().sub(1).clamp(0, rows - 1)
    return (ids * 2_654_435_761) % rows if spread else ids


def ids_of(kind, n, rows, generator):
    """Return power-law (spread over the table), uniform, or tables: of TABLES, the frequent rows of each
    first.
    """
    if kind == "uniform":
        return torch.randint(rows, (n,), generator=generator)
    if kind == "power-law":
        return power_law(n, rows, 1.05, generator, True)
    each, of_each = rows // TABLES, n // TABLES
    parts = [power_law(of_each, each, 1.05, generator, False) + t * each for t in range(TABLES)]
    return torch.cat(parts)


class TorchTable:
    """One table under EmbeddingBag or Embedding with sparse gradients."""

    library = "PyTorch EmbeddingBag"

    def __init__(self, rows, bag, device):
        self.optimizers = {
            "SGD": lambda p: torch.optim.SGD(p, lr=1e-3),
            "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3, eps=ADAGRAD_EPSILON),
            "LazyAdam": lambda p: torch.optim.SparseAdam(p, lr=1e-3),
        }
        if bag > 1:
            self._layer = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True, device=device)
        else:
            self._layer = torch.nn.Embedding(rows, DIM, sparse=True, device=device)
            self.library = "PyTorch Embedding"
        self._bag = bag
        with torch.no_grad():
            self._layer.weight.uniform_(-0.1, 0.1)

    def shaped(self, ids):
        return ids.view(-1, self._bag) if self._bag > 1 else ids

    def train_with(self, name):
        self._optimizer = self.optimizers[name](self._layer.parameters())

    def lookup(self, ids):
        with torch.no_grad():
            return self._layer(ids)

    def step(self, ids, gradient):
        self._optimizer.zero_grad(set_to_none=True)
        self._layer(ids).backward(gradient)
        self._optimizer.step()


class FbgemmTable:
    """One table of FBGEMM's table-batched embedding. Its backward pass updates the rows."""

    library = "FBGEMM"

    def __init__(self, rows, bag, device):
        from fbgemm_gpu import split_embedding_configs as configs
        from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training

        kinds = configs.EmbOptimType
        self.optimizers = {
            "SGD": kinds.EXACT_SGD,
            "Adagrad": kinds.EXACT_ADAGRAD,
            "LazyAdam": kinds.ADAM,
        }
        self._make = lambda kind: training.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, DIM, common.EmbeddingLocation.DEVICE, training.ComputeDevice.CUDA)],
            optimizer=kind,
            learning_rate=1e-3,
            eps=ADAGRAD_EPSILON,
            pooling_mode=common.PoolingMode.SUM if bag > 1 else common.PoolingMode.NONE,
            device=torch.device(device),
        )
        self._bag, self._device = bag, device
        self.train_with("SGD")

    def shaped(self, ids):
        return ids, torch.arange(0, len(ids) + 1, self._bag, device=self._device)

    def train_with(self, name):
        self._layer = None  # its memory is needed
        self._layer = self._make(self.optimizers[name])

    def lookup(self, ids):
        with torch.no_grad():
            return self._layer(*ids)

    def step(self, ids, gradient):
        self._layer(*ids).backward(gradient)
