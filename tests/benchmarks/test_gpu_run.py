"""`benchmarks.gpu.run`: what programs print becomes tables. (CTest runs it on benches in the emulation.)"""

import argparse
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from benchmarks.gpu import run

CARD = '{"card": "A GPU, 132 multiprocessors", "copy_gb_per_s": 4277}'
LINE = '{"bench": "embedding", "case": "16.8M x 128, bags of 8", "part": "lookup", "ms": 0.1, "low": 0.09, "high": 0.12, "note": "50% of copy"}'  # noqa: E501
RECORDED = """
| bench | case | part | ms | first run | at | note |
|---|---|---|---:|---:|---|---|
| embedding | 16.8M x 128, bags of 8 | lookup | 0.300 | 0.400 | ac54151 | |
| embedding | 16.8M x 128, bags of 8 | lookup | 0.200 | 0.300 | bfd0457 | |
"""


def test_rows():
    assert run.row_of(LINE + "\n")["ms"] == 0.1 and run.row_of(CARD)["copy_gb_per_s"] == 4277
    for line in (LINE[:-9], "text\n", "[1]\n", '{"bench": "embedding", "ms": 1}\n', "{}"):
        assert run.row_of(line) is None


def test_times_beside_the_last_record():
    peer = {"bench": "embedding", "case": "16.8M x 128, bags of 8", "part": "lookup, PyTorch", "ms": 0.36}
    *_, ours, theirs = run.times([peer, run.row_of(CARD), run.row_of(LINE)], RECORDED).splitlines()
    cells = (
        "embedding | 16.8M x 128, bags of 8 | lookup | 0.100 | 0.200 (2.00x) | 0.090 .. 0.120 | 50% of copy"
    )
    assert ours == f"| {cells} |"
    assert theirs == "| embedding | 16.8M x 128, bags of 8 | lookup, PyTorch | 0.360 |  |  |  |"


def test_what_came_of_programs(tmp_path):
    (tmp_path / "RESULTS.md").write_text("# Earlier\n")
    of_programs = run.Run("A GPU, today", RECORDED, tmp_path)

    def program(name, code, seconds=60, **more):
        of_programs.program("bench", name, [sys.executable, "-c", code], time.monotonic() + seconds, **more)
        return of_programs.programs[-1][3]

    assert program("good", f"print('''{CARD}\\n{LINE}''')", sources="0a1b") == "ok"
    assert program("bad", "import sys; sys.exit('no memory')") == "FAILED"
    assert program("peer", "print('no PyTorch'); exit(77)") == "left out"
    assert program("without a GPU", "exit(77)", sources="0a1b") == "FAILED"
    slow = LINE.replace("lookup", "gradient")
    assert program("slow", f"print('''{slow}''', flush=True); import time; time.sleep(600)", 3) == "stopped"
    assert program("late", "", 0) == "not begun"
    of_programs.stop()
    assert program("after a signal", "") == "not begun"
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.startswith("# Earlier\n\n## A GPU, today\n\ncard: A GPU, 132 multiprocessors")
    assert "| lookup | 0.100 | 0.200 (2.00x) |" in text and "| gradient | 0.100 |" in text
    assert "| bench | good | 0a1b | ok |" in text and "| no memory |" in text and "| no PyTorch |" in text
    assert "bench bad: no memory" in (tmp_path / "run.log").read_text()


def test_a_missing_tool_is_left_out(tmp_path):
    of_programs = run.Run("A GPU, today", "", tmp_path)
    of_programs.program("ncu", "bench", ["no-such-tool", "bench"], time.monotonic() + 60, "0a1b")
    assert of_programs.programs[-1][3] == "left out"


def take(run_of, folder, names, only=""):
    """Return the programs of a step, in their order, of a folder that gets these."""
    for name in names:
        program = folder / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    options = argparse.Namespace(build=folder, only=only, quick=False, emulated=False, longer=1)
    return run.take(run_of, "test", time.monotonic() + 60, options)


