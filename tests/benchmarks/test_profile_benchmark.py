"""`benchmarks.profile`: the parts of a step, what is printed of them, which steps are recorded."""

from benchmarks.profile import __main__ as command
from benchmarks.profile import parts
from benchmarks.profile.recording import Recording, Span


def test_part_of_an_op():
    assert parts.part_of("Largeout>TreeSoftmaxGrad") == "ours: TreeSoftmaxGrad"
    assert parts.part_of("IteratorGetNext") == parts.part_of("Input") == parts.INPUT
    assert parts.part_of("UniqueV2") == parts.part_of("UnsortedSegmentSum") == parts.SORTING
    assert parts.part_of("_MklNativeFusedMatMul") == parts.part_of("BatchMatMulV2") == parts.PRODUCTS
    assert parts.part_of("GatherV2") == parts.part_of("StridedSliceGrad") == parts.MOVING
    assert parts.part_of("AddN") == parts.part_of("AssignVariableOp") == parts.OTHER


def _found():
    """Steps of 10 ms, each 2 in Python, 1 between ops, 4 in an op of ours, 2 and 1 in TensorFlow's; and two
    that something disturbs."""
    recording = Recording([(1.0, 1.5), (2.0, 2.5)], [(1.0, 1.5)], [])
    for start in (0.0, 0.01):
        recording.steps.append((start, start + 0.01))
        recording.calls.append((start + 0.002, start + 0.01))
        ops = ((0.003, 0.007, "Largeout>RowUpdate"), (0.007, 0.009, "_MklMatMul"), (0.009, 0.01, "MatMul"))
        recording.spans.extend(Span(1, start + begin, start + end, "", kind) for begin, end, kind in ops)
    return parts.summary(recording)


def test_summary_of_a_recording():
    found = _found()
    assert found["steps"] == 2 and round(found["milliseconds"], 6) == 10
    shown = [(part["part"], round(part["milliseconds"], 6), part["ops"]) for part in found["parts"]]
    assert shown == [
        ("ours: RowUpdate", 4, 1),
        (parts.PRODUCTS, 3, 2),
        (parts.PYTHON, 2, 0),
        (parts.BETWEEN, 1, 0),
    ]
    assert found["parts"][1]["kinds"] == ["MatMul"]


def test_distance_to_the_bound():
    found = {**_found(), "plain_ms": 8.0, "plain_steps": 5, "cpu_ms": 12.0, "page_faults": 3.2}
    *_, bound = parts.lines(found, {"bytes": 0.002})
    assert bound == "bound by bytes 2.00 ms: the step is 4.00x of it, our kernels 2.00x"


def test_every_case_has_steps():
    for name in command.CASES:
        for quick in (False, True):
            cases = command.chosen(name, quick, [])
            assert cases and all(case.ours for case in cases)
    (only,) = command.chosen("embedding", False, ["10M Adam"])
    assert only.problem == "10M Adam"
    assert command.main(["embedding", "--only", "no such problem"]) == 2
