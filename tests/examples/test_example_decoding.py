"""Beam search and sampling of the language model's example, against all sentences of a small language."""

import importlib.util
import itertools
import pathlib

import keras
import numpy as np

import keras_largeout as kl

_path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "_decoding.py"
_spec = importlib.util.spec_from_file_location("_decoding", _path)
decoding = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(decoding)

WORDS, STEPS, LENGTH, END = 6, 5, 3, 2


def _model():
    keras.utils.set_random_seed(3)
    tokens = keras.Input((None,), dtype="int32")
    x = kl.layers.ShardedEmbedding(
        WORDS, 8, mask_zero=True, embeddings_initializer=keras.initializers.RandomNormal(stddev=2.0)
    )(tokens)
    x = keras.layers.GRU(8, return_sequences=True)(x)
    head = kl.layers.HierarchicalSoftmax(WORDS, tree=kl.trees.balanced(WORDS, arity=2))
    model = kl.Model(tokens, head(x))
    for variable in head.trainable_variables:
        variable.assign(np.random.default_rng(1).normal(0, 2, variable.shape))
    return model, head


def _all_sentences(model, head, context):
    """Every continuation of `LENGTH` words, or shorter up to `END`, with its log-probability."""
    words = np.array(list(itertools.product(range(WORDS), repeat=LENGTH)), np.int32)
    texts = np.concatenate([np.tile(np.array(context, np.int32), (len(words), 1)), words], axis=1)
    scores = []
    for at in range(len(context), texts.shape[1]):
        hidden = model.predict(texts[:, max(0, at - STEPS) : at], verbose=0)[:, -1]
        scores.append(head.log_prob(hidden, texts[:, at]).numpy())
    found = {}
    for sentence, score in zip(words.tolist(), np.transpose(scores)):
        length = sentence.index(END) + 1 if END in sentence else LENGTH
        found[tuple(sentence[:length])] = score[:length].sum()
    return found


def test_beam_search_finds_the_best_sentences():
    model, head = _model()
    context = [4, 3, 1, 5]  # the window becomes full, then moves
    truth = {w: s for w, s in _all_sentences(model, head, context).items() if 0 not in w}
    best = sorted(truth, key=lambda words: -truth[words])[:8]
    assert any(len(words) < LENGTH for words in best)
    padded = np.pad(np.array(context, np.int32), (0, STEPS - len(context)))
    predictor = _Predictor(head.predictor(model, k=WORDS, position="last"))
    found = decoding.beam_search(predictor, padded, LENGTH, beams=WORDS**2, end=END)
    assert [tuple(words) for _, words in found[:8]] == best
    np.testing.assert_allclose([score for score, _ in found[:8]], [truth[w] for w in best], rtol=1e-5)


class _Predictor:
    """Takes no text without words, and none with padding among them: cuDNN's GRU does not either."""

    def __init__(self, predictor):
        self._predictor = predictor

    def predict(self, windows, verbose):
        assert (windows[:, 0] != 0).all() and (np.diff((windows == 0).astype(int), axis=1) >= 0).all()
        return self._predictor.predict(windows, verbose=verbose)


def test_sampled_text_ends_where_the_text_does():
    model, head = _model()
    context = np.array([4, 3, 1, 5, 0], np.int32)
    texts = [decoding.sample_text(model, head, context, 4, end=END, seed=seed) for seed in range(12)]
    assert len(set(map(tuple, texts))) > 1
    for words in texts:
        assert 0 not in words and END not in words[:-1] and (len(words) == 4 or words[-1] == END)
    # At a temperature near zero it is what the model thinks most probable, word by word.
    greedy = decoding.beam_search(head.predictor(model, k=1, position="last"), context, 4, beams=1, end=END)
    assert decoding.sample_text(model, head, context, 4, end=END, temperature=1e-4) == greedy[0][1]
