"""`benchmarks/gpu/run.sh` where GPU, compilers and kernels are scripts: what it does, and what is left."""

import signal
import time
from pathlib import Path

import pytest
from gpu_benchmarks._fake_machine import Machine, limits, row, script

FILES = ["logs.tar.gz", "machine.txt", "registers.txt", "results.json", "results.md"]
OK, FAILED, STOPPED, SKIPPED = "ok", "FAILED", "STOPPED", "skipped"
SLEEPS = "echo $$ > $FAKE/pid; exec sleep 60"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def wait_for(found):
    for _ in range(1000):
        if found():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def pid_file(machine):
    return machine.folder / "pid"


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_a_gpu_nothing_is_done(machine):
    (machine.tools / "nvidia-smi").unlink()
    code, output = machine.run()
    assert code == 77 and "no GPU" in output
    assert not machine.out.exists()


def test_unknown_steps_are_named(machine):
    code, output = machine.run(STEPS="build fly")
    assert code == 1 and "STEPS has fly" in output


def test_all_steps(machine):
    (machine.folder / "ptxas.txt").write_text(
        "ptxas info    : Compiling entry function '_Z4Spilv' for 'sm_90'\n"
        "ptxas info    : Function properties for _Z4Spilv\n"
        "    64 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 2048 bytes smem, 400 bytes cmem[0]\n"
    )
    code, output = machine.run(CTEST_ENDS="   Passed ", COMMIT="abc123")
    assert code == 0, output
    assert machine.files() == FILES
    assert list(machine.statuses()) == [
        ("configure", "configure"),
        ("build", "build"),
        ("bench-quick", "embedding_bench_cuda"),
        ("ctest", "ctest"),
        ("ctest", "embedding_test_cuda"),
        ("ctest", "exchange_test_cuda"),
        ("bench", "embedding_bench_cuda"),
        ("torch", "torch"),
        ("ncu", "embedding_bench_cuda"),
    ]
    assert machine.statuses()["torch", "torch"] == SKIPPED  # there is no such GPU for PyTorch
    configured, built = (machine.folder / "cmake.txt").read_text().splitlines()
    assert "-DLARGEOUT_CUDA_ARCHITECTURES=90" in configured and "-Xptxas=-v" in configured
    assert "embedding_test_cuda" in built and "embedding_bench_cuda" in built and "fan_in_test " not in built
    assert "-R _cuda$ -j" in (machine.folder / "ctest.txt").read_text()
    told = (machine.out / "machine.txt").read_text()
    for fact in ("NVIDIA H100 80GB HBM3", "580.1", "13.0, V13.0.88", "abc123", "UTC"):
        assert fact in told
    assert "Spil" in (machine.out / "registers.txt").read_text()
    report = (machine.out / "results.md").read_text()
    assert "| embedding | small | lookup | 0.500 |" in report and report in output
    assert "Kernels that spill" in report and "| Lookup | 1 | 0.120 | 40 |" in report
    assert {"logs/build-build.log", "raw/embedding_bench_cuda.full.jsonl"} <= set(machine.archived())


def test_a_failure_costs_no_other_result(machine):
    machine.bench("a_bench_cuda", [row("a", "half", "first", 1.0)], "echo it broke; exit 3")
    machine.bench("b_bench_cuda", [row("b", "whole", "second", 2.0)])
    code, output = machine.run(BIN=machine.programs, STEPS="bench")
    assert code == 1
    assert (
        "failed or stopped: bench: a_bench_cuda" in output
        and "    it broke" in output
        and "exit code 3" in output
    )
    assert machine.statuses() == {
        ("bench", "embedding_bench_cuda"): OK,  # the important ones come first
        ("bench", "a_bench_cuda"): FAILED,
        ("bench", "b_bench_cuda"): OK,
    }
    assert {r["bench"] for r in machine.results["rows"]} == {"embedding", "a", "b"}


def test_what_was_built_before(machine):
    script(machine.programs / "fan_in_test_cuda", "exit 77")
    code, _ = machine.run(BIN=machine.programs, STEPS="configure,build,ctest")
    assert code == 1
    assert machine.statuses() == {
        ("configure", "configure"): SKIPPED,
        ("build", "build"): SKIPPED,
        ("ctest", "embedding_test_cuda"): OK,
        ("ctest", "fan_in_test_cuda"): FAILED,  # it found no GPU, and there is one
    }
    assert not (machine.folder / "cmake.txt").exists()
    code, output = machine.run(BIN=machine.tools, STEPS="bench")
    assert code == 1 and "there are no *_bench_cuda in" in output


