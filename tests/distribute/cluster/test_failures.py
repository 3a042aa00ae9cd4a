"""`kl.Model` on a cluster of real processes: what it survives, and what it says of what it does not."""

import re
import signal

import h5py
import pytest
from distribute.cluster._model import MODEL, ended, said

from keras_largeout.distribute.processes.exit_codes import LOST

# Slow enough to be hit in the middle of an epoch: the chief takes its time for every batch. (Not by a
# `tf.py_function`: TensorFlow can't drop an iterator that runs one when an error ends `fit`.)
LONG = (
    MODEL
    + """
class Tell(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(float(os.environ.get("PACE", 0.05)))
    def on_train_batch_end(self, batch, logs):
        if batch % 20 == 19:
            print(f"batch {self.epoch}.{batch}", flush=True)
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_epoch_end(self, epoch, logs):
        say(f"epoch_{epoch}", logs)

model = make()
"""
)


EPOCHS = (
    LONG
    + """
backup = keras.callbacks.BackupAndRestore(os.environ["FOLDER"] + "/backup", delete_checkpoint=False)
model.fit(data(60), epochs=4, shuffle=False, verbose=0, callbacks=[Tell(), backup])
say("iterations", model.optimizer.iterations.numpy())
say("loss", model.evaluate(data(20), verbose=0))
"""
)


def test_a_killed_worker_is_done_without_and_comes_back(new_cluster, folder):
    cluster = new_cluster(2, 1)
    script = cluster.run(EPOCHS, FOLDER=str(folder))
    script.wait_for(r"batch 0\.39")
    cluster.kill("worker", 1)
    script.wait_for(r"batch 1\.19")
    cluster.start(("worker", 1))
    script.wait_for("epoch_3")
    ended(script)
    # A step that was under way on the worker that was killed may have been done twice.
    assert 240 <= said(script, "iterations") <= 241
    losses = [said(script, f"epoch_{i}")["loss"] for i in range(4)]
    assert losses == sorted(losses, reverse=True) and said(script, "loss") < losses[0] - 0.5


def test_a_worker_that_stands_still_does_not_stop_the_others(new_cluster, folder):
    cluster = new_cluster(2, 1)
    script = cluster.run(EPOCHS, FOLDER=str(folder))
    script.wait_for(r"batch 0\.19")
    cluster.servers["worker", 0].send(signal.SIGSTOP)
    try:
        script.wait_for(r"batch 0\.59")  # but for the steps that it holds, the epoch is done
    finally:
        cluster.servers["worker", 0].send(signal.SIGCONT)
    ended(script)
    assert said(script, "iterations") == 240


IMPATIENT = EPOCHS.replace("strategy()", "strategy(heartbeat_timeout=5)")


def test_steps_of_a_worker_that_stands_still_go_to_another_one(new_cluster, folder):
    cluster = new_cluster(2, 1)
    script = cluster.run(IMPATIENT, FOLDER=str(folder))
    script.wait_for(r"batch 0\.19")
    cluster.servers["worker", 0].send(signal.SIGSTOP)
    script.wait_for(rf"worker 0 \({cluster.address('worker', 0)}\) did not answer for 5 s")
    script.wait_for("epoch_1")
    cluster.servers["worker", 0].send(signal.SIGCONT)
    ended(script)
    assert (
        script.lines.count(
            "WARNING:keras_largeout:A worker or server is given up after 5 s without an answer."
        )
        == 1
    )
    assert 240 <= said(script, "iterations") <= 242


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_what_stands_still_is_named_if_nothing_replaces_it(job, new_cluster, folder):
    cluster = new_cluster(1, 1)
    script = cluster.run(IMPATIENT, FOLDER=str(folder))
    script.wait_for(r"batch 0\.19")
    cluster.servers[job, 0].send(signal.SIGSTOP)
    assert script.ended() == LOST, script.text
    error = "WorkersSilentError: worker 0" if job == "worker" else "ServerLostError: parameter server 0"
    assert re.search(rf"{error} \({cluster.address(job, 0)}\)", script.text)


def test_a_killed_parameter_server_is_named_and_training_resumes(new_cluster, folder, run_alone):
    source = EPOCHS.replace("keras.callbacks.BackupAndRestore", "kl.callbacks.BackupAndRestore")
    cluster = new_cluster(1, 2)
    script = cluster.run(source, FOLDER=str(folder))
    script.wait_for(r"batch 2\.19")
    cluster.kill("ps", 1)
    assert script.ended() == LOST, script.text
    name = re.escape(f"parameter server 1 ({cluster.address('ps', 1)})")
    lost = [line for line in script.lines if "ServerLostError:" in line]
    assert len(lost) == 1 and re.search(rf"{name} was lost, and the weights that it held", lost[0])
    cluster.start(("ps", 1))
    assert len(list((folder / "backup").glob("tables-*"))) == 1
    again = ended(cluster.run(source, FOLDER=str(folder), PACE="0"))
    assert "epoch_1: " not in again.text and said(again, "iterations") == 240
    # The epochs that count are those of an undisturbed run: tables, slots and counters were restored.
    alone = run_alone(EPOCHS, FOLDER=str(folder / "alone"), PACE="0")
    assert said(again, "loss") == pytest.approx(said(alone, "loss"), rel=1e-4)


def test_a_killed_parameter_server_is_named_also_where_tensorflow_goes_on_trying(new_cluster, folder):
    cluster = new_cluster(1, 2)
    for_ever = {"TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": "1000000"}
    script = cluster.run(EPOCHS, FOLDER=str(folder), **for_ever)
    script.wait_for(r"batch 0\.19")
    cluster.kill("ps", 1)
    assert script.ended() == LOST, script.text
    lost = [line for line in script.lines if "ServerLostError:" in line]
    assert len(lost) == 1 and f"parameter server 1 ({cluster.address('ps', 1)}) was lost" in lost[0]


def test_a_killed_chief_resumes(new_cluster, folder):
    cluster = new_cluster(1, 1)
    script = cluster.run(EPOCHS, FOLDER=str(folder))
    script.wait_for(r"batch 1\.39")
    script.close()
    again = ended(cluster.run(EPOCHS, FOLDER=str(folder), PACE="0"))
    assert "epoch_0: " not in again.text
    assert said(again, "iterations") == 240


def test_sigterm_leaves_whole_files_and_no_process(new_cluster, folder):
    cluster = new_cluster(1, 1)
    often = EPOCHS.replace(
        "model.fit(",
        "saves = keras.callbacks.ModelCheckpoint(os.environ['FOLDER'] + "
        "'/w.weights.h5', save_weights_only=True, save_freq=1)\nmodel.fit(",
    ).replace("callbacks=[Tell(), backup]", "callbacks=[Tell(), backup, saves]")
    script = cluster.run(often, FOLDER=str(folder))
    script.wait_for(r"batch 0\.19")
    for server in cluster.servers.values():
        server.send(signal.SIGTERM)
    script.send(signal.SIGTERM)
    assert script.ended() != 0
    for server in cluster.servers.values():
        assert server.ended() == 0
    names = sorted(p.name for p in folder.iterdir() if p.is_file() or p.name.endswith(".partial"))
    assert names == ["w.weights.h5"]
    with h5py.File(folder / "w.weights.h5") as file:
        assert list(file)
