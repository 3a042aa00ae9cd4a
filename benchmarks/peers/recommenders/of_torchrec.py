"""TorchRec in the models of `of_torch`: FBGEMM's kernels, updates in the backward pass."""

import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.peers.recommenders import of_torch as models


class Lookups(torch.nn.Module):
    """`FusedEmbeddingBagCollection` of bags of one id. Ids `[batch, tables]` to vectors."""

    def __init__(self, rows, dim, lr):
        super().__init__()
        self.keys = [f"c{i}" for i in range(len(rows))]
        tables = [
            EmbeddingBagConfig(name=k, num_embeddings=n, embedding_dim=dim, feature_names=[k])
            for k, n in zip(self.keys, rows)
        ]
        self.tables = FusedEmbeddingBagCollection(
            tables, torch.optim.Adagrad, {"lr": lr, "eps": 1e-7}, device=torch.device("cpu")
        )

    def forward(self, ids):
        values = ids.T.reshape(-1)
        bags = KeyedJaggedTensor(self.keys, values, lengths=torch.ones_like(values, dtype=torch.int32))
        found = self.tables(bags)
        return [found[key] for key in self.keys]


def two_tower(config, data):
    return models.two_tower(config, data, Lookups([config["rows"]] * 2, config["dim"], config["lr"]))


def ranking(config, data):
    return models.ranking(config, data, Lookups(config["rows"], config["dim"], config["lr"]))
