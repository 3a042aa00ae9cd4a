"""`position="last"`: the last time step that is no padding, also where Keras has lost the mask on its way."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

WORDS, LENGTH, DIM = 20, 5, 8
TOKENS = np.array([[3, 4, 0, 0, 0], [5, 6, 7, 8, 9], [2, 0, 0, 0, 0]], "int32")
LAST = [1, 4, 0]


def add(rows, positions):
    return keras.layers.Add()([positions, rows])


def plus(rows, positions):
    return rows + positions


def ours(rows, _):
    return kl.layers.Positions(LENGTH)(rows)


def model_of(join, embedding=kl.layers.ShardedEmbedding, mask_zero=True):
    tokens = keras.Input((LENGTH,), dtype="int32")
    steps = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    x = join(embedding(WORDS, DIM, mask_zero=mask_zero)(tokens), keras.layers.Embedding(LENGTH, DIM)(steps))
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)])
    head = kl.layers.FullSoftmax(WORDS)
    return kl.Model(tokens, head(keras.layers.Dense(DIM)(x))), head


def best_last(model, head, position="last"):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ids = head.predictor(model, k=4, position=position).predict(TOKENS, verbose=0)["ids"]
    return ids, [str(warning.message) for warning in said if "`position=" in str(warning.message)]


@pytest.mark.parametrize("join", [add, ours])
@pytest.mark.parametrize("embedding", [kl.layers.ShardedEmbedding, keras.layers.Embedding])
def test_the_last_word_that_is_there(join, embedding):
    model, head = model_of(join, embedding)
    ids, said = best_last(model, head)
    np.testing.assert_array_equal(ids, best_last(model, head, "all")[0][range(3), LAST])
    assert not said


def test_of_two_inputs_it_is_the_one_that_attends(tmp_path):
    """The other one's mask is not taken, though it reaches the head and is as long."""
    source, target = (keras.Input((LENGTH,), dtype="int32", name=name) for name in ("source", "target"))
    words = kl.layers.ShardedEmbedding(WORDS, DIM, mask_zero=True)
    steps = keras.layers.Embedding(LENGTH, DIM)(keras.ops.zeros_like(target))
    x = add(words(target), steps)
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 4)(x, words(source))])
    head = kl.layers.FullSoftmax(WORDS)
    model = kl.Model({"source": source, "target": target}, head(x))
    batch = {"source": TOKENS[::-1].copy(), "target": TOKENS}
    predictor = head.predictor(model, k=4, position="last")
    every = head.predictor(model, k=4).predict(batch, verbose=0)["ids"]
    np.testing.assert_array_equal(predictor.predict(batch, verbose=0)["ids"], every[range(3), LAST])
    predictor.save(tmp_path / "p.keras")
    loaded = keras.models.load_model(tmp_path / "p.keras")
    np.testing.assert_array_equal(loaded.predict(batch, verbose=0)["ids"], every[range(3), LAST])


def test_a_warning_where_nobody_knows():
    model, head = model_of(plus)
    ids, said = best_last(model, head)
    np.testing.assert_array_equal(ids, best_last(model, head, "all")[0][:, -1])
    assert "no mask arrives, though 'sharded_embedding" in said[0] and "layers.Positions" in said[0]
    for silent in (best_last(model, head, "all"), best_last(*model_of(plus, mask_zero=False))):
        assert not silent[1]


class Subclassed(keras.Model):
    def __init__(self, keeps):
        super().__init__()
        self.words = kl.layers.ShardedEmbedding(WORDS, DIM, mask_zero=True)
        self.positions = kl.layers.Positions(LENGTH) if keeps else (lambda rows: rows + 1.0)
        self.head = kl.layers.FullSoftmax(WORDS)

    def call(self, tokens):
        return self.head(self.positions(self.words(tokens)))


@pytest.mark.parametrize("keeps", [True, False])
def test_subclassed(keeps):
    model = Subclassed(keeps)
    model(TOKENS)
    ids, said = best_last(model, model.head)
    last = LAST if keeps else [-1, -1, -1]
    np.testing.assert_array_equal(ids, best_last(model, model.head, "all")[0][range(3), last])
    assert bool(said) != keeps


def test_positions():
    layer = kl.layers.Positions(3, initializer="ones")
    np.testing.assert_array_equal(layer(np.zeros((2, 2, 4))), np.ones((2, 2, 4)))
    copy = kl.layers.Positions.from_config(layer.get_config())
    assert copy.length == 3 and isinstance(copy.initializer, keras.initializers.Ones)
    with pytest.raises(ValueError, match=r"`inputs` must have at most length=3 time steps.*\(2, 4, 4\)"):
        layer(np.zeros((2, 4, 4)))
    with pytest.raises(ValueError, match=r"`inputs` must be \[batch, time, dim\]"):
        kl.layers.Positions(3)(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="`length` must be a positive integer"):
        kl.layers.Positions(0)
    any_length = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 4])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="size"):
        any_length(np.zeros((2, 4, 4), "float32"))
