"""`benchmarks.quality`: its table, its picture, and what happens if a row fails."""

import types

import pytest
from _pictures import check_legible

from benchmarks.quality import __main__ as command

FOUND = {
    "ours": {"P@1": 45.3, "words/s": 38_000.0, "loss": "0x1p-2", "course": [(10, 20.0), (20, 45.3)]},
    "base rate": {"P@1": 7.1},
}


@pytest.fixture
def rows(monkeypatch):
    """Rows without their processes; "broken" fails."""
    table = types.SimpleNamespace(ROWS=(*FOUND, "broken"), COURSE=("seconds", "P@1"))
    monkeypatch.setattr(command.importlib, "import_module", lambda name: table)
    monkeypatch.setattr(command, "run_apart", lambda table, row, argv: FOUND.get(row))


def test_table_and_exit_status(rows, capsys, tmp_path):
    path = tmp_path / "quality.md"
    assert command.main(["ranking", "--quick", "--markdown", str(path)]) == 1
    said = capsys.readouterr()
    assert "failed: broken" in said.err
    assert [line.split()[-3:] for line in said.out.splitlines() if line.startswith(("ours", "base"))] == [
        ["45.3", "38,000", "0x1p-2"],
        ["7.1", "-", "-"],
    ]
    assert path.read_text().splitlines()[2] == "| ours | 45.3 | 38,000 | 0x1p-2 |"
    assert command.main(["ranking", "--only", "our"]) == 0


def test_the_picture_is_legible(figures, tmp_path):
    found = {f"row {i}": {"course": [(10 * j, 20 + i + j) for j in range(5)]} for i in range(8)}
    command.draw(tmp_path / "table.png", found, ("seconds of training", "P@1"))
    check_legible(figures[-1])
    (axes,) = figures[-1].axes
    assert len({line.get_marker() for line in axes.lines}) == 8  # not by colour alone
