"""Hosts that are about to train apart: an error on all of them says what differs."""

import json

import numpy as np
import pytest

import keras_largeout as kl
from keras_largeout.distribute.hosts import agreement

SCRIPT = """
import json, os, sys
import keras
import numpy as np
import keras_largeout as kl

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
x = np.arange(24).reshape(8, 3)
strategy = kl.distribute.strategy()


def fit(epsilon=0.5, activation="tanh", epochs=1, callbacks=()):
    with strategy.scope():
        ids = keras.Input((3,), dtype="int64")
        head = kl.layers.FullSoftmax(9)
        rows = keras.layers.Flatten()(kl.layers.ShardedEmbedding(30, 2)(ids))
        model = kl.Model(ids, head(keras.layers.Dense(4, activation=activation)(rows)))
        model.compile(kl.optimizers.Adagrad(0.1, epsilon=epsilon), loss=head.loss)
    try:
        model.fit(x, x[:, 0] % 9, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks))
        print("trained", flush=True)
    except ValueError as error:
        print("refused:", error, flush=True)


fit()
fit(epsilon=0.5 + index)
fit(activation=["tanh", "relu"][index])
fit(epochs=1 + index)
fit(callbacks=[kl.callbacks.BackupAndRestore(sys.argv[1])][index:])
"""


def test_what_differs_between_hosts_is_named_by_all(new_hosts, tmp_path):
    hosts = new_hosts(SCRIPT, 2, tmp_path / "backup")
    assert hosts.ended() == [0, 0], hosts.text()
    for host in hosts.hosts:
        said = [line for line in host.lines if line.startswith(("trained", "refused"))]
        assert said[0] == "trained", hosts.text()
        for line, parts in zip(
            said[1:],
            [
                ("the same optimizers", "{'epsilon': 0.5} on host 0", "{'epsilon': 1.5} on host 1"),
                ("the same layers", "'activation': 'tanh'", "'activation': 'relu'"),
                ("the same arguments of `fit`", "{'epochs': 1} on host 0", "{'epochs': 2} on host 1"),
                ("the same kl.callbacks.BackupAndRestore", "['BackupAndRestore'] on host 0", "[] on host 1"),
            ],
            strict=True,
        ):
            assert line.startswith("refused: All hosts must have"), hosts.text()
            assert all(part in line for part in parts), line


@pytest.mark.parametrize("flag", ["--same", "--own"])
def test_other_arguments_of_the_script_are_worth_a_warning(flag, new_hosts, tmp_path):
    script = (
        SCRIPT.partition("fit()\n")[0]
        + "if sys.argv[2] == '--own':\n    sys.argv.append(str(index))\nfit()\n"
    )
    hosts = new_hosts(script, 2, tmp_path, flag)
    assert hosts.ended() == [0, 0], hosts.text()
    for host in hosts.hosts:
        warned = any("must have the same arguments of the script" in line for line in host.lines)
        assert warned is (flag == "--own") and "trained" in host.lines, hosts.text()


def test_folders_of_tables_are_each_hosts_own(tmp_path):
    """A folder has a random number, which the config of its layer says."""
    configs = []
    for host in ("a", "b"):
        layer = kl.layers.ShardedEmbedding(9, 2, storage=f"file:{tmp_path / host}", name=host)
        layer.build()
        configs.append(layer)
    assert configs[0].get_config()["storage_id"] != configs[1].get_config()["storage_id"]
    assert agreement._layer(configs[0]) == agreement._layer(configs[1])


def test_arrays_in_a_config_are_compared_by_value():
    said = json.dumps({"a": np.arange(3), "b": np.float32(2), "c": object()}, default=agreement._name)
    assert json.loads(said) == {"a": [0, 1, 2], "b": 2.0, "c": "object"}
