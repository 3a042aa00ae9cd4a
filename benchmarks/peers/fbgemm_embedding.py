"""FBGEMM's table-batched bags on the CPU: the update happens in the backward pass. It has no Adam there."""

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks._data import load
from benchmarks._step import Step

OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def step(config, data):
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(config["rows"], config["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OPTIMIZERS[config["optimizer"]],
        learning_rate=config["lr"],
        eps=1e-7,
        pooling_mode=PoolingMode.SUM,
        device=torch.device("cpu"),
    )
    with torch.no_grad():
        for table in bags.split_embedding_weights():
            table.fill_(config["init"])
        for slots in bags.split_optimizer_states():
            for slot in slots:
                slot.fill_(0.1)
    grad = torch.from_numpy(load(data, "grad"))
    ids = torch.from_numpy(load(data, "ids"))
    _, batch, combined = ids.shape
    flat = ids.reshape(len(ids), -1)
    offsets = torch.arange(0, batch * combined + 1, combined)

    def run(i):
        loss = (bags(flat[i % len(flat)], offsets) * grad).sum()
        loss.backward()
        return loss.item()

    return Step(run)
