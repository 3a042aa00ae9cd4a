"""The column of parameter servers. One start of TensorFlow serves all its cells.

As a script, this is what the chief runs. It runs the cells of `CELLS` (JSON: lists of a table's name, the
row, the column), and prints what each has told, or its traceback.
"""

import json
import os
import pathlib
import tempfile
import traceback

import pytest

TABLES = {"layers": "conformance._layer_checks", "optimizers": "conformance._optimizer_checks"}


def run_cells():
    import importlib

    import keras_largeout as kl

    strategy = kl.distribute.strategy()
    for table, row, check in json.loads(os.environ["CELLS"]):
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = importlib.import_module(TABLES[table]).run
                told = {"told": run(row, check, strategy, pathlib.Path(folder))}
            except BaseException:
                told = {"error": traceback.format_exc()}
        print(f">> {json.dumps([table, row, check, told], default=float)}", flush=True)


def run(cells, folder):
    """Run `cells` (those of this session) on servers, and write what they tell into `folder`."""
    (folder / "told.json").write_text(json.dumps(_on_servers(cells, folder)))


def results(folder):
    """Return what the cells told: `{(table, row, check): {"told": ...} or {"error": ...}}`."""
    found = json.loads((folder / "told.json").read_text())
    return {(table, row, check): told for table, row, check, told in found}


_SCRIPT = "from conformance._processes import run_cells\nrun_cells()\n"


def _on_servers(cells, folder):
    from _cluster import LocalCluster

    path = os.pathsep.join([str(pathlib.Path(__file__).parents[1]), os.environ["PYTHONPATH"]])
    cluster = LocalCluster(folder, workers=1, ps=2)
    try:
        cluster.start()
        return _told(cluster.run(_SCRIPT, CELLS=json.dumps(cells), PYTHONPATH=path), len(cells))
    finally:
        cluster.close()


def _told(script, count):
    """What `count` cells told; all that the script said where it told less."""
    lost = []
    try:
        for i in range(count):
            script.wait_for("^>> ", times=i + 1)
        assert script.ended() == 0, script.text
    except (Exception, pytest.fail.Exception):
        lost = [["", "", "", {"error": script.text}]]
    return [json.loads(line.removeprefix(">> ")) for line in script.lines if line.startswith(">> ")] + lost
