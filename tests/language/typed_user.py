"""A user's script for mypy, which finds no error in it: nothing here runs.

A line that is wrong says so by `type: ignore`. If mypy did not notice, that comment would be an error.
"""

from typing import Any

import keras
import numpy as np
from typing_extensions import assert_type

import keras_largeout as kl


def train(tokens: Any, counts: np.ndarray, dataset: Any) -> None:
    tree = kl.trees.head_tail(counts, dim=256)
    assert_type(tree, kl.trees.Tree)
    assert_type(tree.num_rows, int)
    assert_type(tree.path(3), tuple[list[int], list[int]])
    words = kl.layers.ShardedEmbedding(100_000, 256, optimizer="adagrad", placement="range")
    head = kl.layers.HierarchicalSoftmax(
        100_000, counts=counts, tree=tree, optimizer=keras.optimizers.SGD(0.1)
    )
    model = kl.Model(tokens, head(words(tokens)))
    model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss, metrics=[kl.metrics.TopKAccuracy(5)])
    balance = kl.callbacks.LoadBalance(warn_above=None)
    model.fit(dataset, callbacks=[balance, kl.callbacks.FeatureReport()])
    assert_type(kl.distribute.rebalance(model, balance.plan()), list[str])
    head.predictor(model, k=10, position="last")
    kl.export_saved_model(model, "export/1", overwrite=False)
    with kl.distribute.shared_folder() as folder, kl.storage(folder, overwrite=True), kl.stock_ops():
        assert_type(folder, str)
    assert_type(kl.layers.DynamicVocabulary(1000).vocabulary_size(), int)
    assert_type(kl.ops.build_info(), dict[str, str])


def plan() -> kl.distribute.Plan:
    specs = [kl.distribute.TableSpec("users", rows=10_000, dim=64, slots=2)]
    plan = kl.distribute.plan(specs, [kl.distribute.Device("a"), kl.distribute.Device("b", memory=10**9)])
    assert_type(plan.imbalance, float | None)
    assert_type(plan.placements, dict[str, kl.distribute.Placement])
    kl.layers.ShardedEmbedding(10_000, 64, placement=plan.placements["users"].with_hot_rows([0, 1]))
    return kl.distribute.Plan.load("plan.json")


def read() -> None:
    rows = kl.datasets.ExtremeClassification("train.txt.gz").load()
    assert_type(rows, kl.datasets.LabeledRows)
    assert_type(len(rows.take([0, 1])), int)
    kl.datasets.TabularFiles(["a.csv"], categories=["user"], target="clicked").dataset(64, shard=(0, 2))
    kl.datasets.TabularFiles("a.parquet", ids=["user"], lists=["seen"]).dataset(64, seed=0, skip=3)


def mistakes(model: kl.Model) -> None:
    kl.layers.ShardedEmbedding("1000", 64)  # type: ignore[arg-type]
    kl.layers.ShardedEmbedding(1000, 64, combiner=1)  # type: ignore[arg-type]
    kl.layers.CategoryHashing(100, crosses=[("a", 1)])  # type: ignore[list-item]
    kl.layers.TableConfig("users", 100, 8, cache_rows="all")  # type: ignore[arg-type]
    kl.layers.SampledSoftmax(1000)  # type: ignore[call-arg]
    kl.callbacks.Rewire("head")  # type: ignore[arg-type]
    kl.metrics.RecallAtK("10")  # type: ignore[arg-type]
    kl.trees.huffman([1, 2, 3], arity="2")  # type: ignore[arg-type]
    kl.distribute.strategy("8")  # type: ignore[arg-type]
    kl.resize(model, {"items": "many"})  # type: ignore[dict-item]
    kl.distribute.Placement.by_modulo("8", devices=2)  # type: ignore[arg-type]
