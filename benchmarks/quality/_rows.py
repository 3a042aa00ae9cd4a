"""Run a row in its own process, which begins with its table imported: TensorFlow takes 4 to 5 seconds."""

import importlib
import json
import multiprocessing
import pathlib
import tempfile

_FORKS = multiprocessing.get_context("forkserver")


def run_apart(table, row, argv):
    """Return the columns of a row; None if it failed. Its process has its own memory."""
    print(f"\n== {row}", flush=True)
    module = f"benchmarks.quality.{table}"
    _FORKS.set_forkserver_preload([module])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "row.json"
        process = _FORKS.Process(target=_run, args=(module, row, argv, path))
        process.start()
        process.join()
        return None if process.exitcode else json.loads(path.read_text())


def _run(module, row, argv, path):
    path.write_text(json.dumps(importlib.import_module(module).run(row, argv)))
