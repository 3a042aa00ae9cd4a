"""The report of GPU benchmarks, on made-up results whose ratios are known."""

import json
import pathlib
import re
import subprocess

import pytest
import tensorflow as tf

from benchmarks.gpu import _profile, _published, _reach, _registers, _results, report
from benchmarks.gpu._results import Results

OPS = pathlib.Path(report.__file__).parents[2] / "custom_ops"
H100 = {"card": "NVIDIA H100 80GB HBM3", "date": "2026-11-24 10:00 UTC", "sources": "5eed"}
TABLE = "16.8M x 128 float32, 1.05M {} ids, bags of 8"
TREE = "10M words, Huffman 8"
STEP = "loss + gradient + SGD"


def row(bench, case, part, ms, library="ours", **more):
    return {"bench": bench, "case": case, "part": part, "library": library, "ms": ms, **more}


def limits(copy=3e12, fma=60e12):
    return {"bench": "b", "case": "machine", "copy_bytes_per_s": copy, "fma_flops_per_s": fma}


def results(*rows, machine=H100, steps=()):
    return Results(machine, list(steps), [limits(copy=3e12, fma=60e12), *rows], {}, [])


def verdicts(found):
    return {goal["goal"]: (goal["measured"], goal["verdict"]) for goal in _reach.judge(found)}


def cells(found, quick=False):
    """The table's rows as dicts."""
    header, rows = report.times(found, quick)
    return [dict(zip(header, one)) for one in rows]


def test_share_bound_and_peers():
    # 3e9 bytes take 1 ms, 60e9 flops as well.
    case = ("tree_softmax", TREE, STEP)
    found = results(
        row(*case, 4.0, bytes=6e9, flops=60e9, low=3.9, high=4.2),
        row(*case, 12.0, library="slow"),
        row(*case, 2.0, library="fast"),
        row("b", "no peer", "p", 1.0),
        row("b", "no ours", "p", 1.0, library="fast"),
    )
    fast, slow, alone, theirs = cells(found)
    assert fast["ours, ms"] == "4.000" and fast["deciles"] == "3.900 .. 4.200"
    assert (fast["of copy"], fast["x bound"]) == ("50%", "2.00 (bytes)")
    assert (fast["peer"], fast["peer / ours"]) == ("fast", "0.50x")
    assert (slow["peer"], slow["peer / ours"], slow["ours, ms"]) == ("slow", "3.00x", "")
    assert alone["peer"] == "" and alone["of copy"] == ""
    assert theirs["ours, ms"] == "-" and theirs["peer, ms"] == "1.000"


def test_products_are_judged_by_the_fastest_units_that_were_measured():
    dtypes = ("float32", "bfloat16")
    found = results(*(row("t", f"wide {dtype}", "p", 1.0, flops=60e9) for dtype in dtypes))
    assert [one["x bound"] for one in cells(found)] == ["1.00 (flops)", "1.00 (flops)"]
    gemm = {"tf32": 360e12, "bfloat16": 600e12}  # a float32 product may be three of TF32
    found.rows.append({"bench": "torch", "case": "machine", "gemm_flops_per_s": gemm})
    assert [one["x bound"] for one in cells(found)] == ["2.00 (flops)", "10.00 (flops)"]
    assert "matrix product in tf32 360 TFLOP/s" in report.markdown(found)


def test_goals():
    power_law, uniform = TABLE.format("power-law"), TABLE.format("uniform")
    fan_in = "670K x 32 bfloat16, 32768 inputs, batch 32"
    found = verdicts(
        results(
            row("embedding", power_law, "lookup", 1.0, bytes=0.65 * 3e9),
            row("embedding", uniform, "lookup", 1.0, bytes=0.64 * 3e9),
            row("row_update", power_law, "fused backward + SGD", 1.0, bytes=0.41 * 3e9),
            row("tree_softmax", TREE, STEP, 2.1, bytes=3e9),
            row("fan_in", fan_in, "binary_crossentropy", 0.59),
            row("fan_in", fan_in, "binary_crossentropy, step sgd", 1.21),
            row("embedding", _published.CASE, "lookup", 0.3),
            steps=[
                {"step": "ctest", "name": "a", "status": "ok"},
                {"step": "sanitizers", "name": "memcheck-a", "status": "ok"},
                {"step": "sanitizers", "name": "memcheck-b", "status": "skipped"},
                {"step": "sanitizers", "name": "racecheck-a", "status": "FAILED"},
                {"step": "sanitizers", "name": "racecheck-b", "status": "STOPPED"},
                {"step": "sanitizers", "name": "synccheck-a", "status": "STOPPED"},
            ],
        )
    )
    assert found["tests of CUDA kernels"] == ("1 passed", "reached")
    assert found["memcheck"] == (None, "not measured")  # one of them was skipped
    assert found["synccheck"] == (None, "not measured")
    assert found["racecheck"] == ("failed: racecheck-a", "MISSED")
    assert found[f"{power_law}: lookup"] == ("65%", "reached")
    assert found[f"{uniform}: lookup"] == ("64%", "MISSED")
    assert found[f"{power_law}: fused backward + SGD"] == ("41%", "reached")
    assert found[f"{uniform}: fused backward + SGD"] == (None, "not measured")
    assert found[f"{TREE}: {STEP}"] == ("2.10 x (bytes)", "MISSED")
    assert found[f"{fan_in}: binary_crossentropy"] == ("0.590 ms", "reached")
    assert found[f"{fan_in}: binary_crossentropy, step sgd"] == ("1.210 ms", "MISSED")
    assert found[f"{_published.CASE}: lookup"] == ("1.15 x as fast", "reached")