def test_a_skipped_test_is_a_failure(machine):
    code, output = machine.run(STEPS="configure build ctest")
    assert code == 1 and "ctest: exchange_test_cuda" in output
    statuses = machine.statuses()
    assert statuses["ctest", "embedding_test_cuda"] == OK
    assert statuses["ctest", "exchange_test_cuda"] == FAILED


def test_killed(machine):
    """Who borrowed the card gets no warning: the report has what was measured, and nothing runs on."""
    machine.bench("z_bench_cuda", [], SLEEPS)
    process = machine.start(BIN=machine.programs, STEPS="bench")
    wait_for(lambda: pid_file(machine).exists() and pid_file(machine).read_text())
    process.kill()
    process.wait()
    assert [r["bench"] for r in machine.results["rows"]] == ["b", "embedding"]
    assert "small" in (machine.out / "results.md").read_text()
    assert len(machine.files()) <= 8
    pid = int(pid_file(machine).read_text())
    wait_for(lambda: not runs(pid))


def test_told_to_end(machine):
    machine.bench("z_bench_cuda", [row("z", "half", "first", 1.0)], SLEEPS)
    process = machine.start(BIN=machine.programs, STEPS="bench ctest")
    wait_for(lambda: pid_file(machine).exists() and pid_file(machine).read_text())
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 1 and "cut off" in output
    assert machine.statuses()["bench", "z_bench_cuda"] == STOPPED
    assert "z" in [r["bench"] for r in machine.results["rows"]]
    assert ("ctest", "embedding_test_cuda") not in machine.statuses()


def test_budget(machine):
    code, output = machine.run(BIN=machine.programs, STEPS="bench-quick bench", BUDGET=15)
    assert code == 0
    assert machine.statuses() == {
        ("bench-quick", "embedding_bench_cuda"): OK,
        ("bench", "embedding_bench_cuda"): SKIPPED,
    }
    assert "needs about 15 s" in output


def test_a_program_stops_at_the_budget(machine):
    machine.bench("embedding_bench_cuda", [limits(), row("embedding", "small", "lookup", 0.5)], SLEEPS)
    code, output = machine.run(BIN=machine.programs, STEPS="bench-quick", BUDGET=8.5)
    assert code == 1 and "not done after" in output
    assert machine.statuses()["bench-quick", "embedding_bench_cuda"] == STOPPED
    assert [r["bench"] for r in machine.results["rows"]] == ["b", "embedding"]


def test_sanitizers(machine):
    script(machine.programs / "exchange_test_cuda", "echo ok")
    code, output = machine.run(BIN=machine.programs, STEPS="sanitizers", BAD_TOOL="racecheck")
    assert code == 1
    found = machine.statuses()
    assert len(found) == 8
    assert {name for (_, name), status in found.items() if status == FAILED} == {
        "racecheck-embedding_test_cuda",
        "racecheck-exchange_test_cuda",
    }
    goals = {goal["goal"]: goal["verdict"] for goal in machine.results["goals"]}
    assert goals["memcheck"] == "reached" and goals["racecheck"] == "MISSED"
    assert "racecheck-exchange_test_cuda" in output


def test_sanitizers_that_the_host_does_not_allow(machine):
    script(machine.programs / "exchange_test_cuda", "echo ok")
    code, output = machine.run(BIN=machine.programs, STEPS="sanitizers", NO_SANITIZER=1)
    assert code == 0 and "device not supported on this host" in output
    assert len((machine.folder / "sanitizer.txt").read_text().splitlines()) == 1
    assert set(machine.statuses().values()) == {SKIPPED}


def test_calls_add_up_until_the_card_changes(machine):
    machine.run(BIN=machine.programs, STEPS="bench-quick")
    machine.run(BIN=machine.programs, STEPS="bench")
    assert {step for step, _ in machine.statuses()} == {"bench-quick", "bench"}
    tool = machine.tools / "nvidia-smi"
    tool.write_text(tool.read_text().replace("NVIDIA H100 80GB HBM3, 580.1", "NVIDIA H200, 580.1"))
    machine.run(BIN=machine.programs, STEPS="bench")
    assert {step for step, _ in machine.statuses()} == {"bench"}
    assert machine.results["machine"]["card"] == "NVIDIA H200"
