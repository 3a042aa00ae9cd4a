"""The weights that an optimizer trains: ordinary ones, and parts of tables."""

import keras
import tensorflow as tf

from keras_largeout.ops.row_update import rounding_numbers
from keras_largeout.replicas.devices import device_scope, per_device_variables
from keras_largeout.tables.array import HOT
from keras_largeout.tables.counting import is_counted
from keras_largeout.tables.shard import ShardVariable, update_by_lookup, update_copies


class Weight:
    """An ordinary weight.

    Args:
        variable: `keras.Variable` or `tf.Variable`.

    Attributes:
        native: its `tf.Variable`.
        copies: the `tf.Variable`s behind that: one per device where it is mirrored, else one.
        owner: what a norm runs over, and what is saved as one: the weight itself, or a whole table.
        slots: dict from names of slots to variables. Keras makes the slots of an ordinary weight.
        kept: the `RowAccumulator` of its gradients, or None.
        number: int, of its owner among those whose weights the optimizer trains.
        columns: `(start, stop)` where it has some columns of the rows of its owner, else None.
        on_every_host: whether each of several hosts has a copy.
    """

    is_table, on_every_host = False, True
    columns = None

    def __init__(self, variable):
        self.variable, self.owner = variable, variable
        self.slots, self.kept, self.number = {}, None, 0

    @property
    def native(self):
        return native(self.variable)  # another one when it was moved to another device

    @property
    def copies(self):
        return per_device_variables(self.native)

    @property
    def name(self):
        """The name that errors use."""
        return getattr(self.variable, "path", self.variable.name)

    # How some of its rows are updated, in a step.

    def device_scope(self):
        """Return a context in which ops run on the device that updates its rows, or the first of these."""
        return device_scope(self.copies[0])

    def rounding(self, seed, step):
        """Return by what its rows are rounded stochastically in a step: see `ops.row_update`."""
        return rounding_numbers(seed + (self.number << 32), step)

    def update_rows(self, rule, slots, indices, values, hyper, rounding=None):
        """Updates rows and their slots in place: see `ops.row_update`.

        Args:
            slots: names of the slots of the rule.
        """
        own_slots = [per_device_variables(native(self.slots[name])) for name in slots]
        update_copies(rule, self.copies, own_slots, indices, values, hyper, rounding)

    @property
    def fuses_updates(self):
        """True if `update_by_lookup` is available for it now."""
        return len(self.copies) == 1 and self.variable.constraint is None

    def update_by_lookup(self, rule, slots, lookup, hyper, rounding=None):
        """Update rows by the gradient of a lookup, a `LookupGradient`, in one pass."""
        own_slots = [per_device_variables(native(self.slots[name])) for name in slots]
        update_by_lookup(rule, self.copies, own_slots, lookup, hyper, rounding)

    def constrain_rows(self, indices):
        """Applies the constraint of the weight, if it has one, to rows in place."""
        constraint = self.variable.constraint
        if constraint is None:
            return
        for copy in self.copies:
            with device_scope(copy):
                rows = constraint(tf.gather(copy, indices))
                copy.scatter_update(tf.IndexedSlices(rows, indices))

    # How it is saved: by the rows of its owner, wherever they are.

    def spans(self):
        """Return `(suffix of its key in a file, first row, end)` of what is saved under its own name."""
        return [("", 0, self.variable.shape[0])]

    def logical(self, indices):
        """Return the rows of the owner that its rows `indices` are."""
        return indices

    def held(self, rows):
        """Return which of the owner's `rows` it has, and their indices here."""
        return slice(None), rows


class TablePart(Weight):
    """A part of a table, a `ShardVariable`: never read whole, its slots are beside its rows."""

    is_table = True

    def __init__(self, variable):
        super().__init__(variable)
        self.owner = variable.array
        self.columns = variable.array.columns_of(variable.part)
        self.on_every_host = variable.part == HOT

    def new_slot(self, name, initializer, per_row):
        """Makes the slot `name`."""
        initializer = keras.initializers.get(initializer)
        fill = initializer.value if isinstance(initializer, keras.initializers.Constant) else 0.0
        return self.variable.new_slot(name, fill=fill, per_row=per_row)

    def device_scope(self):
        return self.variable.device_scope()

    def rounding(self, seed, step):
        first_column = 0 if self.columns is None else self.columns[0]
        rows = self.owner.numbering(self.variable.part)
        return rounding_numbers(seed + (self.number << 32), step, rows, first_column)

    def update_rows(self, rule, slots, indices, values, hyper, rounding=None):
        own_slots = [self.slots[name] for name in slots]
        self.variable.update_rows(rule, own_slots, indices, values, hyper, rounding)

    @property
    def fuses_updates(self):
        # A counter reads the rows.
        return super().fuses_updates and self.variable.fuses_updates and not is_counted(self.variable)

    def update_by_lookup(self, rule, slots, lookup, hyper, rounding=None):
        own_slots = [self.slots[name] for name in slots]
        self.variable.update_by_lookup(rule, own_slots, lookup, hyper, rounding)

    def constrain_rows(self, indices):
        constraint = self.variable.constraint
        if constraint is not None:
            self.variable.overwrite(indices, constraint(self.variable.gather(indices)))

    def spans(self):
        sections = self.owner.table.sections
        return [(f"_{s.name}", s.start, s.stop) for s in sections] or [("", 0, self.owner.shape[0])]

    def logical(self, indices):
        return self.owner.logical(self.variable.part, indices)

    def held(self, rows):
        return self.owner.held(self.variable.part, rows)


def native(variable):
    """Return the `tf.Variable` of a Keras variable, or the `tf.Variable` itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def is_bfloat16(variable):
    """Return whether a Keras variable, or a `tf.Variable`, is of bfloat16."""
    return tf.as_dtype(variable.dtype) == tf.bfloat16


def weight_of(variable):
    """Return the `Weight` of a variable."""
    return TablePart(variable) if isinstance(variable, ShardVariable) else Weight(variable)
