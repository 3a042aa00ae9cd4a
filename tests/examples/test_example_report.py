"""What the examples say in a log, and the dense outputs that they compare with, saved."""

import importlib.util
import os
import pathlib

import keras
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _module(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_progress_without_a_terminal(capsys):
    report = _module("_report")
    verbose, callbacks = report.progress()
    assert verbose == 2 and len(callbacks) == 1
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((12, 1))
    model.fit(x, x, batch_size=4, verbose=0, callbacks=[report.Progress(seconds=0)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].split(",")[0] for line in lines] == [" step 1 of 3", " step 2 of 3"]
    assert "s left" not in lines[0] and "s left, loss " in lines[1]  # the first step is that of tracing
    model.fit(x, x, batch_size=4, verbose=0, callbacks=callbacks)  # it has not taken 15 seconds
    assert not capsys.readouterr().out


@pytest.mark.parametrize("loss", ["binary_crossentropy", "squared_hinge"])
def test_dense_outputs_are_saved_and_loaded(tmp_path, loss):
    outputs = _module("_outputs")
    x = keras.Input((3,))
    head = outputs.DenseLabels(6, loss)
    model = keras.Model(x, head(x))
    model.compile("sgd", head.loss)
    data = np.ones((4, 3)), np.array([[1, -1], [2, 3], [0, 5], [-1, -1]])
    model.fit(*data, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].loss_kind == loss
    assert loaded.train_on_batch(*data) == model.train_on_batch(*data)
    found = loaded.layers[-1].predictor(loaded, k=2)(data[0])
    assert found["ids"].shape == (4, 2)


def test_what_is_held_back_is_shown_where_something_fails(capfd):
    quiet = _module("_quiet")
    with quiet.held_back():
        os.write(2, b"noise\n")
    assert not capfd.readouterr().err
    with pytest.raises(ValueError, match="broken"), quiet.held_back():
        os.write(2, b"why\n")
        raise ValueError("broken")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "why\nafter\n"