def test_programs_of_a_step(tmp_path):
    of_programs = run.Run("A GPU, today", "", tmp_path)
    names = "a_test_cuda", "b_test_cuda", "b_bench_cuda", "b_test_emulated"
    assert [name for name, *_ in take(of_programs, tmp_path, names)] == ["a_test_cuda", "b_test_cuda"]
    assert [name for name, *_ in take(of_programs, tmp_path, names, only="b")] == ["b_test_cuda"]
    assert {program[3] for program in of_programs.programs} == {"ok"}


def families_of(program):
    return {path.relative_to(run.ROOT).parts[1] for path in run.sources_of(program)}


def test_every_program_has_a_digest_of_its_sources():
    names = [f"{path.stem}_cuda" for path in run.ROOT.glob("custom_ops/*/test/*_test.cu")]
    assert len({run.digest(run.sources_of(name)) for name in names}) == len(names) > 5


def test_sources_are_those_of_all_families_that_a_program_calls():
    assert families_of("exchange_test_cuda").isdisjoint({"fan_in", "gemm", "cuda_emulator"})
    assert "embedding" in families_of("row_update_test_cuda")
    assert {"embedding", "row_update"} < families_of("embedding_update_test_cuda")
    assert {"tree_softmax", "full_softmax"} < families_of("tree_update_test_cuda")
    sources = run.sources_of("tree_update_bench_cuda")
    for name in (
        "tree_softmax/cuda/tree_softmax_root_library.cu",
        "full_softmax/cuda/full_softmax_library.cu",
    ):
        assert run.ROOT / "custom_ops" / name in sources
    assert all(path.is_file() for path in sources)


def test_what_changed_most_comes_first(tmp_path, monkeypatch):
    """The newest commit of the tables counts, and no commit that is not there."""
    monkeypatch.setattr(run, "ROOT", tmp_path)
    assert run.changed_lines("| a851edf |") == {}

    def git(*arguments):
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        return subprocess.check_output(["git", "-C", tmp_path, *who, *arguments], text=True).strip()

    git("init", "-q")
    names = ["a_test.cu", "b_test.cu", "c_test.cu"]
    for day in (1, 2):
        for name in names:
            path = tmp_path / "custom_ops/family/test" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"// {name}\n" * day)
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-01-0{day}T00:00")
        git("add", ".")
        git("commit", "-q", "-m", "Change")
    (path.parent / names[1]).write_text("\n" * 3)
    path.write_text("// c_test.cu\n")
    newest, oldest = git("log", "--format=%h").split()
    table = f"| lookup | 0.1 | {oldest} | |\n| lookup | 0.2 | {newest} | |\n| lookup | 0.3 | 0000000 | |"
    assert run.changed_lines(table) == {path: 1, path.parent / names[1]: 5}
    assert run.changed_lines(f"## A GPU, commit {oldest}, driver 1")[path.parent / names[0]] == 1

    (tmp_path / "benchmarks/gpu").mkdir(parents=True)
    (tmp_path / "benchmarks/gpu/RESULTS.md").write_text(table)
    programs = [f"{name[:-3]}_cuda" for name in names]
    of_programs = run.Run("A GPU, today", "", tmp_path)
    order = [name for name, *_ in take(of_programs, tmp_path, programs)]
    assert order == ["b_test_cuda", "c_test_cuda", "a_test_cuda"]
    of_programs.recorded = f"| test | {order[0]} | {run.digest(run.sources_of(order[0]))} | ok |"
    assert [name for name, *_ in take(of_programs, tmp_path, programs)] == [*order[1:], order[0]]


def test_without_a_gpu_nothing_is_done(tmp_path, capsys):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    assert run.main(["a", "--out", str(tmp_path / "out")]) == 77
    assert "no GPU" in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_softmax_in_chunks():
    """The peer that keeps no logits computes what the one that keeps them computes."""
    torch = pytest.importorskip("torch")
    from benchmarks.gpu import torch_peers

    hidden, weight = torch.randn(37, 20), torch.randn(101, 20)
    leaves = [one.requires_grad_() for one in (hidden, weight, torch.randn(101))]
    targets = torch.randint(101, (37,))
    losses = torch_peers.whole(*leaves, targets), torch_peers.in_chunks(*leaves, targets, 16)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, leaves) for loss in losses))
