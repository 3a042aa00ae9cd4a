"""A small model for scripts on a cluster, and what they said."""

import json
import re

# A small model whose first and last layers are tables over the parameter servers.
MODEL = """
import json, os, sys, threading, time
import keras
import numpy as np
import tensorflow as tf
import keras_largeout as kl

WORDS = 500
STRATEGY = kl.distribute.strategy()

def make(optimizer=kl.optimizers.LazyAdam, rate=1e-2, **kwargs):
    keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        tokens = keras.Input((None,), dtype="int32")
        x = kl.layers.ShardedEmbedding(WORDS, 16, mask_zero=True, placement="permutation")(tokens)
        x = keras.layers.Dense(16, activation="tanh")(x)
        head = kl.layers.HierarchicalSoftmax(WORDS, counts=np.arange(WORDS, 0, -1))
        model = kl.Model(tokens, head(x))
        model.compile(optimizer(rate), loss=head.loss, **kwargs)
    return model

def arrays(batches, batch=8, seed=0):
    tokens = np.random.default_rng(seed).integers(0, WORDS, (batches * batch, 5)).astype("int32")
    return tokens, np.where(tokens, (tokens * 3 + 1) % WORDS, 0).astype("int32")

def data(batches, batch=8, seed=0):
    return tf.data.Dataset.from_tensor_slices(arrays(batches, batch, seed)).batch(batch)

def say(name, value):
    print(f">> {name}: {json.dumps(value, default=float)}", flush=True)
"""


def said(script, name):
    """What the script said of `name`, the last time."""
    found = re.findall(rf"^>> {name}: (.*)$", script.text, re.M)
    assert found, f"{name!r} was not said:\n{script.text}"
    return json.loads(found[-1])


def ended(script):
    assert script.ended() == 0, script.text
    return script
