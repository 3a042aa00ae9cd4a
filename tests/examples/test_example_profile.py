"""Where the time of a training step goes: the arithmetic, and a model whose steps are recorded."""

import argparse
import importlib
import pathlib

import numpy as np
import pytest

EXAMPLES = str(pathlib.Path(__file__).resolve().parents[2] / "examples")


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


@pytest.fixture
def recorded(module):
    """`recorded(steps, calls, spans)`: a Recording; spans are (thread, begin, end, kind)."""
    recording = module("_profile.recording")

    def make(steps, calls, spans):
        return recording.Recording(steps, calls, [recording.Span(*span[:3], "", span[3]) for span in spans])

    return make


def _by_kind(span):
    return span.kind


def test_parts_and_what_is_between_them_sum_to_the_steps(module, recorded):
    shares = module("_profile.shares")
    steps, calls = [(0, 10), (10, 20)], [(2, 9), (12, 19)]
    spans = [(7, 3, 5, "A"), (8, 4, 6, "B"), (7, 13, 18, "A"), (7, 21, 25, "A")]
    found = shares.shares(recorded(steps, calls, spans), _by_kind)
    # From 4 to 5 both are at work.
    assert found == {"A": 1.5 + 5, "B": 1.5, shares.BETWEEN: 1 + 3 + 1 + 1, shares.PYTHON: 3 + 3}
    assert sum(found.values()) == 20


def test_what_begins_before_a_step_counts_from_its_begin(module, recorded):
    found = module("_profile.shares").shares(recorded([(4, 6)], [(0, 9)], [(1, 3, 8, "A")]), _by_kind)
    assert found == {"A": 2}


def test_time_of_an_op_within_another_is_its_own(module, recorded):
    spans = [(1, 0, 10, "outer"), (1, 2, 4, "inner"), (1, 3, 4, "innermost"), (1, 6, 7, "inner")]
    found = module("_profile.shares").shares(recorded([(0, 10)], [], spans), _by_kind)
    assert found == {"outer": 7, "inner": 2, "innermost": 1}


def test_parts_by_scope(module):
    part = module("_profile.shares").by_scope({"gru": "GRU", "dense_1": "head"}, "other")
    span = module("_profile.recording").Span

    def of(name):
        return part(span(0, 0, 1, name, "Add"))

    assert of("call/gradient_tape/model_1/gru_1/while/body/_20/gru_1/Add") == "GRU"
    assert of("call/model_1/dense_1/Add") == "head"
    assert of("call/model_1/dense/Add") == of("call/grumble/Add") == "other"


def test_the_training_curve_reaches_the_end_of_the_epoch(module):
    speed = module("_callbacks").Speed(tokens_per_step=10, minutes=1, stretch=4)
    for epoch in range(2):
        speed.on_epoch_begin(epoch)
        losses = [5.0, 4.0, 3.0, 2.0, 1.0, 0.5]
        for step in range(len(losses)):
            logs = {"loss": np.mean(losses[: step + 1])}
            speed.on_train_batch_end(step, logs)
        speed.on_epoch_end(epoch, logs)
    assert [loss for _, loss in speed.curve] == pytest.approx([3.5, 0.75] * 2)
    assert [speed.curve[1][0], speed.curve[3][0]] == speed.epoch_seconds


def test_parts_of_the_language_model(module):
    example, callbacks = module("language_model"), module("_callbacks")
    args = argparse.Namespace(head="huffman", dim=8, units=16, learning_rate=1e-3)
    counts = np.arange(50, 0, -1)
    head = example.make_head(args, counts)
    model = example.build(args, head, len(counts))
    words = np.random.default_rng(0).integers(1, 50, (48, 7)).astype("int32")
    parts = callbacks.StepParts(example.layers_of(model, head), first=4, steps=3)
    model.fit(words[:, :-1], words[:, 1:], batch_size=4, verbose=0, callbacks=[parts])
    found = {line[:24].strip() for line in parts.lines()[1:]}
    assert {"GRU", "embedding", "head", "optimizer", "Python"} <= found
