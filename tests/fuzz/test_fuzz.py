"""Random calls of every op, valid and invalid: none may crash, hang, or take memory that it does not need."""

from tests.fuzz import known
from tests.fuzz.runs import run

CALLS = 2000


def test_no_call_ends_the_process():
    """One test, because all calls share one process, and its start is dear."""
    found = run(0, CALLS, known=True)
    counts, answers = found["counts"], found["answers"]
    for defect in found["defects"]:
        print(f"{defect['call']}\n{defect['what']}\n")
    assert not found["defects"] and found["children"] == 1
    # Those that once did end it say what is wrong.
    wrong = {
        name: answers.get(name) for name in known.CALLS if known.EXPECTED[name] not in answers.get(name, "")
    }
    assert not wrong
    # The random ones reach the kernels of every op, and are not all accepted.
    assert counts["ok"] + counts["error"] == CALLS
    assert counts["ok"] > CALLS / 4 and counts["error"] > CALLS / 4
    for op in found["ops"]:
        assert counts[f"{op} ok"] > 0, f"no call of {op} was accepted: it needs a recipe in tests/fuzz"
