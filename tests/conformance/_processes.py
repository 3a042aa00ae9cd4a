"""The columns of processes: parameter servers, hosts in step. One start of TensorFlow serves all their cells.

As a script, this is what the chief runs, or each host. It runs the cells of `CELLS` (JSON: lists of a table's
name, the row, the column), and prints what each has told, or its traceback.
"""

import fcntl
import json
import os
import pathlib
import tempfile
import traceback

import pytest

TABLES = {"layers": "conformance._layer_checks", "optimizers": "conformance._optimizer_checks"}
#: Columns of hosts: how many, and the devices of each.
HOSTS = {"2 hosts": (2, 1), "4 hosts": (4, 1), "2 hosts of 2": (2, 2)}
COLUMNS = ("servers", *HOSTS)


def run_cells():
    import importlib

    import tensorflow as tf

    import keras_largeout as kl

    tf.config.optimizer.set_experimental_options(json.loads(os.environ["OPTIONS"]))
    replicas, devices = json.loads(os.environ["REPLICAS"])
    strategy = kl.distribute.strategy(devices)
    assert strategy.num_replicas_in_sync == replicas
    for table, row, check in json.loads(os.environ["CELLS"]):
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = importlib.import_module(TABLES[table]).run
                told = {"told": run(row, check, strategy, pathlib.Path(folder))}
            except BaseException:
                told = {"error": traceback.format_exc()}
        print(f">> {json.dumps([table, row, check, told], default=float)}", flush=True)


def results(column, cells, folder):
    """What the cells told: `{(table, row, check): {"told": ...} or {"error": ...}}`.

    Args:
        column: one of `COLUMNS`.
        cells: the cells of this session, sorted.
        folder: one of the session's, shared by its processes: the first that asks runs the cells for all.
    """
    path = pathlib.Path(folder) / f"{column.replace(' ', '_')}.json"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            told = _on_hosts(*HOSTS[column], cells, folder) if column in HOSTS else _on_servers(cells, folder)
            path.write_text(json.dumps(told))
    return {(table, row, check): told for table, row, check, told in json.loads(path.read_text())}


def _environment(cells, replicas=1, devices=None, rewrites=True):
    tests = str(pathlib.Path(__file__).parents[1])
    return {
        "CELLS": json.dumps(cells),
        "REPLICAS": json.dumps([replicas, devices]),
        "OPTIONS": json.dumps({} if rewrites else {"disable_meta_optimizer": True}),
        "PYTHONPATH": os.pathsep.join([tests, os.environ["PYTHONPATH"]]),
    }


_SCRIPT = "from conformance._processes import run_cells\nrun_cells()\n"


def _on_servers(cells, folder):
    from _cluster import LocalCluster

    cluster = LocalCluster(folder, workers=1, ps=2)
    try:
        cluster.start()
        return _told(cluster.run(_SCRIPT, **_environment(cells)), len(cells))
    finally:
        cluster.close()


def _on_hosts(count, devices, cells, folder):
    """What the first host told; an error where another told something else, bit for bit."""
    import tensorflow as tf

    from tests.distribute.hosts._local import LocalHosts

    off = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    script = pathlib.Path(folder) / "hosts.py"
    script.write_text(_SCRIPT)
    own = _environment(cells, count * devices, devices, rewrites=not off)
    hosts = LocalHosts(script, count, (), **own)
    try:
        first, *others = (_told(host, len(cells)) for host in hosts.hosts)
    finally:
        hosts.close()
    for theirs in others:
        for cell, other in zip(first, theirs):
            if "error" in other[-1]:
                cell[-1] = other[-1]
            elif other != cell:
                cell[-1] = {"error": f"hosts have different numbers: {cell} and {other}"}
    return first


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
