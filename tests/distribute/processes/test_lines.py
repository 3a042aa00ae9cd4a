"""Lines of output as JSON objects."""

import json

import pytest

from keras_largeout.distribute.processes.log_lines import as_json


@pytest.mark.parametrize(
    "line, level",
    [
        ("2026-01-02 03:04:05.678901: W tensorflow/core/x.cc:1] careful", "WARNING"),
        ("E0000 00:00:1767.12 3 x.cc:2] wrong", "ERROR"),
        ("F0102 03:04:05.6 7 x.cc:2] the end", "CRITICAL"),
        ("WARNING:tensorflow:careful", "WARNING"),
        ("CRITICAL: the end", "CRITICAL"),
        ("WARNINGS are printed", "INFO"),
        ("I think so", "INFO"),
        ("Epoch 1/2", "INFO"),
        ("", "INFO"),
        ("100% of \"x\" 'y' \\ \u00e9", "INFO"),
    ],
)
def test_the_level_is_the_one_that_a_line_begins_with(line, level):
    data = as_json("worker 0", f"{line}\r\n".encode())
    assert data.endswith(b"}\n") and data.count(b"\n") == 1
    found = json.loads(data)
    assert (found["process"], found["level"], found["text"]) == ("worker 0", level, line)


def test_bytes_that_are_no_text_are_replaced():
    assert json.loads(as_json("ps 0", b"\xff\n", "ERROR"))["text"] == "\ufffd"
