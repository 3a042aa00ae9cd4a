"""Exit codes: what a shell would give, and the table in the operator's guide."""

import pathlib
import re
import signal

from keras_largeout.distribute.processes import exit_codes

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs/guides/operate.md"


def test_a_signal_is_added_to_128():
    assert exit_codes.of_process(-signal.SIGKILL) == 137
    assert exit_codes.of_process(75) == 75


def test_the_guide_has_each_code():
    found = dict(re.findall(r"^\| ([\d]+)(?: \+ n)? \| `(\w+)`", GUIDE.read_text(), re.MULTILINE))
    names = {name: str(value) for name, value in vars(exit_codes).items() if name.isupper()}
    assert {name: code for code, name in found.items()} == names
