"""Hosts that are lost: the others end with one error that names them, and the next start goes on."""

import random
import signal
import time

import keras
import pytest

from keras_largeout.distribute.processes.exit_codes import LOST

TRAINING = """
import os, sys, time
import keras
import numpy as np
import keras_largeout as kl

folder, epochs = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x, y = rng.integers(0, 300, (64, 4)), rng.integers(0, 90, 64)
strategy = kl.distribute.strategy()
print("connected", flush=True)


class Tell(keras.callbacks.Callback):
    pauses = len(sys.argv) > 3  # once, between two steps

    def on_train_batch_end(self, batch, logs):
        if self.pauses and batch == 4:
            self.pauses = False
            print("between", flush=True)
            time.sleep(1.0)

    def on_epoch_end(self, epoch, logs):
        print("epoch", epoch, "%.6f" % logs["loss"], flush=True)


try:
    with strategy.scope():
        ids = keras.Input((4,), dtype="int64")
        words = kl.layers.ShardedEmbedding(300, 8, placement="permutation", combiner="mean")
        head = kl.layers.FullSoftmax(90)
        model = kl.Model(ids, head(words(ids)))
        model.compile(kl.optimizers.Adagrad(0.1), loss=head.loss)
    callbacks = [kl.callbacks.BackupAndRestore(folder, delete_checkpoint=False), Tell()]
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=2, callbacks=callbacks)
except kl.distribute.HostLostError as error:
    print("lost:", error, flush=True)
    raise
print("trained", "%.6f" % np.abs(words.table.numpy()).sum(), flush=True)
"""

BACKUP = "kl.callbacks.BackupAndRestore(folder, delete_checkpoint=False)"
CHECKPOINT = 'kl.callbacks.ModelCheckpoint(f"{folder}/model.keras")'
# The first host ends where it has written some of the arrays of its second file.
DIES_WHILE_IT_SAVES = """
import json, os, signal
from keras_largeout.tables.row_range import RowRange

as_ever, saved = RowRange.save, {}


def save(self, store, key):
    as_ever(self, store, key)
    saved[self.array.name, key] = saved.get((self.array.name, key), 0) + 1
    if max(saved.values()) == 2 and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


RowRange.save = save
"""


@pytest.mark.parametrize("number, victim", [(signal.SIGKILL, 1), (signal.SIGSTOP, 0)])
def test_a_lost_host_is_named_by_all_others(number, victim, new_hosts, tmp_path):
    hosts = new_hosts(TRAINING, 3, tmp_path / "backup", 100_000)
    for host in hosts.hosts:
        host.wait_for("^epoch 2 ")
    hosts.hosts[victim].send(number)
    for index in {0, 1, 2} - {victim}:
        assert hosts.hosts[index].ended() == LOST, hosts.text()
        line = hosts.hosts[index].wait_for("^lost: ").string
        assert line.startswith(f"lost: {hosts.name(victim)} was lost."), line


def test_another_number_of_hosts_goes_on_from_the_backup(new_hosts, tmp_path):
    hosts = new_hosts(TRAINING, 2, tmp_path / "backup", 100_000)
    hosts.hosts[1].wait_for("^epoch 3 ")
    hosts.hosts[0].send(signal.SIGKILL)
    assert hosts.hosts[1].ended() == LOST, hosts.text()
    seen = [line.split()[1:] for line in hosts.hosts[1].lines if line.startswith("epoch ")]
    more = int(seen[-1][0]) + 4
    goes_on = new_hosts(TRAINING, 3, tmp_path / "backup", more)
    assert goes_on.ended() == [0, 0, 0], goes_on.text()
    alone = new_hosts(TRAINING, 1, tmp_path / "of_one", more)
    assert alone.ended() == [0], alone.text()
    expected = dict(line.split()[1:] for line in alone.hosts[0].lines if line.startswith("epoch "))
    after = dict(line.split()[1:] for line in goes_on.hosts[2].lines if line.startswith("epoch "))
    assert len(after) < more  # it did not begin again
    for epoch, loss in {**dict(seen), **after}.items():
        assert float(loss) == pytest.approx(float(expected[epoch]), rel=1e-4), epoch
    trained = [host.wait_for("^trained (.*)").group(1) for host in (*goes_on.hosts, *alone.hosts)]
    assert [float(value) for value in trained] == pytest.approx([float(trained[-1])] * 4, rel=1e-5)


def _losses(*hosts):
    """The losses of the epochs that hosts have told, as they wrote them."""
    lines = (line.split()[1:] for host in hosts for line in host.lines if line.startswith("epoch "))
    return {int(epoch): float(loss) for epoch, loss in lines}


