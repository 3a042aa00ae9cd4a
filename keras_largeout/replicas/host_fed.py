"""`HostFed`: a strategy whose batches stay in host memory until a step takes them."""

import tensorflow as tf


class HostFed:
    """A strategy whose batches stay in host memory until a step takes them, as they do on one device.

    By itself a strategy sends them to its GPUs ahead of the steps. But ids and targets are read on the host
    as well, which checks them and cuts ids into what each device sends: a GPU would be waited for.

    Args:
        strategy: `tf.distribute.Strategy`.

    Attributes:
        strategy: that strategy.
    """

    def __init__(self, strategy):
        self.strategy = strategy

    def experimental_distribute_dataset(self, dataset, options=None):
        return self.strategy.experimental_distribute_dataset(dataset, options or _options())

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        return self.strategy.distribute_datasets_from_function(dataset_fn, options or _options())

    def __getattr__(self, name):
        return getattr(self.strategy, name)


def _options():
    gpus = tf.config.list_logical_devices("GPU")
    return tf.distribute.InputOptions(experimental_fetch_to_device=False) if gpus else None
