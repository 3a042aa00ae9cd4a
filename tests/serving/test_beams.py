"""Beam search, against all sequences and against a plain search in Python."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

CLASSES, STOP = 4, 3


@pytest.fixture
def table(rng):
    """Return log p of the next class by the last two, float64 `[classes, classes, classes]`."""
    logits = 2 * rng.normal(size=(CLASSES, CLASSES, CLASSES))
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def step_of(table, k):
    """Return a step that looks up `table`."""

    def step(sequences):
        scores, ids = tf.math.top_k(tf.gather_nd(tf.constant(table, tf.float32), sequences[:, -2:]), k)
        return {"ids": ids, "scores": scores}

    return step


def divided(score, steps, length_penalty):
    return score / ((5 + steps) / 6) ** length_penalty


def all_sequences(table, prompt, max_steps, stop, length_penalty):
    """Return every sequence that ends, or is as long as may be, and its score; the best first."""
    found = {}
    for classes in itertools.product(range(CLASSES), repeat=max_steps):
        score, last, new = 0.0, tuple(prompt[-2:]), []
        for c in classes:
            score, last, new = score + table[(*last, c)], (last[1], c), [*new, c]
            if c == stop:
                break
        found[tuple(new)] = divided(score, len(new), length_penalty)
    return sorted(found.items(), key=lambda pair: -pair[1])


def plain_search(table, prompt, max_steps, beams, stop, length_penalty):
    """Return what a beam search finds, written with lists and without stopping early."""
    going, ended = [((), 0.0)], []
    for _ in range(max_steps):
        longer = []
        for new, score in going:
            last = (*prompt, *new)[-2:]
            longer += [((*new, c), score + table[(*last, c)]) for c in range(CLASSES)]
        longer.sort(key=lambda pair: -pair[1])
        ended += [(new, divided(s, len(new), length_penalty)) for new, s in longer if new[-1] == stop]
        going = [pair for pair in longer if pair[0][-1] != stop][:beams]
    ended += [(new, divided(s, len(new), length_penalty)) for new, s in going]
    return sorted(ended, key=lambda pair: -pair[1])[:beams]


def check(found, expected, max_steps):
    for ids, scores, want in zip(found["ids"].numpy(), found["scores"].numpy(), expected, strict=True):
        padded = [[*new, *[-1] * (max_steps - len(new))] for new, _ in want]
        np.testing.assert_array_equal(ids[: len(want)], padded)
        np.testing.assert_allclose(scores[: len(want)], [score for _, score in want], rtol=1e-5)
        assert (ids[len(want) :] == -1).all() and (scores[len(want) :] == -np.inf).all()


@pytest.mark.parametrize("length_penalty", [0.0, 1.5])
@pytest.mark.parametrize("stop", [STOP, None])
def test_a_beam_as_wide_as_all_finds_the_best_of_all(table, stop, length_penalty):
    prompts, max_steps = np.array([[2, 0, 1], [0, 2, 2], [1, 1, 0]]), 3
    options = {"stop_token_ids": stop, "length_penalty": length_penalty, "num_beams": 90}
    found = kl.serving.beam_search(step_of(table, CLASSES), prompts, max_steps, **options)
    want = [all_sequences(table, prompt, max_steps, stop, length_penalty) for prompt in prompts]
    assert {len(sequences) for sequences in want} == {40 if stop else 64}
    check(found, want, max_steps)


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_narrow_beams_eagerly_and_in_graphs(table, beams, length_penalty):
    prompts, max_steps = np.array([[2, 0], [0, 2], [1, 1], [0, 0]], "int32"), 6
    options = {"num_beams": beams, "stop_token_ids": [STOP], "length_penalty": length_penalty}
    want = [plain_search(table, prompt, max_steps, beams, STOP, length_penalty) for prompt in prompts]

    def search(prompts):
        return kl.serving.beam_search(step_of(table, min(beams + 1, CLASSES)), prompts, max_steps, **options)

    check(search(prompts), want, max_steps)
    check(tf.function(search)(tf.constant(prompts)), want, max_steps)
    untold = tf.function(search, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    check(untold(prompts), want, max_steps)


def test_it_stops_when_nothing_can_become_better(rng):
    calls = []

    def step(sequences):
        calls.append(sequences.shape)
        scores = tf.tile(tf.math.log([[0.9, 0.06, 0.04]]), [len(sequences), 1])
        return {"ids": tf.tile([[7, 5, 3]], [len(sequences), 1]), "scores": scores}

    found = kl.serving.beam_search(step, [[1], [2]], 50, num_beams=2, stop_token_ids=(7, 9))
    assert calls == [(4, 1), (4, 2)]
    assert found["ids"][:, :, :3].numpy().tolist() == [[[7, -1, -1], [5, 7, -1]]] * 2
    np.testing.assert_allclose(found["scores"][0], np.log([0.9, 0.06 * 0.9]), rtol=1e-5)


def test_a_state_follows_its_sequences(table):
    """The last two classes as a state, and the sequences for nothing else than the newest."""

    def step(sequences, state):
        pair = tf.stack([state["last"], sequences[:, -1]], axis=1)
        scores, ids = tf.math.top_k(tf.gather_nd(tf.constant(table, tf.float32), pair), CLASSES)
        return {"ids": ids, "scores": scores}, {"last": sequences[:, -1]}

    prompts = tf.constant([[2, 0], [1, 1]])
    search = tf.function(lambda p: kl.serving.beam_search(step, p, 5, 3, STOP, state={"last": p[:, 0]}))
    without = kl.serving.beam_search(step_of(table, CLASSES), prompts, 5, 3, STOP)
    for name, values in search(prompts).items():
        np.testing.assert_allclose(values, without[name], rtol=1e-5)


def test_the_predictor_of_a_model_in_a_graph():
    tokens = keras.Input((None,), dtype="int32")
    head = kl.layers.HierarchicalSoftmax(20)
    x = kl.layers.ShardedEmbedding(20, 8)(tokens)
    model = kl.Model(tokens, head(keras.layers.GRU(8, return_sequences=True)(x)))
    head.kernel_table.variable.assign(3 * np.random.default_rng(0).normal(size=(head.num_rows, 8)))
    predictor = head.predictor(model, k=4, position="last")
    prompts = np.array([[3, 4, 5], [7, 8, 1]], "int32")
    found = tf.function(lambda p: kl.serving.beam_search(predictor, p, 4, num_beams=3))(prompts)
    ids = found["ids"].numpy()
    texts = np.concatenate([np.repeat(prompts, 3, axis=0), ids.reshape(6, 4)], axis=1)
    log_p = head.log_prob(model(texts[:, :-1]), texts[:, 1:]).numpy()[:, 2:].sum(-1)
    np.testing.assert_allclose(found["scores"], log_p.reshape(2, 3), rtol=1e-4)
    assert (np.diff(found["scores"]) <= 0).all()
    np.testing.assert_array_equal(kl.serving.beam_search(predictor, prompts, 4, num_beams=3)["ids"], ids)


def test_an_export_needs_stock_ops_alone(tmp_path):
    tokens = keras.Input((None,), dtype="int32")
    head = kl.layers.HierarchicalSoftmax(9)
    model = kl.Model(tokens, head(kl.layers.ShardedEmbedding(9, 4)(tokens)))
    predictor = head.predictor(model, k=4, position="last")

    class Writer(keras.Model):
        def call(self, prompts):
            return kl.serving.beam_search(predictor, prompts, 3, num_beams=3, stop_token_ids=0)

    writer, prompts = Writer(), tf.constant([[1, 2, 3], [4, 5, 6]])
    writer.predictor = predictor
    want = writer(prompts)
    kl.export_saved_model(writer, tmp_path / "1", input_signature=tf.TensorSpec([None, None], tf.int32))
    loaded = tf.saved_model.load(tmp_path / "1")
    found = loaded.serve(prompts)
    np.testing.assert_array_equal(found["ids"], want["ids"])
    np.testing.assert_allclose(found["scores"], want["scores"], rtol=1e-5)


def test_classes_that_are_left_out_are_never_added():
    def step(sequences):
        scores = tf.tile([[-1.0, -np.inf]], [len(sequences), 1])
        return {"ids": tf.tile([[2, -1]], [len(sequences), 1]), "scores": scores}

    found = kl.serving.beam_search(step, [[0]], 3, num_beams=2)
    assert found["ids"].numpy().tolist() == [[[2, 2, 2], [-1, -1, -1]]]
    assert found["scores"].numpy().tolist() == [[-3, -np.inf]]


def test_errors():
    def search(prompts=((1, 2),), **options):
        return kl.serving.beam_search(lambda sequences: None, prompts, **{"max_steps": 3, **options})

    for name, value in (("max_steps", 0), ("num_beams", 1.5), ("length_penalty", -1)):
        with pytest.raises(ValueError, match=f"`{name}` must .*Received: .*{value}"):
            search(**{name: value})
    for prompts in ([1, 2], np.zeros([2, 0], "int32"), [[0.5]]):
        with pytest.raises(ValueError, match=r"`prompts` must be ids \[batch, time\]"):
            search(prompts)
