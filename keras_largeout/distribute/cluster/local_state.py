"""State that a worker keeps for the steps of a call, and the chief adds up."""

import keras
import tensorflow as tf


class LocalState(keras.StatelessScope):
    """A scope in which some variables are local to the step; all others are read and written as usual.

    Keras reads a variable, adds, and writes it back: two workers that do so at once lose an addition. So a
    call starts its metrics at zero and returns what it has added. Counters of optimizers are increased by one
    op at the end of each step: they are also read outside of this scope, in an update that all replicas make
    together.

    Args:
        added: list of `keras.Variable`.
        state: list of their values here: zeros (`nothing_added`), or the `results` of the step before.
        counters: list of `keras.Variable`, which start at their present value.
    """

    def __init__(self, added, state, counters=()):
        super().__init__(list(zip(added, state)), collect_losses=True, initialize_variables=False)
        self._added = list(added)
        self._counters = [(v, tf.identity(v.value)) for v in counters]
        self.state_mapping |= {id(v): start for v, start in self._counters}
        self._own = set(self.state_mapping)

    def add_update(self, update):
        variable, value = update
        if id(variable) in self._own:
            self.state_mapping[id(variable)] = value
        else:
            self.__exit__()  # outside of the scope Keras writes to the variable itself
            try:
                variable.assign(value)
            finally:
                self.__enter__()

    def results(self):
        """Return the values of what is added to, after the counters have been increased."""
        for variable, start in self._counters:
            variable.value.assign_add(self.state_mapping[id(variable)] - start)
        return [self.state_mapping[id(v)] for v in self._added]


def nothing_added(added):
    """Return the state that the first step of a call begins with."""
    return [tf.zeros(v.shape, v.dtype) for v in added]
