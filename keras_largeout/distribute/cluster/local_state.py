"""State that a worker keeps for one step, and the chief adds up."""

import keras
import tensorflow as tf


class LocalState(keras.StatelessScope):
    """A scope in which some variables are the step's own; all others are read and written as ever.

    Several workers that add to one variable at once lose some of what they add, since Keras reads, adds and
    writes. So a step starts its metrics at zero and gives back what it has added, and counters of optimizers
    are increased in one op at its end.

    Args:
        added: list of `keras.Variable`, which start at zero.
        counters: list of `keras.Variable`, which start at their present value.
    """

    def __init__(self, added, counters=()):
        super().__init__(
            [(v, tf.zeros(v.shape, v.dtype)) for v in added], collect_losses=True, initialize_variables=False
        )
        self._added = list(added)
        self._counters = [(v, tf.identity(v.value)) for v in counters]
        self.state_mapping |= {id(v): start for v, start in self._counters}
        self._own = set(self.state_mapping)

    def add_update(self, update):
        variable, value = update
        if id(variable) in self._own:
            self.state_mapping[id(variable)] = value
        else:
            variable._direct_assign(value)

    def get_current_value(self, variable):
        own = self.state_mapping.get(id(variable))
        return variable._value if own is None else own

    def results(self):
        """What was added to each variable, after the counters have been increased."""
        for variable, start in self._counters:
            variable._value.assign_add(self.state_mapping[id(variable)] - start)
        return [self.state_mapping[id(v)] for v in self._added]
