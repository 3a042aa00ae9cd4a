"""The mixin that teaches a Keras optimizer to update single rows of large weights, wherever they are."""

import re
import warnings

import keras
import tensorflow as tf

from keras_largeout._keras import GradientSums, step_counter
from keras_largeout.ops.row_update import row_update
from keras_largeout.optimizers import row_average, row_slices
from keras_largeout.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras_largeout.optimizers.multi_optimizer import MultiOptimizer
from keras_largeout.optimizers.row_rounding import RoundedRows
from keras_largeout.optimizers.row_saving import SavedRows
from keras_largeout.optimizers.row_slots import RowSlots
from keras_largeout.optimizers.row_step import RowStep, by_rows
from keras_largeout.optimizers.weight import native, weight_of
from keras_largeout.replicas._tensorflow import in_xla
from keras_largeout.replicas.cross_replica import sums_of_replicas

# Dense matrices of so many rows and elements are updated by `row_update`, which goes over them once, on all
# cores, where the ops of Keras's formula go over them some ten times. The numbers are Keras's but for
# the last bits.
ONE_PASS_ROWS, ONE_PASS_SIZE = 32, 1 << 18


class RowSparse(RoundedRows, GradientSums, SavedRows):
    """First base of an optimizer of this package; the second one is a Keras optimizer.

    A gradient that is a `tf.IndexedSlices` updates just the rows that it lists, in place, by the op
    `row_update`; so does every gradient of a table. Dense weights take the Keras optimizer's own formula:
    large matrices by the same op, in one pass (Adam 3 times as fast on a CPU), all others by Keras's ops. One
    step does, in this order and for all weights together: sum over the replicas, merge duplicate rows,
    unscale, accumulate, clip, decay, update. So

    - under `tf.distribute.MirroredStrategy` a step is that of one device on the whole batch: a shard is
      updated once, where it is, by the rows of all replicas;
    - `clipnorm`, `global_clipnorm` and `clipvalue` act on the sums of duplicate rows, the norm of a table
      runs over all its shards, and the global norm over rows and dense gradients together;
    - `gradient_accumulation_steps` keeps the rows of the batches so far, never an array of the table's size
      beside a table;
    - `weight_decay` is lazy: it acts on the rows of the batch only;
    - rows that are not in a batch do not move, even where momentum would move them;
    - a `constraint` acts on the rows updated, and must be `NonNeg`, or a norm over the last axis of a
      matrix;
    - rows of bfloat16 are rounded to nearest, or stochastically: see `RoundedRows`;
    - `use_ema` keeps the averages of all rows of a table, exactly, and touches only the rows of the batch
      (`row_average.py`). It is refused for tables in files, by columns, on parameter servers or several
      hosts, or of bfloat16, and for row gradients of other weights;
    - XLA (`jit_compile=True`) is refused where there are row gradients. With `jit_compile="auto"`, `kl.Model`
      does not choose XLA for an `Embedding` that such an optimizer trains; on a GPU a plain `keras.Model`
      needs `jit_compile=False`. Dense weights take Keras's ops under XLA.

    Works inside `keras.optimizers.MultiOptimizer`, and inside `optimizers.LossScaleOptimizer`, which looks
    for NaN in the rows alone and on all replicas (Keras's own makes a dense copy of every gradient, and looks
    at one replica).

    A subclass provides `row_rule`, `slot_names` and `row_hyper`.
    """

    updates_rows = True
    #: The rule of `ops.row_update`.
    row_rule = None
    #: The slots of that rule, by the names that the Keras optimizer gives them.
    slot_names = ()
    #: The slots that have one value per row.
    per_row_slots = ()
    _row_slots = RowSlots()
    _excluded, _excluded_names = frozenset(), None  # from weight decay

    def row_hyper(self, learning_rate, decay):
        """Return the `hyper` vector of the rule."""
        raise NotImplementedError

    @property
    def slots_of_a_table(self):
        """The number of slots of a table: slots of its shape, and slots of one float32 per row."""
        averages = int(self.use_ema)
        return len(self.slot_names) - len(self.per_row_slots) + averages, len(self.per_row_slots) + averages

    def slots_of(self, variable):
        """Return the slots of the rule for a variable that the optimizer was built with."""
        slots = self._row_slots[variable].slots
        return [slots[name] for name in self.slot_names]

    def step_of_a_tree(self, table):
        """Return the `TableStep` by which the gradient of a tree softmax may update its table in the same
        pass.

        None where somebody has to see the gradient first: other replicas, clipping, accumulation, a scale, a
        constraint or a counter; or where the table is in parts. Who takes no other step then
        counts it: `count_step`.
        """
        if len(table.shards) > 1 or table.remote:
            return None
        return RowStep(self, tf.distribute.get_strategy()).of_a_tree(self._row_slots[table.shards[0]])

    def count_step(self):
        """Counts a step that was taken without `apply`."""
        step_counter(self).assign_add(1)

    def check_rows(self, weight):
        """Raises ValueError where this optimizer cannot update single rows of a `Weight`."""
        if self.use_ema:
            row_average.check(self, weight)
        if tf.as_dtype(weight.variable.dtype) not in (tf.float32, tf.bfloat16):
            raise ValueError(
                "`dtype` of weights that are updated by rows must be float32 or bfloat16. "
                f"Received: dtype={weight.variable.dtype} of {weight.name}"
            )
        if in_xla():
            raise ValueError(
                "`jit_compile` must be False in `compile` where weights are updated by rows: XLA does not "
                "know the op. (On a GPU, Keras chooses True by itself, and kl.Model does not.) "
                f"Received: jit_compile=True, and row gradients for {weight.name}"
            )
        row_slices.check_constraint(weight)

    def adopt(self, wrapper):
        """Makes a `LossScaleOptimizer` or `MultiOptimizer` of Keras around this optimizer one of ours."""
        if type(wrapper) is keras.optimizers.LossScaleOptimizer:
            wrapper.__class__ = LossScaleOptimizer
        elif type(wrapper) is getattr(keras.optimizers, "MultiOptimizer", None):
            wrapper.__class__ = MultiOptimizer

    # Building: slots.

    def build(self, variables):
        if self.built:
            return
        self.check_sums()
        self._row_slots = RowSlots(variables)
        self.check_rounding()
        for weight in self._row_slots.weights:
            if weight.is_table:
                self.check_rows(weight)
                if self.slot_names or self.use_ema:  # another optimizer may have trained it
                    weight.owner.forget_slots()
        with keras.name_scope(self.name, caller=self):  # the paths of slots are the same without a step
            super().build(variables)
            if self.gradient_accumulation_steps:
                self._row_slots.add_accumulators()
        for table in {weight.owner.table for weight in self._row_slots.weights if weight.is_table}:
            table.reset_new_slots()
        if self._row_slots.has_rows:
            self.track_state()

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        weight = self._row_slots.get(reference_variable) or weight_of(reference_variable)
        per_row = name in self.per_row_slots
        if weight.is_table:
            if name == "gradient_accumulator":
                return None
            if name == row_average.AVERAGE:
                row_average.add_slots(weight)
                return row_average.NoTensor()
            weight.slots[name] = weight.new_slot(name, initializer, per_row)
            # A `keras.Variable` Keras would save and load whole; `save_own_variables` does it in chunks.
            return weight.slots[name].value
        if per_row:
            slot = self.add_variable(
                shape=reference_variable.shape[:1],
                initializer=initializer,
                dtype=reference_variable.dtype,
                name=f"{weight.name.replace('/', '_')}_{name}",
            )
        else:
            slot = super().add_variable_from_reference(reference_variable, name=name, initializer=initializer)
        weight.slots[name] = slot
        return slot

    def add_variable(self, shape, initializer="zeros", dtype=None, name=None, **kwargs):
        # Slots of bfloat16 weights are float32: in bfloat16 a moment that moves by a thousandth stands still.
        if dtype == "bfloat16" and not str(name).endswith(("gradient_accumulator", "average")):
            dtype = "float32"
        return super().add_variable(shape, initializer=initializer, dtype=dtype, name=name, **kwargs)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        super().exclude_from_weight_decay(var_list=var_list, var_names=var_names)
        self._excluded = frozenset(id(native(v)) for v in var_list or ())
        self._excluded_names = re.compile("|".join(var_names)) if var_names else None

    def decays(self, weight):
        """Return whether weight decay acts on a `Weight`."""
        if not self.weight_decay or id(weight.native) in self._excluded:
            return False
        return self._excluded_names is None or not self._excluded_names.search(weight.native.name)

    # Averages: `use_ema`.

    def finalize_variable_values(self, var_list):
        """Overwrite variables by their averages, as `fit` does at its end."""
        if self.use_ema:
            row_average.finish(self, [self._row_slots[v] for v in var_list])

    def swap_averages(self):
        """Exchange the values of all weights and their averages."""
        row_average.swap(self, self._row_slots.weights)

    def keep_averages(self):
        """Overwrite the averages of all weights by their values, after `swap_averages` and before the end."""
        row_average.keep(self, self._row_slots.weights)

    @property
    def averaged_densely(self):
        """The `Weight`s whose average moves in every step: all but parts of tables."""
        return [w for w in self._row_slots.weights if not w.is_table and row_average.AVERAGE in w.slots]

    # One step.

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        if not grads:
            return super().apply(grads, variables)
        if not self.built and variables:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        slots = self._row_slots
        weights = slots.weights if variables is None else [slots[v] for v in variables]
        for gradient, weight in zip(grads, weights):
            if gradient is not None and not by_rows(gradient, weight):
                self.check_whole(weight)
        # Keras would read the averages of all that it trains.
        averaged = self.use_ema and any(w.is_table for w in slots.weights)
        if len(grads) != len(weights) or not (averaged or any(map(by_rows, grads, weights))):
            return super().apply(grads, variables)

        with keras.name_scope(self.name, caller=self):
            grads, weights = self._to_update(grads, weights)

            def step(strategy, grads):
                RowStep(self, strategy).run(grads, weights)

            replica = tf.distribute.get_replica_context()
            if tf.distribute.has_strategy() and replica is not None:
                replica.merge_call(step, args=(grads,))
            else:
                step(tf.distribute.get_strategy(), grads)
            self.count_step()

    def sum_gradients(self, gradients):
        return sums_of_replicas(gradients)

    def _to_update(self, grads, weights):
        """Return those that have a gradient and are not overwritten by it."""
        missing = [w.name for g, w in zip(grads, weights) if g is None]
        if missing:
            warnings.warn(
                f"Gradients do not exist for variables {missing} when minimizing the loss. If you're using "
                "`model.compile()`, did you forget to provide a `loss` argument?",
                stacklevel=3,
            )
        left = [], []
        for gradient, weight in zip(grads, weights):
            if gradient is None:
                continue
            if getattr(weight.variable, "overwrite_with_gradient", False):
                self._overwrite(weight, gradient)
            else:
                left[0].append(gradient)
                left[1].append(weight)
        return left

    def _overwrite(self, weight, gradient):
        """Assign to a scale of a float8 layer the largest of its accumulated gradients."""
        if self.gradient_accumulation_steps:
            largest = weight.slots["gradient_accumulator"]
            found = keras.ops.maximum(gradient, largest)
            last = (step_counter(self) + 1) % self.gradient_accumulation_steps == 0
            largest.assign(keras.ops.where(last, keras.ops.zeros_like(found), found))
            gradient = keras.ops.where(last, found, weight.native)
        weight.variable.assign(gradient)

    def update_step(self, gradient, variable, learning_rate):
        """Run Keras's update of a dense weight; `variable` is its copy on one device."""
        copy, weight = native(variable), self._row_slots.get(variable)
        if weight is None or not self.in_one_pass(copy):
            return super().update_step(gradient, variable, learning_rate)
        slots = [native(weight.slots[name]) for name in self.slot_names]
        rows, values = tf.range(copy.shape[0]), tf.cast(gradient, tf.float32)
        hyper = self.row_hyper(learning_rate, 0.0)
        row_update(self.row_rule, copy, slots, rows, values, hyper, copy_on_read=False)

    def in_one_pass(self, copy):
        """Return whether `row_update` serves a dense `tf.Variable`: a large float32 matrix on a CPU, no
        XLA.
        """
        return (
            copy.dtype == tf.float32
            and len(copy.shape) > 1
            and copy.shape[0] >= ONE_PASS_ROWS
            and copy.shape.num_elements() >= ONE_PASS_SIZE
            # On a GPU the indices would be copied there and waited for, in every step.
            and tf.DeviceSpec.from_string(copy.device).device_type != "GPU"
            and not in_xla()
        )
