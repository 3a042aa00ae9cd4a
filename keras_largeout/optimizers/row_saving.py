"""Saving and loading of row-sparse optimizers: Keras's variables, and slots of tables in chunks."""

import warnings

import numpy as np

from keras_largeout._keras import store_path
from keras_largeout.files.array_digests import digested
from keras_largeout.files.verified_loading import only_checking, verify
from keras_largeout.optimizers.row_slots import slots_in
from keras_largeout.replicas._tensorflow import SavesState
from keras_largeout.tables.shard import outside_tables, refuse_files


class SavedWithoutRows:
    """A base, before a Keras optimizer whose `variables` have slots of tables that another object saves."""

    def save_own_variables(self, store):
        for index, variable in enumerate(outside_tables(self.variables)):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store):
        variables = outside_tables(self.variables)
        if len(store.keys()) != len(variables):
            warnings.warn(
                f"Skipping variable loading for optimizer {self.name!r}: it has {len(variables)} variables, "
                f"and the saved one has {len(store.keys())}.",
                stacklevel=2,
            )
            return
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])


class SavedRows(SavesState, SavedWithoutRows):
    """A base of `RowSparse`, which comes before a Keras optimizer and has `_row_slots`."""

    initialized = True

    @property
    def variables(self):
        """Keras's variables of the optimizer, and then the slots of tables, each in the parts of its table.

        (Slots of a table in files are no variables.)
        """
        return [*super().variables, *self._row_slots.parts]

    def save_state(self, store):
        refuse_files(weight.variable for weight in self._row_slots.weights if weight.is_table)
        with digested(store) as arrays:
            self._row_slots.save(arrays)

    def load_state(self, store):
        verify(store)
        self._row_slots.check(store, self.name)
        self._row_slots.load(store)

    def tracked(self, children):
        """Leave out Keras's lists of slots by kind: `_variables` and the state have all of them."""
        return {
            name: child
            for name, child in children.items()
            if name == "_variables" or not isinstance(child, list)
        }

    def save_own_variables(self, store):
        if not self._row_slots.has_rows:  # what Keras's own optimizer writes, and reads
            super().save_own_variables(store)
            return
        with digested(store, store_path(store)) as arrays:
            super().save_own_variables(arrays)
            self._row_slots.save(arrays)

    def load_own_variables(self, store):
        """Reads what `save_own_variables` wrote. Before anything is changed, all of it is checked.

        Raises:
            OSError: the file is damaged.
            ValueError: the file holds other slots, or arrays of other shapes. (Where it has another number of
                variables, Keras warns and goes on without; `kl.Model.load_weights` refuses it.)
        """
        verify(store)
        # Keras counts keys: it sees its own ones, "0", "1", ...
        own = {key: store[key] for key in store.keys() if key.isdigit()}  # noqa: SIM118 (an HDF5 group)
        variables = outside_tables(self.variables)
        # An optimizer that is saved before it is built has no slots yet.
        unbuilt = bool(self._row_slots.slots) and not slots_in(store) and np.all(np.equal(own.get("0", 1), 0))
        fits = len(own) == len(variables) and not unbuilt
        if self.built and fits:
            self._check_shapes(own, variables)
            self._row_slots.check(store, self.name)
        elif self.built and own and only_checking():
            raise ValueError(
                f"The weights file is of another optimizer than {self.name!r}: it must have "
                f"{len(variables)} variables of it. Received: {len(own)}. (To load the weights alone, "
                "load them before `compile`.)"
            )
        if only_checking():
            return
        if unbuilt or (not self.built and slots_in(store)):
            without, other = ("the saved one", "this one") if unbuilt else ("this one", "the saved one")
            warnings.warn(
                f"Skipping variable loading for optimizer {self.name!r}: {without} has no slots of tables, "
                f"which `build` or the first step makes, and {other} has some.",
                stacklevel=2,
            )
            return
        super().load_own_variables(own)
        if self.built and fits:
            self._row_slots.load(store)

    def _check_shapes(self, own, variables):
        expected = {str(i): tuple(variable.shape) for i, variable in enumerate(variables)}
        saved = {key: tuple(value.shape) for key, value in own.items()}
        wrong = sorted(key for key in expected if expected[key] != saved.get(key))
        if wrong:
            raise ValueError(
                f"The weights file does not fit the optimizer {self.name!r}: its variable {wrong[0]!r} must "
                f"have the shape {expected[wrong[0]]}. Received: {saved.get(wrong[0])}"
            )