def test_goals_have_the_names_that_the_benches_write():
    """A goal whose case is renamed would be "not measured" forever."""
    of_benches = {
        "embedding": ["embedding/test/embedding_bench.cu"],
        "row_update": ["row_update/test/row_update_step_bench.cu"],
        "tree_softmax": ["tree_softmax/test/tree_softmax_bench.cu"],
        "fan_in": ["fan_in/test/fan_in_bench.cu", "fan_in/fan_in.h"],
    }
    shared = ["embedding/test/embedding_bench.cuh", "common/test/cuda_bench_data.cuh"]
    for goal in _reach.GOALS:
        if isinstance(goal, _reach.Clean):
            continue
        text = "".join((OPS / name).read_text() for name in of_benches[goal.bench] + shared)
        words = re.split(r"[^a-zA-Z_-]+", f"{goal.case} {goal.part}")
        missing = [word for word in words if len(word) > 2 and word not in text]
        assert not missing, f"{goal}: {missing}"


def test_times_are_judged_on_their_card_alone():
    rows = (
        row("fan_in", "670K x 32 bfloat16, 32768 inputs, batch 32", "binary_crossentropy", 0.1),
        row("embedding", _published.CASE, "lookup", 0.1),
    )
    found = verdicts(results(*rows, machine={**H100, "card": "NVIDIA A100"}))
    assert {verdict for _, verdict in found.values()} == {"not measured"}


def test_tiny_sizes_reach_nothing():
    found = results(row("embedding", TABLE.format("uniform"), "lookup", 1.0, bytes=3e9, quick=True))
    assert verdicts(found)[f"{TABLE.format('uniform')}: lookup"] == (None, "not measured")
    assert cells(found) == [] and len(cells(found, quick=True)) == 1


def test_half_a_line(tmp_path):
    for name in ("raw", "logs"):
        (tmp_path / name).mkdir()
    whole = json.dumps(row("b", "c", "p", 1.0))
    (tmp_path / "raw/x.full.jsonl").write_text(f'{whole}\n[]\n{{"case": "c", "ms": 1}}\n{whole[:-9]}')
    assert len(_results.collect(tmp_path).rows) == 1


def test_several_runs(tmp_path, capsys):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, ms, steps in ((first, 1.0, ["bench"]), (second, 2.0, ["bench", "torch"])):
        folder.mkdir()
        steps = [{"step": s, "name": s, "status": "ok", "seconds": ms, "note": ""} for s in steps]
        found = results(row("b", "c", "p", ms), row("b", folder.name, "p", ms), steps=steps)
        (folder / "results.json").write_text(json.dumps(_results.as_json(found)))
    report.main([str(first), str(second)])
    text = capsys.readouterr().out
    assert "| b | c | p | 2.000 |" in text and "| b | a | p | 1.000 |" in text and "| torch |" in text
    other = {**json.loads((first / "results.json").read_text()), "machine": {**H100, "sources": "other"}}
    (first / "results.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"same kernels can be merged. Received: .*\(other\)"):
        report.main([str(first), str(second)])


def test_registers():
    kernels = _registers.parse(
        "[1/9] Building CUDA object a.cu.o\n"
        "ptxas info    : 14 bytes gmem\n"
        "ptxas info    : Compiling entry function '_ZN8largeout12_GLOBAL__N_14FillIfEEvPT_l' for 'sm_90'\n"
        "ptxas info    : Function properties for _ZN8largeout12_GLOBAL__N_14FillIfEEvPT_l\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 16 registers, used 0 barriers\n"
        "ptxas info    : Compiling entry function 'plain' for 'sm_80'\n"
        "ptxas info    : Function properties for plain\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem\n"
    )
    assert [one["registers"] for one in kernels] == [16, 255]
    assert kernels[0]["kernel"] in ("Fill<float>", "_ZN8largeout12_GLOBAL__N_14FillIfEEvPT_l")
    assert [one["kernel"] for one in _registers.spilling(kernels)] == ["plain"]
    first = _registers.text(kernels).splitlines()[1].split()
    assert first == ["255", "8", "4", "12", "1024", "sm_80", "plain"]


def test_profile():
    text = (
        "==PROF== Connected\n"
        '"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"\n'
        '"","","us","%"\n'
        '"0","void A<float>(const float *, int)","1,500.5","10"\n'
        '"1","B(int)","20","n/a"\n'
        '"2","void A<float>(const float *, int)","500.5","30"\n'
    )
    first, second = _profile.parse(text)
    assert (first["kernel"], first["launches"]) == ("void A<float>", 2)
    assert (first["ms"], first["compute"]) == (pytest.approx(2.001), 20.0)
    assert second["compute"] is None and second["dram"] is None
    assert _profile.parse("==ERROR== no") == []


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_softmax_in_chunks(dtype, tolerance):
    """The peer that keeps no logits computes what the one that keeps them computes."""
    torch = pytest.importorskip("torch")
    from benchmarks.gpu import _torch_softmax

    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 20, generator=generator).to(getattr(torch, dtype)) for n in (37, 101))
    bias, targets = torch.randn(101, generator=generator), torch.randint(101, (37,), generator=generator)
    leaves = [one.requires_grad_() for one in (hidden, weight, bias)]
    losses = _torch_softmax.whole(*leaves, targets), _torch_softmax.chunked(*leaves, targets, 16)
    assert abs(losses[0] - losses[1]) < tolerance
    for of_whole, of_chunks in zip(*(torch.autograd.grad(loss, leaves) for loss in losses)):
        assert (of_whole.float() - of_chunks.float()).norm() < tolerance * of_whole.float().norm()


def test_without_a_gpu_nothing_is_done(tmp_path):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    command = [OPS.parent / "benchmarks/gpu/run.sh", tmp_path / "out"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 77 and "no GPU" in done.stdout
    assert not (tmp_path / "out").exists()
