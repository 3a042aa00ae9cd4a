"""The model of `examples/language_model.py` on drawn words: embedding, GRU, tree softmax, LazyAdam."""

import numpy as np

from benchmarks import _data
from benchmarks._harness import Case
from benchmarks._step import Step
from benchmarks.embedding import traffic

DIM, UNITS, ZIPF, BATCHES = 128, 256, 1.0, 16
SIZES = {False: (100_000, 64, 50), True: (2000, 8, 10)}  # quick: words, windows in a batch, words in each
OURS = "ours"


def make_cases(quick):
    words, batch, steps = SIZES[quick]
    config = {"words": words, "batch": batch, "steps": steps}
    target = "benchmarks.profile.language_model:step"
    problem = f"{words:,} words, {batch} x {steps}"
    return [Case(problem, OURS, target, config, needs=("keras_largeout",), ours=True)]


def with_data(quick, folder, cases):
    words, batch, steps = SIZES[quick]
    ranks = _data.zipf_ranks(words - 1, ZIPF, (BATCHES, batch, steps + 1), seed=1) + 1  # 0 is padding
    data = _data.save(folder, words=ranks.astype(np.int32))
    return [case.but(data=data) for case in cases]


def step(config, data):
    """Return a step as `fit` takes it, with its dataset and its metric, without its callbacks."""
    import keras
    import tensorflow as tf

    import keras_largeout as kl

    words, tokens = config["words"], config["batch"] * config["steps"]
    counts = _data.zipf_counts(words, ZIPF)
    tree = kl.trees.head_tail(counts, dim=UNITS, tokens=tokens)
    head = kl.layers.HierarchicalSoftmax(words, counts=counts, tree=tree)
    inputs = keras.Input((None,), dtype="int32")
    embedding, gru = kl.layers.ShardedEmbedding(words, DIM, mask_zero=True), keras.layers.GRU
    model = kl.Model(inputs, head(gru(UNITS, return_sequences=True, name="gru")(embedding(inputs))))
    model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss)
    model.make_train_function()
    rows = _data.load(data, "words")
    batches = tf.data.Dataset.from_tensor_slices((rows[:, :, :-1], rows[:, :, 1:])).repeat().prefetch(4)
    iterator = iter(batches)

    def run(i):
        return float(model.train_function(iterator)["loss"])

    layers = {embedding.name: "embedding", "gru": "GRU", head.name: "head", "compile_loss": "head"}
    layers[model.optimizer.name] = "optimizer"
    return Step(run, {**_notes(rows, tree.cost(counts, UNITS, tokens), tokens), "layers": layers})


def _notes(rows, cost, tokens):
    """Return bytes and flops of a step. LazyAdam reads and writes two slots of each row."""
    unique = float(np.mean([len(np.unique(batch[:, :-1])) for batch in rows]))
    embedding = traffic(unique, DIM, tokens, tokens, slots=2)["bytes"]
    slots = 4 * 4 * UNITS * cost.rows_touched
    gru = 3 * 2 * tokens * 3 * UNITS * (DIM + UNITS)
    tree = 2 * cost.multiply_adds * tokens
    return {"bytes": embedding + cost.bytes_touched + slots, "flops": gru + tree}
