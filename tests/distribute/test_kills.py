"""Processes of every kind are killed, told to end, and stopped for a while, again and again.

`python -m pytest -m soak tests/distribute/test_kills.py`; `LARGEOUT_KILLS` is how often (10 by default),
`LARGEOUT_SEED` makes another choice of victims and moments. A table at the end counts what was lost (a save
that cannot be loaded, or an older one than there was) and what hung.

Scripts on one device run in containers: two PID namespaces that share a folder.
"""

import collections
import contextlib
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from _cluster import LocalCluster, Running

from keras_largeout.distribute.processes.exit_codes import LOST, SIGNAL
from keras_largeout.files.verified_loading import verify_file
from tests.distribute.hosts._local import LocalHosts

pytestmark = pytest.mark.soak

TRAINING = """
import sys
import keras
import numpy as np
import keras_largeout as kl

folder, storage = sys.argv[1:]
keras.utils.set_random_seed(3)
strategy = kl.distribute.strategy()


class Tell(keras.callbacks.Callback):
    first = True

    def on_epoch_begin(self, epoch, logs=None):
        if self.first:
            print("from", epoch, flush=True)
        self.first = False

    def on_epoch_end(self, epoch, logs=None):
        print("saved", epoch + 1, flush=True)


with strategy.scope():
    ids = keras.Input((2,), dtype="int64")
    rows = kl.layers.ShardedEmbedding(500, 4, storage=storage, name="rows")(ids)
    model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
data = np.arange(64).reshape(32, 2), np.ones(32)
callbacks = [kl.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False), Tell()]
model.fit(*data, batch_size=8, epochs=10**6, verbose=0, callbacks=callbacks)
"""
# Two of them save to one file; what each loads may be of the other one.
SAVING = """
import os, signal, sys
import keras
import numpy as np
import keras_largeout as kl

path = sys.argv[1]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 of a container has none by itself
if os.path.exists(path):
    model = keras.models.load_model(path)
else:
    ids = keras.Input((2,), dtype="int64")
    rows = kl.layers.ShardedEmbedding(20_000, 8, name="rows")(ids)
    model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
print("from", 0, flush=True)
for step in range(10**6):
    model.train_on_batch(np.ones((4, 2), "int64"), np.ones(4))
    model.save(path)
    print("saved", step + 1, flush=True)
"""


class LostError(Exception):
    pass


class HungError(Exception):
    pass


def wait(process, pattern, times=1):
    try:
        return process.wait_for(pattern, times)
    except AssertionError as error:
        raise (LostError if "ended before" in str(error) else HungError)(str(error)) from None


def saved(process):
    """The numbers of the saves that a process has told."""
    return [int(line.split()[1]) for line in list(process.lines) if line.startswith("saved ")]


def goes_on(process):
    wait(process, "^saved ", len(saved(process)) + 2)


def ended(process, *codes):
    try:
        code = process.ended()
    except pytest.fail.Exception as error:
        raise HungError(str(error)) from None
    if code not in codes:
        raise LostError(f"exit code {code}, expected was one of {codes}:\n{process.text}")


def began(process, reached):
    first = int(wait(process, r"^from (\d+)").group(1))
    if first < reached:
        raise LostError(f"it goes on from {first}, and {reached} was saved:\n{process.text}")
    wait(process, "^saved ", 2)


def codes_of(number):
    """The exit codes of a process that `number` has ended, as Python has them of a child."""
    return -number, SIGNAL + number


def stopped(pid, rng):
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.3, 3.0))
    os.kill(pid, signal.SIGCONT)


