"""The agreement of synchronous hosts at the start of `fit`: they must train one model in one way."""

import contextlib
import json
import logging
import sys
import threading

import keras
import tensorflow as tf

from keras_largeout._keras import all_layers, own_optimizers
from keras_largeout.ops import build_info
from keras_largeout.replicas.optimizer_check import shards_of
from keras_largeout.replicas.texts import all_gather_texts

_LOG = logging.getLogger("keras_largeout")
_PATIENCE = 60.0  # seconds
_MAY_DIFFER = "arguments of the script"
#: Entries of configs that say nothing of the numbers, or that count instances, or are a host's own.
_OWN = ("name", "kernel", "seed", "storage", "storage_id")


def check_agreement(hosts, model, callbacks, loops):
    """Compare what all hosts are about to train.

    Args:
        hosts: `Hosts`.
        model: `keras.Model`, compiled.
        callbacks: list, those that `fit` was given on this host.
        loops: dict, JSON-able arguments of `fit` that must be the same.

    Raises:
        ValueError: packages, layers, optimizers, arguments of `fit` or backups differ between hosts. (Other
            arguments of the script are worth a warning.)
    """
    of_layers = [optimizer for layer in all_layers(model) for optimizer in own_optimizers(layer)]
    own = {
        "packages": {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "ops": build_info()["sources"],
        },
        _MAY_DIFFER: sys.argv[1:],
        "layers": [_layer(layer) for layer in all_layers(model) if not isinstance(layer, keras.Model)],
        "optimizers": [
            [type(o).__name__, _config(o)] for o in (model.optimizer, *of_layers) if o is not None
        ],
        "arguments of `fit`": loops,
        "kl.callbacks.BackupAndRestore": [
            type(callback).__name__
            for callback in callbacks
            if isinstance(callback, keras.callbacks.BackupAndRestore)
        ],
    }
    with hosts.naming_lost(), _impatient():
        all_hosts = [json.loads(text) for text in all_gather_texts(hosts, json.dumps(own, default=_name))]
    for what in own:
        first = all_hosts[0][what]
        for index, host in enumerate(all_hosts):
            if host[what] == first:
                continue
            text = (
                f"All hosts must have the same {what}. Received: {_difference(first, host[what])} on "
                f"host 0 and {_difference(host[what], first)} on host {index}"
            )
            if what != _MAY_DIFFER:
                raise ValueError(text)
            _LOG.warning("%s", text)
            break


@contextlib.contextmanager
def _impatient():
    """A context that others may never enter: after a while a line says what this host waits for."""
    timer = threading.Timer(
        _PATIENCE,
        _LOG.warning,
        [
            "This host has waited for %g s in `fit` for the others to begin it. Do all hosts build the same "
            "model, and make the same calls?",
            _PATIENCE,
        ],
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _layer(layer):
    """Return the class of a layer, the shapes of its weights (of whole tables), its config."""
    arrays = {id(shard.array): [*shard.array.shape] for shard in shards_of(layer)}
    others = [[*weight.shape] for weight in layer.weights if not hasattr(weight, "new_slot")]
    return [type(layer).__name__, [*arrays.values(), *others], _config(layer)]


def _config(given):
    """Return the config of a layer or optimizer, as far as hosts must agree on it; None if there is none."""
    try:
        return _without_own(given.get_config())
    except NotImplementedError:  # a layer of the user's
        return None


def _without_own(config):
    if isinstance(config, dict):
        return {str(key): _without_own(value) for key, value in config.items() if key not in _OWN}
    return [_without_own(value) for value in config] if isinstance(config, (list, tuple)) else config


def _name(value):
    """Return what stands for a value that JSON does not know: NumPy's as lists, others by their class."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def _difference(one, other):
    """Return the first entry of `one` that `other` does not have there; what is no list or dict whole."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in one if key not in other or one[key] != other[key]]
        return {key: _difference(one[key], other.get(key)) for key in keys[:3]}
    if isinstance(one, list) and isinstance(other, list) and one[: len(other)] != other[: len(one)]:
        at = next(i for i, (a, b) in enumerate(zip(one, other)) if a != b)
        return _difference(one[at], other[at])
    return one
