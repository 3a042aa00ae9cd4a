"""`benchmarks.gpu.tensorflow_steps`: it runs without a GPU, and reads what the profiler writes with one."""

from benchmarks.gpu import run
from benchmarks.gpu import tensorflow_steps as steps


def test_it_runs(capsys, tmp_path):
    options = ["--quick", "--rounds", "1", "--steps-per-execution", "1", "4", "--keep", str(tmp_path)]
    assert steps.main([*options, "--only", "10M rows, ShardedEmbedding"]) == 0
    lines = capsys.readouterr().out.splitlines()
    one, four = filter(None, map(run.row_of, lines))
    assert (one["part"], four["part"]) == ("step, 1 per call", "step, 4 per call")
    assert one["case"] == "10M rows, ShardedEmbedding" and one["ms"] > 0
    assert one["note"] == "GPU busy 0.000 ms, 0 kernels and copies, 0 waits of the host"
    assert any("Largeout>EmbeddingUpdate 1x" in line for line in lines)
    assert len(list(tmp_path.glob("10M_rows_ShardedEmbedding_*.xplane.pb"))) == 2


def test_a_model_that_fails(capsys, monkeypatch):
    monkeypatch.setattr(steps, "MODELS", {"none": lambda quick, per_call: 1 // 0})
    assert steps.main(["--quick"]) == 1
    assert "none, 8 steps per call: ZeroDivisionError" in capsys.readouterr().out


def test_kernels_and_waits(tmp_path):
    """Twenty steps: of each two kernels of 3 ms, a call that waits, and one that does not."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()

    def record(plane, line, name, milliseconds):
        at = space.planes.add(name=plane)
        at.event_metadata[1].name = name
        events = at.lines.add(name=line).events
        for _ in range(20):
            events.add(metadata_id=1, duration_ps=int(1e9 * milliseconds))

    for _ in range(2):
        record("/device:GPU:0", "Stream #7(Compute)", "StepRows", 3)
    record("/host:CPU", "thread", "cuStreamSynchronize", 2)
    record("/host:CPU", "thread", "cuLaunchKernel", 1)
    record("/host:CPU", "thread", "model/x:MatMul", 0.5)
    file = tmp_path / "made.xplane.pb"
    file.write_bytes(space.SerializeToString())
    assert steps.told(file, 20) == [
        "GPU busy 6.000 ms, 2 kernels and copies, 1 waits of the host",
        "kernels and copies: StepRows 2x 6.000 ms",
        "calls in which the host may wait: cuStreamSynchronize 1x 2.000 ms",
        "ops on the host: MatMul 1x 0.500 ms",
    ]
