"""The hook of .githooks, which refuses commit messages."""

import importlib.machinery
import pathlib
import subprocess
import types

import pytest

HOOK = pathlib.Path(__file__).parents[2] / ".githooks/commit-msg"
BODY = "\n\nIt took 3 s, and takes 1 s.\n"


@pytest.fixture(scope="module")
def faults():
    loader = importlib.machinery.SourceFileLoader("commit_msg", str(HOOK))
    module = types.ModuleType(loader.name)
    exec(loader.get_code(loader.name), module.__dict__)
    return module.faults


@pytest.mark.parametrize(
    "message",
    [
        f"heads: refuse targets that are not class ids{BODY}",
        f"ops/fan_in: bias the draw towards rare labels{BODY}",
        f"# a comment of Git\n\nci: need no compiler{BODY}# Changes to be committed:\n",
        "Merge branch 'main'",
        "fixup! heads: refuse targets",
    ],
)
def test_good_messages_pass(faults, message):
    assert faults(message) == []


@pytest.mark.parametrize(
    "message, words",
    [
        (f"Refuse targets{BODY}", "area: imperative"),
        (f"heads: Refuse targets{BODY}", "area: imperative"),
        (f"heads: refused targets{BODY}", "'refused'"),
        (f"heads: refuses targets{BODY}", "'refuses'"),
        (f"heads: refusing targets{BODY}", "'refusing'"),
        (f"heads: {'x' * 66}{BODY}", "at most 72 characters. Received: 73"),
        (f"heads: refuse targets; read files{BODY}", "one change"),
        (f"heads: refuse targets.{BODY}", "one change"),
        ("heads: refuse targets\nbecause they fail\n", "second line"),
        ("heads: refuse targets\n", "why"),
        ("heads: refuse targets\n\n# a comment alone\n", "why"),
        ("", "area: imperative"),
    ],
)
def test_others_are_refused(faults, message, words):
    assert any(words in fault for fault in faults(message)), faults(message)


@pytest.mark.full
def test_git_runs_the_hook(tmp_path):
    """After the command that CONTRIBUTING.md names."""
    assert "git config core.hooksPath .githooks" in (HOOK.parents[1] / "CONTRIBUTING.md").read_text()

    def git(*arguments):
        name = ["-c", "user.name=x", "-c", "user.email=x@y"]
        return subprocess.run(["git", *name, *arguments], cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / ".githooks").symlink_to(HOOK.parent)
    assert git("init").returncode == 0 and git("config", "core.hooksPath", ".githooks").returncode == 0
    refused = git("commit", "--allow-empty", "-m", "Stuff")
    assert refused.returncode and "This commit message is refused" in refused.stderr
    assert git("commit", "--allow-empty", "-m", f"stuff: add it{BODY}").returncode == 0
