"""`Model`: a `keras.Model` whose `fit` also works on a cluster."""

import functools

import keras

from keras_largeout.distribute.cluster.trainer import ClusterTraining


@keras.saving.register_keras_serializable(package="keras_largeout")
class Model(ClusterTraining, keras.Model):
    """A `keras.Model` that also trains under a `tf.distribute.ParameterServerStrategy`.

    It is used as `keras.Model` is: `Model(inputs, outputs)`, or as a base class. (`Sequential` is the same of
    `keras.Sequential`.) On one device there is no difference; over several devices of one machine its `fit`
    also takes ragged and sparse batches, and a first batch that does not divide by the devices.

    On a cluster (`kl.distribute.strategy()`, `python -m keras_largeout.distribute.launch`) `fit`, `evaluate`
    and `predict` take the same arguments. Each step runs on whichever worker is free, with weights as they
    are at that moment (asynchronous training: several workers mean several steps at a time, each of one
    batch), and the weights lie and are updated on the parameter servers.

    - *Data.* The chief runs the pipeline (a `tf.data.Dataset`, arrays, a generator, a `PyDataset`) and deals
      out its batches: each batch is trained on once per epoch, even when workers come and go. Where that is
      too much for one machine, pass a function `tf.distribute.InputContext -> tf.data.Dataset`. Each worker
      then reads its own (`dataset.shard(context.num_input_pipelines, context.input_pipeline_id)`; the second
      is a tensor), repeated without end, and `steps_per_epoch` is the number of batches per epoch.
      `validation_data` may be such a function too.
    - *Metrics* are exact: each step returns what it added, and the chief adds up. The state of a metric must
      be a sum. What the progress bar shows during an epoch is a moment old.
    - *Callbacks* see a batch when it is handed out. Saving waits for the steps in flight.
    - *Failures.* The steps of a worker that dies run again on another worker. A worker that comes back takes
      part again. When a parameter server dies, `kl.distribute.ServerLostError` names it.
      With `kl.callbacks.BackupAndRestore` the same script, started again, goes on.
    - `save` and `save_weights` write a file beside the old one, flush it to the disk and rename it: no file
      is ever half written. (A plain `keras.Model` has that by `kl.callbacks.ModelCheckpoint`.)
    - A damaged file is refused by `load_weights` and `load_model` before anything has changed: `.keras` files
      and weights files of a `kl.Model` have digests of all that is in them. So is one of another model or
      optimizer, by `load_weights`. Files without digests are loaded too.
    - `compile` refuses an optimizer that cannot train the model's tables on several devices.
    - `steps_per_execution` is the number of steps per call of a worker. Each call costs messages between
      worker and chief. `run_eagerly` is refused, XLA is not used.
    - Moving averages of `BatchNormalization` are written by all workers; the last one wins.
    """

    def __new__(cls, *args, **kwargs):
        functional = _functional_class()
        if _is_functional(args, kwargs) and not issubclass(cls, functional):
            cls = _functional_twin(cls)
        return super().__new__(cls)


@keras.saving.register_keras_serializable(package="keras_largeout")
class Sequential(ClusterTraining, keras.Sequential):
    """A `keras.Sequential` that also trains on a cluster: see `Model`."""


def _is_functional(args, kwargs):
    """Whether these are the arguments of a functional model."""
    return len(args) >= 2 or (len(args) == 1 and "outputs" in kwargs) or {"inputs", "outputs"} <= set(kwargs)


@functools.cache
def _functional_class():
    """Keras's class of functional models, which has no public name."""
    x = keras.Input((1,))
    return type(keras.Model(x, keras.layers.Identity()(x)))


@functools.cache
def _functional_twin(cls):
    """`cls`, as a functional model.

    Keras would change the bases of `cls`, and of all classes above, for good: then no other subclass of
    `Model` could be anything but functional.
    """
    twin = type(
        cls.__name__,
        (cls, _functional_class()),
        {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__},
    )
    name = keras.saving.get_registered_name(cls)
    if name != cls.__name__:
        package = name.rsplit(">", 1)[0]
        keras.saving.register_keras_serializable(package, cls.__name__)(twin)
    return twin
