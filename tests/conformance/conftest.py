"""Fixtures of the tables."""

import functools

import pytest
from _session import once
from conformance import _processes


@functools.cache
def _results(session):
    chosen = {
        (item.originalname.removeprefix("test_") + "s", *map(item.callspec.params.get, ("row", "check")))
        for item in session.items
        if "conformance" in item.path.parts and item.callspec.params.get("strategy") == "servers"
    }
    folder = once(session.config, "servers", lambda folder: _processes.run(sorted(chosen), folder))
    return _processes.results(folder)


@pytest.fixture
def in_processes(request):
    """`in_processes(table, row, check)`: what the cell told in the processes of a cluster, or fails."""

    def told(*cell):
        results = _results(request.session)
        found = results.get(cell) or results.get(("", "", ""))
        assert found, f"the processes ended before they came to {cell}"
        assert "error" not in found, found["error"]
        return found["told"]

    return told
