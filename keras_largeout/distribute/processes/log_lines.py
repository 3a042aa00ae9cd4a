"""A line of output as the launcher shows and keeps it: as text, or as a JSON object."""

import json
import logging
import re
import time

# How Python's logging, absl and TensorFlow begin a line of a level.
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|(?:[-\d]+ [:.\d]+: )?([IWEF])(?:\d{4})? ")
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}


class _Json(logging.Formatter):
    converter = time.gmtime
    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"

    def format(self, record):
        of_record = {"time": self.formatTime(record), "process": record.name, "level": record.levelname}
        return json.dumps({**of_record, "text": record.getMessage()})


_JSON = _Json()


def as_text(process, line, level=None):
    """Return a line, bytes with its end, under the name of the process."""
    return f"[{process}] ".encode() + line


def as_json(process, line, level=None):
    """Return a JSON object of `time`, `process`, `level` and `text`, bytes with an end of line.

    Args:
        process: str, what the launcher calls the process.
        line: bytes.
        level: str, a level of `logging`. None: what the line begins with, or else "INFO".
    """
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if level is None:
        found = _LEVEL.match(text)
        level = (found[1] or _LETTERS[found[2]]) if found else "INFO"
    number = getattr(logging, level)
    return _JSON.format(logging.LogRecord(process, number, "", 0, text, None, None)).encode() + b"\n"


FORMS = {"text": as_text, "json": as_json}
