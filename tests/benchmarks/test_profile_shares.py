"""Where the time of a training step goes: the arithmetic on a recording."""

from benchmarks.profile import shares
from benchmarks.profile.recording import Recording, Span


def recorded(steps, calls, spans):
    """Return a Recording; spans are (thread, begin, end, kind)."""
    return Recording(steps, calls, [Span(*span[:3], "", span[3]) for span in spans])


def _by_kind(span):
    return span.kind


def test_parts_and_what_is_between_them_sum_to_the_steps():
    steps, calls = [(0, 10), (10, 20)], [(2, 9), (12, 19)]
    spans = [(7, 3, 5, "A"), (8, 4, 6, "B"), (7, 13, 18, "A"), (7, 21, 25, "A")]
    found = shares.shares(recorded(steps, calls, spans), _by_kind)
    # From 4 to 5 both are at work.
    assert found == {"A": 1.5 + 5, "B": 1.5, shares.BETWEEN: 1 + 3 + 1 + 1, shares.PYTHON: 3 + 3}
    assert sum(found.values()) == 20


def test_what_begins_before_a_step_counts_from_its_begin():
    found = shares.shares(recorded([(4, 6)], [(0, 9)], [(1, 3, 8, "A")]), _by_kind)
    assert found == {"A": 2}


def test_time_of_an_op_within_another_is_its_own():
    spans = [(1, 0, 10, "outer"), (1, 2, 4, "inner"), (1, 3, 4, "innermost"), (1, 6, 7, "inner")]
    found = shares.shares(recorded([(0, 10)], [], spans), _by_kind)
    assert found == {"outer": 7, "inner": 2, "innermost": 1}


def test_parts_by_scope():
    part = shares.by_scope({"gru": "GRU", "dense_1": "head"}, "other")

    def of(name):
        return part(Span(0, 0, 1, name, "Add"))

    assert of("call/gradient_tape/model_1/gru_1/while/body/_20/gru_1/Add") == "GRU"
    assert of("call/model_1/dense_1/Add") == "head"
    assert of("call/model_1/dense/Add") == of("call/grumble/Add") == "other"
