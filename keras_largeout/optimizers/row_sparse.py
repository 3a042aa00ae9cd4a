"""The mixin that teaches a Keras optimizer to update single rows of large weights."""

import keras
import tensorflow as tf

from keras_largeout.ops.row_update import row_update
from keras_largeout.optimizers import row_slices
from keras_largeout.optimizers.row_slots import RowSlots


def is_table(variable):
    """True for a shard of a table (`distribute.table.ShardVariable`): never read whole, makes own slots."""
    return hasattr(variable, "new_slot")


class RowSparse:
    """First base of an optimizer of this package; the second one is a Keras optimizer.

    A gradient that is a `tf.IndexedSlices` updates just the rows that it lists, in place, by the op
    `row_update`; so does every gradient of a table. Dense weights take the Keras optimizer's own path. One
    step does, in this order and for all weights together: merge duplicate rows, unscale, accumulate, clip,
    decay, update. So

    - `clipnorm`, `global_clipnorm` and `clipvalue` act on the sums of duplicate rows, and the global norm
      runs over rows and dense gradients together;
    - `gradient_accumulation_steps` keeps the rows of the batches so far, never an array of the table's size
      beside a table;
    - `weight_decay` is lazy: it acts on the rows of the batch only, when they are in one;
    - rows that are not in a batch do not move, even where momentum would move them;
    - a `constraint` acts on the rows updated, and must be `NonNeg`, or a norm over the last axis of a
      matrix;
    - `use_ema` is refused where there are row gradients: an average moves every row in every step.

    A model of Keras's own layers alone must be compiled with `jit_compile=False` on GPUs: the op is not for
    XLA.

    Works inside `keras.optimizers.MultiOptimizer` and `LossScaleOptimizer`. The latter looks for NaN in a
    dense copy of every gradient; `loss_scale_factor`, for tables too large for that, does without.

    A subclass provides `row_rule` and `row_hyper`.
    """

    # Slots that have one value a row.
    per_row_slots = ()
    _row_slots = RowSlots()

    def row_rule(self, index):
        """The rule of `ops.row_update`, and its slots for the variable at `index`: `(rule, slots)`."""
        raise NotImplementedError

    def row_hyper(self, learning_rate, decay):
        """The `hyper` vector of the rule."""
        raise NotImplementedError

    def add_slots(self, variables):
        """Makes the slots that no Keras optimizer behind this mixin makes."""

    def check_rows(self, variable):
        """Raises ValueError where this optimizer cannot update single rows of `variable`."""
        if self.use_ema:
            raise ValueError(
                "`use_ema` must be False for weights that are updated by rows: an average would move every "
                f"row in every step. Received: use_ema={self.use_ema} for {row_slices.name_of(variable)}"
            )
        if tf.as_dtype(variable.dtype) not in (tf.float32, tf.bfloat16):
            raise ValueError(
                "`dtype` of weights that are updated by rows must be float32 or bfloat16. "
                f"Received: dtype={variable.dtype} of {row_slices.name_of(variable)}"
            )
        row_slices.check_constraint(variable)

    # Building: slots.

    def build(self, variables):
        if self.built:
            return
        self._row_slots = RowSlots()
        for variable in filter(is_table, variables):
            self.check_rows(variable)
        # Keras would save, load and copy a slot of a table whole; save_own_variables does it in chunks.
        is_variable, store = self._tracker.config["variables"]
        self._tracker.config["variables"] = (lambda v: is_variable(v) and not is_table(v), store)
        super().build(variables)
        self.add_slots(variables)
        if self.gradient_accumulation_steps:
            self._row_slots.add_accumulators(variables)

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        per_row = name in self.per_row_slots
        if is_table(reference_variable):
            if name == "gradient_accumulator":
                return None
            index = self._get_variable_index(reference_variable)
            return self._row_slots.add_table(index, reference_variable, name, initializer, per_row)
        if per_row:
            return self.add_variable(
                shape=reference_variable.shape[:1],
                initializer=initializer,
                dtype=reference_variable.dtype,
                name=f"{row_slices.name_of(reference_variable).replace('/', '_')}_{name}",
            )
        return super().add_variable_from_reference(reference_variable, name=name, initializer=initializer)

    def add_variable(self, shape, initializer="zeros", dtype=None, name=None, **kwargs):
        # Slots of bfloat16 weights are float32: in bfloat16 a moment that moves by a thousandth stands still.
        if dtype == "bfloat16" and not str(name).endswith(("gradient_accumulator", "average")):
            dtype = "float32"
        return super().add_variable(shape, initializer=initializer, dtype=dtype, name=name, **kwargs)

    # One step.

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        if not self.built and grads and variables:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        known = self._trainable_variables if variables is None else variables
        if len(grads) != len(known) or not any(map(_by_rows, grads, known)):
            return super().apply(grads, variables)

        self._check_variables_are_known(known)
        # Nothing is updated before all gradients are there: a step that fails changes nothing.
        ready = tf.control_dependencies(_tensors(grads))
        with keras.name_scope(self.name, caller=self), ready:
            grads, known = self._filter_empty_gradients(grads, known)
            grads, known = self._overwrite_variables_directly_with_gradients(grads, known)
            self._apply_all(list(zip(grads, known)))
            self._iterations.assign_add(1)

    def _apply_all(self, pairs):
        """The step of all `(gradient, variable)` pairs: one function, so that it can be one merged call."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise NotImplementedError(
                "Row gradients are applied by one replica only. Received: a strategy of "
                f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas"
            )
        rows = [(row_slices.of(g, v), v) for g, v in pairs if _by_rows(g, v)]
        dense = [(g, v) for g, v in pairs if not _by_rows(g, v)]
        for _, variable in rows:
            self.check_rows(variable)
        if self.loss_scale_factor is not None:
            dense = [(g / self.loss_scale_factor, v) for g, v in dense]
            rows = [(r.divided_by(self.loss_scale_factor), v) for r, v in rows]
        if self.gradient_accumulation_steps:
            self._accumulate(dense, rows)
        else:
            self._update(dense, rows)
        for _, variable in dense:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    def _accumulate(self, dense, rows):
        steps = self.gradient_accumulation_steps
        sums = [self._accumulated_gradients[self._get_variable_index(v)] for _, v in dense]
        kept = [self._row_slots.accumulators[self._get_variable_index(v)] for _, v in rows]

        def update():
            self._update(
                [((g + total) / steps, v) for (g, v), total in zip(dense, sums)],
                [(a.with_rows(r).merged(v.shape[0]).divided_by(steps), v) for (r, v), a in zip(rows, kept)],
            )
            for total in sums:
                total.assign(tf.zeros(total.shape, total.dtype))
            for accumulator in kept:
                accumulator.clear()

        def keep():
            self._backend_increment_gradient_accumulators([g for g, _ in dense], sums)
            for (r, _), accumulator in zip(rows, kept):
                accumulator.keep(r)

        keras.ops.cond((self._iterations + 1) % steps == 0, update, keep)

    def _update(self, dense, rows):
        """Clip, decay, update."""
        if any((self.clipnorm, self.global_clipnorm, self.clipvalue)):
            rows = [(r.merged(v.shape[0]), v) for r, v in rows]
            # Norms and limits do not care which rows the values belong to: Keras's own functions do the rest.
            dense_values = [tf.cast(g, tf.float32) for g, _ in dense]
            clipped = self._clip_gradients(dense_values + [r.values for r, _ in rows])
            dense = [(g, v) for g, (_, v) in zip(clipped, dense)]
            rows = [(r._replace(values=g), v) for g, (r, v) in zip(clipped[len(dense) :], rows)]
        if dense:
            grads, variables = map(list, zip(*dense))
            self._apply_weight_decay(variables)
            self._backend_update_step(grads, variables, self.learning_rate)
        hypers = {}
        for r, variable in rows:
            decays = bool(self.weight_decay) and self._use_weight_decay(row_slices.native(variable))
            if decays not in hypers:
                learning_rate = tf.cast(self.learning_rate, tf.float32)
                hypers[decays] = self.row_hyper(
                    learning_rate, learning_rate * self.weight_decay if decays else 0.0
                )
            rule, slots = self.row_rule(self._get_variable_index(variable))
            row_update(rule, variable, slots, r.indices, r.values, hypers[decays])
            row_slices.apply_constraint(variable, r.indices)

    # Saving.

    def save_own_variables(self, store):
        super().save_own_variables(store)
        self._row_slots.save(store)

    def load_own_variables(self, store):
        # Keras counts keys: it sees its own ones, "0", "1", ...
        own = {key: store[key] for key in store.keys() if key.isdigit()}  # noqa: SIM118 (an HDF5 group)
        super().load_own_variables(own)
        if self.built and len(own) == len(self.variables):
            self._row_slots.load(store)


def _tensors(gradients):
    slices = [g for g in gradients if isinstance(g, tf.IndexedSlices)]
    dense = [g for g in gradients if g is not None and not isinstance(g, tf.IndexedSlices)]
    return dense + [tensor for s in slices for tensor in (s.values, s.indices)]


def _by_rows(gradient, variable):
    return gradient is not None and (isinstance(gradient, tf.IndexedSlices) or is_table(variable))