class Containers:
    """Two scripts, each process 1 of its PID namespace, in one folder."""

    def __init__(self, folder, source, *arguments):
        self.folder, self._script = folder, folder / "script.py"
        folder.mkdir()
        self._script.write_text(source)
        self._arguments = [str(folder / argument) for argument in arguments]
        self._own = len(arguments) > 1
        self._processes = [self._started(index) for index in (0, 1)]
        for process in self._processes:
            began(process, 0)

    def _started(self, index):
        arguments = self._arguments
        if self._own:  # a backup and a table for each, side by side
            folder = self.folder / f"run-{index}"
            arguments = [str(folder), f"file:{folder}/table"]
        command = ["-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *namespace()]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        return Running([*command, sys.executable, str(self._script), *arguments], environment)

    def hit(self, rng, number):
        index = rng.randrange(2)
        victim, other = self._processes[index], self._processes[1 - index]
        pid = pathlib.Path(f"/proc/{victim.process.pid}/task/{victim.process.pid}/children").read_text()
        if number == signal.SIGSTOP:
            stopped(int(pid), rng)
        else:
            os.kill(int(pid), number)
            # `unshare` cannot always end as its child did, and then ends with 1.
            ended(victim, *codes_of(number), *([1] if number == signal.SIGKILL else []))
            reached = max(saved(victim), default=0) if self._own else 0
            victim = self._processes[index] = self._started(index)
            began(victim, reached)
        goes_on(victim)
        goes_on(other)
        for path in self.folder.glob("*.keras"):
            try:
                verify_file(path)
            except OSError as error:
                raise LostError(str(error)) from None

    def close(self):
        for process in self._processes:
            process.close()


class Hosts:
    """Two synchronous hosts. When one is lost, the other one ends, and both start again."""

    def __init__(self, folder):
        self._folder, self._reached = folder, 0
        folder.mkdir()
        (folder / "script.py").write_text(TRAINING)
        self._hosts = None
        self._start()

    def _start(self):
        self.close()
        self._hosts = LocalHosts(self._folder / "script.py", 2, (str(self._folder), "device"))
        began(self._hosts.hosts[0], self._reached)

    def hit(self, rng, number):
        first, victim = self._hosts.hosts[0], rng.choice(self._hosts.hosts)
        if number == signal.SIGSTOP:
            stopped(victim.process.pid, rng)
            goes_on(first)
            return
        victim.send(number)
        ended(victim, *codes_of(number))
        for host in self._hosts.hosts:
            if host is not victim:
                ended(host, LOST)
        self._reached = max([self._reached, *saved(first)])
        self._start()

    def close(self):
        if self._hosts is not None:
            self._hosts.close()


class Servers:
    """A chief, two workers and a parameter server."""

    def __init__(self, folder):
        folder.mkdir()
        self._folder, self._cluster, self._reached = folder, LocalCluster(folder, 2, 1), 0
        self._cluster.start()
        self._start()

    def _start(self):
        self._chief = self._cluster.run(
            f"import sys\nsys.argv[1:] = [{str(self._folder)!r}, 'device']\n{TRAINING}"
        )
        began(self._chief, self._reached)

    def hit(self, rng, number):
        job, index = rng.choice([("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)])
        victim = self._chief if job == "chief" else self._cluster.servers[job, index]
        if number == signal.SIGSTOP:
            stopped(victim.process.pid, rng)
            goes_on(self._chief)
            return
        victim.send(number)
        ended(victim, *codes_of(number), *([0] if job != "chief" else []))
        if job == "ps":
            ended(self._chief, LOST)
        if job != "chief":
            self._cluster.start((job, index))
        if job == "worker":
            goes_on(self._chief)
            return
        self._reached = max([self._reached, *saved(self._chief)])
        self._start()

    def close(self):
        self._cluster.close()


KINDS = {
    "tables in files, two containers": lambda folder: Containers(folder, TRAINING, "backup", "table"),
    "savers of one .keras, two containers": lambda folder: Containers(folder, SAVING, "model.keras"),
    "two synchronous hosts": Hosts,
    "chief, two workers, a server": Servers,
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


def namespace():
    """The command before that of a container."""
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def namespaces():
    try:
        subprocess.run([*namespace(), "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"this machine makes no PID namespaces: {error}")


def test_nothing_is_lost_and_nothing_hangs(namespaces, tmp_path, capsys):
    count, rng = (
        int(os.environ.get("LARGEOUT_KILLS", 10)),
        random.Random(os.environ.get("LARGEOUT_SEED", "0")),
    )
    cases, found, texts = list(itertools.product(KINDS, SIGNALS)), collections.Counter(), []
    while len(cases) < count:
        cases += cases
    rng.shuffle(cases)
    with contextlib.ExitStack() as stack:
        running = {}
        for number, (kind, sent) in enumerate(sorted(cases[:count], key=lambda case: case[0])):
            outcome = "survived"
            try:
                if kind not in running:
                    for before in running.values():
                        before.close()
                    running = {kind: KINDS[kind](tmp_path / f"run-{number}")}
                    stack.callback(running[kind].close)
                time.sleep(rng.uniform(0.0, 0.5))
                running[kind].hit(rng, sent)
            except (LostError, HungError) as error:
                outcome = "lost" if isinstance(error, LostError) else "hung"
                texts.append(f"{kind}, {sent.name}: {outcome}: {error}")
                if kind in running:
                    running.pop(kind).close()
            found[kind, sent.name, outcome] += 1
    with capsys.disabled():
        print("\n| kind | signal | times | lost | hung |\n|---|---|---:|---:|---:|")
        for kind, sent in itertools.product(KINDS, SIGNALS):
            counts = [found[kind, sent.name, outcome] for outcome in ("survived", "lost", "hung")]
            if any(counts):
                print(f"| {kind} | {sent.name} | {sum(counts)} | {counts[1]} | {counts[2]} |")
    assert not texts, "\n\n".join(texts)
