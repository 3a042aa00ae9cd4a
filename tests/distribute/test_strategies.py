"""Which strategy `kl.distribute.strategy` gives: of GPUs that are made up."""

import pytest
import tensorflow as tf

import keras_largeout as kl


@pytest.fixture
def made(monkeypatch):
    """`made(cards, gpus)` makes them up; the arguments of the strategy are appended to `made.asked`."""

    def make(cards, gpus):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * cards)
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind] * gpus)

    make.asked = []
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda *args: make.asked.append(args))
    return make


def test_all_gpus(made):
    made(cards=2, gpus=2)
    kl.distribute.strategy()
    assert made.asked == [(["GPU:0", "GPU:1"], None)]


def test_logical_gpus_of_one_card(made):
    made(cards=1, gpus=4)
    kl.distribute.strategy(3)
    ((names, reduction),) = made.asked
    assert names == ["GPU:0", "GPU:1", "GPU:2"]
    assert isinstance(reduction, tf.distribute.ReductionToOneDevice)
    with pytest.raises(ValueError, match=r"`devices` must be at most the number of GPUs, 4\. Received: .*=5"):
        kl.distribute.strategy(5)