@pytest.mark.parametrize("callback", [BACKUP, CHECKPOINT], ids=["backup", "checkpoint"])
def test_the_first_host_ends_while_it_saves(callback, new_hosts, tmp_path):
    folder, script = tmp_path / "saved", TRAINING.replace(BACKUP, callback)
    folder.mkdir()
    hosts = new_hosts(DIES_WHILE_IT_SAVES + script, 2, folder, 100_000)
    assert hosts.ended() == [-signal.SIGKILL, LOST], hosts.text()
    assert hosts.hosts[1].wait_for("^lost: ").string.startswith(f"lost: {hosts.name(0)} was lost.")
    assert [path.name for path in folder.iterdir() if path.name.endswith(".partial")]  # that was the moment
    if callback == CHECKPOINT:
        saved = keras.models.load_model(folder / "model.keras")  # all of it is compared with its digests
        assert saved.optimizer.iterations.numpy() == 8
        return
    goes_on = new_hosts(script, 2, folder, 3)
    assert goes_on.ended() == [0, 0], goes_on.text()
    assert set(_losses(*goes_on.hosts)) == {1, 2}
    assert not [path for path in folder.iterdir() if path.name.endswith(".partial")]


@pytest.mark.soak
def test_ten_times_in_a_row(new_hosts, tmp_path):
    """Each time another host is lost at another moment, and another number of hosts goes on."""
    rng, seen = random.Random(20), {}
    moments = ["^connected", "^between"] + ["^epoch"] * 3
    signals = [signal.SIGKILL] * 7 + [signal.SIGSTOP] * 3
    rng.shuffle(signals)
    for time_, number in enumerate(signals):
        count, moment = rng.choice([2, 3]), moments[time_ % len(moments)]
        victim, delay = rng.randrange(count), rng.uniform(0.0, 0.8)
        what = f"{time_}: {number.name} of {victim} of {count}, {delay:.2f} s after {moment}"
        hosts = new_hosts(TRAINING, count, tmp_path / "backup", 100_000, *["pause"] * (moment == "^between"))
        hosts.hosts[victim].wait_for(moment)
        time.sleep(delay)
        hosts.hosts[victim].send(number)
        for index, host in enumerate(hosts.hosts):
            if index != victim:
                assert host.ended() == LOST, f"{what}\n{hosts.text()}"
                named = [line for line in host.lines if line.startswith(("lost: ", "HostLostError: "))]
                assert len(named) == 1, f"{what}\n{host.text}"
                assert f" {hosts.name(victim)} was lost." in named[0], f"{what}\n{named[0]}"
                # Where Keras makes a variable nobody catches TensorFlow's error: the name follows it.
                assert named[0].startswith("lost: ") or moment == "^connected", f"{what}\n{host.text}"
        seen |= _losses(*hosts.hosts)
        hosts.close()
    first = new_hosts(TRAINING, 2, tmp_path / "backup", max(seen) + 4)
    assert first.ended() == [0, 0], first.text()
    seen |= _losses(*first.hosts)
    alone = new_hosts(TRAINING, 1, tmp_path / "of_one", max(seen) + 1)
    assert alone.ended() == [0], alone.text()
    expected = _losses(*alone.hosts)
    assert set(seen) == set(expected)  # no epoch is left out
    assert seen == pytest.approx(expected, rel=1e-4)


def test_sigterm_ends_a_host_cleanly(new_hosts, tmp_path):
    hosts = new_hosts(TRAINING, 2, tmp_path / "backup", 100_000)
    for host in hosts.hosts:
        host.wait_for("^epoch 1 ")
    for host in hosts.hosts:
        host.send(signal.SIGTERM)
    codes = hosts.ended()
    assert set(codes) <= {3, 128 + signal.SIGTERM} and 128 + signal.SIGTERM in codes, (codes, hosts.text())


def test_another_build_is_refused(new_hosts):
    connect = (
        "import os, keras_largeout as kl\n"
        "from keras_largeout.distribute.hosts import connect\n"
        "own = connect.build_info\n"
        "if '\"index\": 1' in os.environ['TF_CONFIG']:\n"
        "    connect.build_info = lambda: {**own(), 'sources': 'abc'}\n"
        "kl.distribute.strategy()\n"
    )
    hosts = new_hosts(connect, 2)
    assert hosts.ended() == [1, 1]
    for host in hosts.hosts:
        assert f"{hosts.name(1)} has another build of keras_largeout than {hosts.name(0)}" in host.text
