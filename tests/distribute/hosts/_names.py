"""Names that are inputs and targets, on synchronous hosts: run as a script it is one of the hosts."""

import json

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl


def names():
    ids = np.random.default_rng(0).integers(0, 40, (36, 3))
    return tf.strings.as_string(tf.constant(ids[:, :2])), tf.strings.as_string(tf.constant(ids[:, 2]))


def model_of(kind):
    """Return a model that ends in a head with a vocabulary, the head and the vocabulary."""
    keras.utils.set_random_seed(2)
    items = kl.layers.DynamicVocabulary(32, name="items", keep_strings=4)  # fewer than the names
    rows, first = items.vocabulary_size(), keras.initializers.RandomUniform(seed=3)
    inputs = keras.Input((2,), dtype="string")
    table = kl.layers.ShardedEmbedding(
        rows, 8, first, placement="range", combiner="sum", vocabulary=items, name="words"
    )
    if kind == "full":
        head = kl.layers.FullSoftmax(rows, vocabulary=items, kernel_initializer=first)
    else:
        head = kl.layers.SparseOutput(rows, 4, seed=1, vocabulary=items)
    model = kl.Model(inputs, head(table(inputs)))
    model.compile(kl.optimizers.Adagrad(0.1), loss=head.loss, metrics=[kl.metrics.TopKAccuracy(3)])
    return model, head, items


def told(strategy, kind="full"):
    """Return what a training of three steps says."""
    with strategy.scope():
        model, head, items = model_of(kind)
        best = head.predictor(model, k=5)
    x, y = names()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
    history = model.fit(data, epochs=2, verbose=0).history
    said = dict(history)
    said["evaluated"] = model.evaluate(data, verbose=0)
    said["known"] = {str(row): name for row, name in items.get_vocabulary().items()}
    said["best"] = [[name.decode() for name in row] for row in best(x[:4])["ids"].numpy()]
    if strategy.num_replicas_in_sync > 1:
        try:
            best.predict(x[:4], verbose=0)
        except ValueError as error:
            said["not_predicted"] = str(error)
    return said


def main():
    strategy = kl.distribute.strategy()
    said = told(strategy)
    try:
        with strategy.scope():
            model, head, _ = model_of("sparse")
            head.top_k(model(names()[0]), 3)
    except NotImplementedError as error:
        said["refused"] = str(error)
    print("said", json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
