"""Random calls of every op, valid and invalid: none may crash, hang, or take memory that it does not need."""

import pytest

from tests.fuzz import known
from tests.fuzz.runs import run

CALLS = 2000


@pytest.fixture(scope="module")
def found():
    """What became of all calls, in one process where none of them ends it."""
    return run(0, CALLS, known=True)


@pytest.mark.parametrize("name", known.CALLS)
def test_what_once_ended_the_process_is_an_error(found, name):
    answer = found["answers"].get(name, "none: the process ended, see test_random_calls")
    assert known.EXPECTED[name] in answer


def test_random_calls(found):
    for defect in found["defects"]:
        print(f"{defect['call']}\n{defect['what']}\n")
    assert not found["defects"] and found["children"] == 1
    counts = found["counts"]
    assert counts["ok"] + counts["error"] == CALLS
    # They reach the kernels of every op, and are not all accepted.
    assert counts["ok"] > CALLS / 4 and counts["error"] > CALLS / 4
    for op in found["ops"]:
        assert counts[f"{op} ok"] > 0, f"no call of {op} was accepted: it wants a recipe in tests/fuzz"
