"""`kl.callbacks.PrometheusMetrics`: what it serves over HTTP, and where."""

import socket
import sys
import urllib.error
import urllib.request

import keras
import numpy as np
import pytest

import keras_largeout as kl

parser = pytest.importorskip("prometheus_client.parser")


def get(metrics, path="metrics"):
    """`(status, text)` of a path."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(metrics):
    """The value of each sample, by its name and the values of its labels."""
    families = parser.text_string_to_metric_families(get(metrics)[1])
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def metrics(tmp_path):
    made = kl.callbacks.PrometheusMetrics(0, healthy_seconds=60.0, backup_dir=tmp_path / "backup")
    yield made
    made.close()


class During(keras.callbacks.Callback):
    """Keeps what is served within a step, and after one."""

    def __init__(self, metrics):
        super().__init__()
        self.metrics, self.within, self.health = metrics, [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.within.append(values(self.metrics))
        if batch == 1:
            self.health.append(get(self.metrics, "healthz"))
            self.metrics._progress -= 60.0  # as if that time had passed
            self.health.append(get(self.metrics, "healthz"))


def _model():
    ids = keras.Input((2,), dtype="int32")
    words = kl.layers.ShardedEmbedding(10, 4, combiner="sum", name="words")
    model = kl.Model(ids, keras.layers.Dense(1)(words(ids)))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    return model


def test_steps_tables_and_the_last_backup(metrics, tmp_path):
    model, data = _model(), (np.arange(12).reshape(6, 2) % 10, np.ones(6))
    during = During(metrics)
    backup = kl.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    callbacks = [metrics, during, backup]
    model.fit(*data, batch_size=2, epochs=2, verbose=0, validation_data=data, callbacks=callbacks)
    first, later = during.within[0], values(metrics)
    assert [step["keras_largeout_steps_total", "train"] for step in during.within] == [0, 1, 2, 3, 4, 5]
    assert later["keras_largeout_steps_total", "train"] == 6
    assert later["keras_largeout_steps_total", "test"] == 6
    in_flight = ("keras_largeout_step_in_flight_seconds",)
    assert first[in_flight] > 0 and later[in_flight] == 0
    assert np.isnan(first[("keras_largeout_backup_age_seconds",)])
    assert 0 <= later[("keras_largeout_backup_age_seconds",)] < 60
    of_table = {name[0]: value for name, value in later.items() if any("words" in part for part in name)}
    # LazyAdam has two slots.
    assert of_table == {"keras_largeout_rows": 10, "keras_largeout_bytes": 3 * 10 * 4 * 4}
    assert later[("process_resident_memory_bytes",)] > 0
    (young, text), (old, _) = during.health[:2]
    assert young == 200 and text.startswith("the last sign of progress is ") and old == 503
    metrics._progress -= 60.0
    assert get(metrics, "healthz") == (200, "nothing is under way\n")


def test_a_call_of_several_steps_counts_them(metrics):
    model = _model()
    model.compile("sgd", "mse", steps_per_execution=2)
    model.predict(np.zeros((8, 2), "int32"), batch_size=2, verbose=0, callbacks=[metrics])
    assert values(metrics)["keras_largeout_steps_total", "predict"] == 4


def test_it_listens_on_its_address_alone(metrics):
    _model().predict(np.zeros((1, 2), "int32"), verbose=0, callbacks=[metrics])
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.2", metrics.port))
    other = kl.callbacks.PrometheusMetrics(metrics.port)
    with pytest.raises(
        OSError, match=f"`PrometheusMetrics` cannot listen on port {metrics.port} of 127.0.0.1"
    ):
        _model().predict(np.zeros((1, 2), "int32"), verbose=0, callbacks=[other])
    metrics.close()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", metrics.port))


def test_refusals(monkeypatch):
    with pytest.raises(ValueError, match="`port` must be an integer of at least 0"):
        kl.callbacks.PrometheusMetrics(-1)
    with pytest.raises(ValueError, match="`port` must be at most 65535"):
        kl.callbacks.PrometheusMetrics(65536)
    with pytest.raises(ValueError, match="`healthy_seconds` must be a positive number"):
        kl.callbacks.PrometheusMetrics(0, healthy_seconds=0)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install keras-largeout\[metrics\]"):
        kl.callbacks.PrometheusMetrics(0)
