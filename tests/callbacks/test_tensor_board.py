"""`kl.callbacks.TensorBoard`: what the projector reads, and of which weights there are histograms."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl

CLASSES = 30


class _Summaries:
    """In the place of `tf.summary`, which needs its own package."""

    def __init__(self):
        self.histograms = {}

    def create_file_writer(self, path):
        return contextlib.nullcontext(self)

    def histogram(self, name, values, step):
        self.histograms[name, step] = np.asarray(values)

    def scalar(self, name, value, step):
        return None

    graph = record_if = trace_on = scalar


class _Writer:
    def as_default(self, step=None):
        return contextlib.nullcontext()

    def close(self):
        return None

    flush = close


def trained(board, monkeypatch, devices=1):
    summaries = _Summaries()
    summaries.create_file_writer = lambda path: _Writer()
    monkeypatch.setattr(kl.callbacks.TensorBoard, "summary", summaries)
    tables = {name: kl.layers.TableConfig(name, 7, 3) for name in "ab"}
    with strategy_of(devices).scope():
        ids = keras.Input((4,), dtype="int32")
        words = kl.layers.ShardedEmbedding(CLASSES, 3, placement="permutation", name="words")(ids)
        plain = keras.layers.Embedding(CLASSES, 2, name="plain")(ids)
        features = {
            name: kl.layers.FeatureConfig(name, table, combiner=None) for name, table in tables.items()
        }
        several = kl.layers.DistributedEmbedding(features, name="several")
        x = keras.layers.Concatenate()([words, plain, *several(dict.fromkeys(features, ids)).values()])
        head = kl.layers.HierarchicalSoftmax(CLASSES, counts=np.ones(CLASSES), name="next")
        model = kl.Model(ids, head(x))
        model.compile(kl.optimizers.LazyAdam(), head.loss)
    ids = np.random.default_rng(0).integers(0, 7, (8, 4)).astype("int32")
    model.fit(ids, ids, epochs=2, verbose=0, callbacks=[board])
    return model, summaries.histograms


@pytest.mark.parametrize("devices", [1, 2])
def test_projector_and_histograms(tmp_path, monkeypatch, devices):
    names = [f"word {i}" for i in range(CLASSES)]
    names[1] = "a\tb\n"
    board = kl.callbacks.TensorBoard(
        tmp_path, 1, embeddings_freq=1, embeddings_metadata={"words": names, "plain": "p.tsv"}, rows=20
    )
    model, histograms = trained(board, monkeypatch, devices)
    config = (tmp_path / "projector_config.pbtxt").read_text()
    entries = [entry.split() for entry in config.split("embeddings {")[1:]]
    assert [entry[1] for entry in entries] == ['"words"', '"plain"', '"several/a"', '"several/b"']
    assert entries[0][3:6] == ['"words.tsv"', "metadata_path:", '"words.metadata.tsv"']
    assert entries[1][5] == '"p.tsv"' and entries[2][3] == '"several_a.tsv"'
    words = np.loadtxt(tmp_path / "words.tsv", delimiter="\t")
    np.testing.assert_allclose(words, model.get_layer("words").table.numpy()[:20], rtol=1e-5)
    np.testing.assert_allclose(
        np.loadtxt(tmp_path / "plain.tsv"), model.get_layer("plain").embeddings.numpy()[:20], rtol=1e-5
    )
    assert np.loadtxt(tmp_path / "several_b.tsv").shape == (7, 3)
    lines = (tmp_path / "words.metadata.tsv").read_text().splitlines()
    assert lines == ["word 0", "a b", *names[2:20]]
    drawn = {name for name, epoch in histograms if epoch == 1}
    assert {f"{w.path}/histogram" for w in model.trainable_weights} == drawn  # none of the tree's integers
    assert all(tf.as_dtype(values.dtype).is_floating for values in histograms.values())
    assert max(len(values) for values in histograms.values()) == 20


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="`write_images` must be False"):
        kl.callbacks.TensorBoard(write_images=True)
    with pytest.raises(ValueError, match="`rows` must be a positive integer"):
        kl.callbacks.TensorBoard(rows=0)
    board = kl.callbacks.TensorBoard(tmp_path, embeddings_freq=1, embeddings_metadata={"wrods": []})
    with pytest.raises(ValueError, match=r"of embeddings of the model, \['plain', .*Received: \['wrods'\]"):
        trained(board, monkeypatch)
