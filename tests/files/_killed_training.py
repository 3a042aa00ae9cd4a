"""Training of a model of Keras that is killed, again and again, and goes on where its backup is.

`python _killed_training.py FOLDER KILLS SEED`: each training is its own process, forked before
TensorFlow has done anything. It saves after every batch, by both callbacks, and is killed by SIGKILL at a
random moment. Prints how many kills there were, how many of them in the middle of a save, and the step that
was reached.
"""

import json
import os
import pathlib
import random
import signal
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

import keras_largeout as kl
from keras_largeout.files.verified_loading import verify_file

folder, kills, seed = sys.argv[1:]
folder = pathlib.Path(folder)
checkpoint, backup = folder / "m.keras", folder / "backup"


class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if logs:  # not of a batch that is passed by, whose step is in the backup
            (folder / f"began-{os.getpid()}").touch()


def make():
    ids = keras.Input((2,), dtype="int32")
    x = keras.layers.Flatten()(kl.layers.ShardedEmbedding(20_000, 8)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    return model


def train():
    saves = kl.callbacks.ModelCheckpoint(checkpoint, save_freq=1)
    backs_up = kl.callbacks.BackupAndRestore(backup, save_freq=1)
    data = np.arange(20).reshape(10, 2), np.ones(10)
    make().fit(*data, batch_size=1, epochs=10**6, verbose=0, callbacks=[saves, backs_up, Tell()])


def reached():
    """The step and the epoch of the backup, when both files are found whole."""
    if not checkpoint.exists():
        return 0
    verify_file(checkpoint)
    verify_file(backup / "latest.weights.h5")
    import h5py

    with h5py.File(backup / "latest.weights.h5") as file:
        return int(file["optimizer/vars/0"][()])


def main():
    random.seed(int(seed))
    midst, step = 0, 0
    for _ in range(int(kills)):
        child = os.fork()
        if child == 0:
            train()
        began = folder / f"began-{child}"
        while not began.exists():
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the training ended by itself"
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        midst += any(f"-{child}-" in path.name for path in [*folder.iterdir(), *backup.iterdir()])
        assert reached() >= step, (reached(), step)
        step = reached()
    child = os.fork()  # what was left is enough for a load; TensorFlow has still done nothing here
    if child == 0:
        try:
            assert keras.models.load_model(checkpoint).optimizer.iterations >= step
        finally:
            os._exit(sys.exc_info()[0] is not None)
    assert os.waitpid(child, 0)[1] == 0
    print(json.dumps({"kills": int(kills), "in the middle of a save": midst, "step": step}))


main()
