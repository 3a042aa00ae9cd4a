"""Synchronous hosts: ragged batches, vocabularies, callbacks, files, data made by each host."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
from _session import once

from tests.distribute.hosts import _model
from tests.distribute.hosts._local import LocalHosts


@pytest.fixture(scope="module")
def said(request):
    """The folder of two hosts, and what each has said."""
    folder = once(request.config, "said_by_hosts", _run)
    return folder, json.loads(_told(folder).read_text())


def _told(folder):
    return folder.with_suffix(".json")  # beside the folder, in which tests look at every file


def _run(folder):
    hosts = LocalHosts(pathlib.Path(_model.__file__), 2, [folder])
    try:
        found = [json.loads(h.wait_for("^said (.*)").group(1)) for h in hosts.hosts]
        assert hosts.ended() == [0, 0], hosts.text()
    finally:
        hosts.close()
    _told(folder).write_text(json.dumps(found))


@pytest.fixture(scope="module")
def one_device():
    model = _model.model_of()
    history = model.fit(_model.batches(), epochs=2, verbose=0)
    return model, history.history["loss"]


def test_losses(said, one_device):
    for host in said[1]:
        np.testing.assert_allclose(host["losses"], one_device[1], 1e-5)


def test_the_first_host_writes(said):
    names = {path.name for path in said[0].iterdir()}
    assert names == {"log_0.csv", "model.keras", "weights_1.weights.h5", "weights_2.weights.h5"}


def test_files_load_on_one_device(said, one_device):
    folder, found = said
    model = _model.model_of()
    model.optimizer.build(model.trainable_variables)  # otherwise its step and slots are skipped
    model.load_weights(folder / "weights_2.weights.h5")
    np.testing.assert_allclose(
        model.get_layer("users").table.numpy(), one_device[0].get_layer("users").table.numpy(), 1e-4, 1e-5
    )
    assert int(model.optimizer.iterations) == 6
    loaded = keras.models.load_model(folder / "model.keras")
    for host in found:
        assert np.abs(loaded.get_layer("users").table.numpy()).sum() == pytest.approx(host["users"], rel=1e-6)
    assert loaded.predict(_model.batches(), verbose=0).shape == (36, 8)


def test_all_hosts_know_what_each_replica_asked(said):
    first, second = (np.array(host["asked"]) for host in said[1])
    np.testing.assert_array_equal(first, second)
    assert first.shape[0] == 2 and (first[:, 0, 1:].sum(axis=1) > 0).all()  # replicas, kinds, shards


def test_all_hosts_know_which_rows_were_used(said):
    ids = sum(len(bag) for bag in _model.data()[0].numpy())
    assert [host["ids"] for host in said[1]] == [ids, ids]


def test_a_function_of_each_host(said):
    first, second = (host["by_function"] for host in said[1])
    assert first == second and np.isfinite(first).all()


def test_all_hosts_stop_with_one(said):
    assert [host["steps"] for host in said[1]] == [2, 2]


def test_hosts_share_a_folder(said):
    (first, found), second = (host["shared"] for host in said[1])
    assert second == [first, True] and found
    assert not pathlib.Path(first).exists()


def test_tables_get_more_rows(said):
    for host in said[1]:
        assert host["resized"] == [_model.USERS + 7, pytest.approx(host["users"], rel=1e-6)]


def test_a_folder_that_a_host_does_not_find_is_an_error_on_all(said):
    first, second = (host["not_shared"] for host in said[1])
    assert first == second
    path = re.fullmatch(r".* as TMPDIR\. Received: (.+), which is not there on every host", first)[1]
    assert not pathlib.Path(path).exists()
