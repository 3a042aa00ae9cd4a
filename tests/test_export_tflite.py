"""What is exported is converted by TensorFlow Lite, and runs there without TensorFlow's own ops."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

CLASSES, DIM = 60, 6


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_heads_run_on_tflite(tmp_path):
    ids = keras.Input((5,), dtype="int32", name="ids")
    x = kl.layers.ShardedEmbedding(CLASSES, DIM)(ids)
    x = keras.layers.Dense(DIM, activation="tanh")(keras.layers.Flatten()(x))
    heads = {
        "tree": kl.layers.HierarchicalSoftmax(CLASSES, tree=kl.trees.balanced(CLASSES, arity=4)),
        "full": kl.layers.FullSoftmax(CLASSES),
        "sampled": kl.layers.SampledSoftmax(CLASSES, 5),
        "sparse": kl.layers.SparseOutput(CLASSES, 3, loss="softmax"),
    }
    best = {name: kl.layers.TopK(head, 4)(head(x)) for name, head in heads.items()}
    serving = kl.Model(ids, {f"{name}_{key}": part for name in best for key, part in best[name].items()})
    for head in heads.values():
        for weight in head.trainable_weights:
            weight.assign(keras.random.normal(weight.shape))
    kl.export_saved_model(serving, tmp_path / "export")
    model = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "export")).convert()  # built-in ops alone
    x = np.arange(10, dtype="int32").reshape(2, 5)
    interpreter = tf.lite.Interpreter(model_content=model)
    runner = interpreter.get_signature_runner("serving_default")
    got = runner(ids=x)
    for name, values in serving(x).items():
        np.testing.assert_allclose(got[name], values, rtol=1e-4, err_msg=name)
