"""Fixtures of hosts in step, processes of this machine."""

import pytest
from _cluster import alone

from tests.hosts._local import LocalHosts


@pytest.fixture
def new_hosts(tmp_path):
    """`new_hosts(source, count, *arguments)`: `LocalHosts` that run a script; they end with the test."""
    made = []

    def make(source, count, *arguments, **environment):
        script = tmp_path / "script.py"
        script.write_text(source)
        made.append(LocalHosts(script, count, arguments, **environment))
        return made[-1]

    with alone():
        yield make
        for hosts in made:
            hosts.close()
