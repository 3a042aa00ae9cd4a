"""`LayerState`: the state of a layer with tables, for whoever walks over it other than Keras's files."""

from keras_largeout._keras import ValuesOfWeights
from keras_largeout.replicas._tensorflow import SavesState
from keras_largeout.replicas.devices import per_device_variables
from keras_largeout.tables.shard import refuse_files


class LayerState(ValuesOfWeights, SavesState):
    """A base, before `keras.layers.Layer`, of layers that override `save_own_variables`.

    `tf.train.Checkpoint` keeps what that method writes. `tf.saved_model.save` keeps the variables behind
    `weights`.
    """

    #: The `ShardVariable`s of its tables.
    shards = ()

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self.built and all(shard.array.initialized for shard in self.shards)

    def __call__(self, *args, **kwargs):
        self.track_state()
        return super().__call__(*args, **kwargs)

    def save_state(self, store):
        refuse_files(self.shards)
        self.save_own_variables(store)

    def load_state(self, store):
        self.load_own_variables(store)

    def state_variables(self):
        found = [copy for weight in self.weights for copy in per_device_variables(weight.value)]
        return {f"weight_{index}": variable for index, variable in enumerate(found)}
