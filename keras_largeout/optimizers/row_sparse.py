"""The mixin that teaches a Keras optimizer to update single rows of large weights, wherever they lie."""

import keras
import tensorflow as tf

from keras_largeout.distribute.replicas._tensorflow import in_xla
from keras_largeout.distribute.replicas.devices import components, on
from keras_largeout.distribute.tables.counting import count_gradients, count_merged
from keras_largeout.ops.row_update import row_update
from keras_largeout.optimizers import row_clip, row_slices
from keras_largeout.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras_largeout.optimizers.row_slots import RowSlots

# Dense matrices of so many rows and elements are updated by `row_update`, which goes over them once, on all
# cores, where the ops of Keras's formula go over them some ten times. The numbers are those of Keras but for
# the last bits.
ONE_PASS_ROWS, ONE_PASS_SIZE = 32, 1 << 18


def is_table(variable):
    """True for a part of a table (`distribute.shard.ShardVariable`): never read whole, makes own slots."""
    return hasattr(variable, "new_slot")


class RowSparse:
    """First base of an optimizer of this package; the second one is a Keras optimizer.

    A gradient that is a `tf.IndexedSlices` updates just the rows that it lists, in place, by the op
    `row_update`; so does every gradient of a table. Dense weights take the Keras optimizer's own formula:
    large matrices by the same op, in one pass (Adam 3 times as fast on a CPU), all others by Keras's ops. One
    step does, in this order and for all weights together: sum over the replicas, merge duplicate rows,
    unscale, accumulate, clip, decay, update. So

    - under `tf.distribute.MirroredStrategy` a step is that of one device on the whole batch: a shard is
      updated once, where it lies, by the rows of all replicas;
    - `clipnorm`, `global_clipnorm` and `clipvalue` act on the sums of duplicate rows, the norm of a table
      runs over all its shards, and the global norm over rows and dense gradients together;
    - `gradient_accumulation_steps` keeps the rows of the batches so far, never an array of the table's size
      beside a table;
    - `weight_decay` is lazy: it acts on the rows of the batch only, when they are in one;
    - rows that are not in a batch do not move, even where momentum would move them;
    - a `constraint` acts on the rows updated, and must be `NonNeg`, or a norm over the last axis of a
      matrix;
    - `use_ema` is refused where there are row gradients: an average moves every row in every step.

    A model of Keras's own layers alone must be compiled with `jit_compile=False` on GPUs: the op is not for
    XLA.

    Works inside `keras.optimizers.MultiOptimizer`, and inside `optimizers.LossScaleOptimizer`, which looks
    for NaN in the rows alone and on all replicas (Keras's own makes a dense copy of every gradient, and looks
    at one replica).

    A subclass provides `row_rule` and `row_hyper`.
    """

    # Slots that have one value a row.
    per_row_slots = ()
    #: How many slots a table gets: of its shape, and of one float32 a row.
    slots_of_a_table = (0, 0)
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

    def adopt(self, wrapper):
        """Makes a `keras.optimizers.LossScaleOptimizer` around this optimizer one of this package."""
        if type(wrapper) is keras.optimizers.LossScaleOptimizer:
            wrapper.__class__ = LossScaleOptimizer

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
            return self._row_slots.add_table(reference_variable, name, initializer, per_row)
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
        with keras.name_scope(self.name, caller=self):
            grads, known = self._filter_empty_gradients(grads, known)
            grads, known = self._overwrite_variables_directly_with_gradients(grads, known)
            replica = tf.distribute.get_replica_context()
            if tf.distribute.has_strategy() and replica is not None:
                replica.merge_call(self._apply_of_replicas, args=(grads,), kwargs={"variables": known})
            else:
                self._apply_all(tf.distribute.get_strategy(), [(g, [g], v) for g, v in zip(grads, known)])
            self._iterations.assign_add(1)

    def _apply_of_replicas(self, strategy, grads, variables):
        """`_apply_all` with what the replicas bring, in a call that they make together."""
        variables = [v if isinstance(v, keras.Variable) else components(v)[0] for v in variables]
        self._apply_all(
            strategy, [(g, strategy.experimental_local_results(g), v) for g, v in zip(grads, variables)]
        )

    def _apply_all(self, strategy, triples):
        """The step of all `(gradient, its values on each replica, variable)`."""
        # Nothing is updated before all gradients are there: a step that fails changes nothing.
        arrived = tf.group(*_tensors([value for _, values, _ in triples for value in values]))
        with tf.control_dependencies([arrived]):
            rows = [(_joined(values, v), v) for _, values, v in triples if _by_rows(values[0], v)]
            dense = [(g, v) for g, values, v in triples if not _by_rows(values[0], v)]
            for _, variable in rows:
                self.check_rows(variable)
            if dense and strategy.num_replicas_in_sync > 1:
                native = [(g, row_slices.native(v)) for g, v in dense]
                sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, native)
                dense = [(g, v) for g, (_, v) in zip(sums, dense)]
            scale = self.loss_scale_factor
            if scale is not None:
                rows = [(r.divided_by(scale), v) for r, v in rows]
            if self.gradient_accumulation_steps:
                self._accumulate(strategy, dense, rows, scale)
            else:
                self._update(strategy, dense, rows, lambda g: g if scale is None else g / scale)

    def _accumulate(self, strategy, dense, rows, scale):
        steps = self.gradient_accumulation_steps
        sums = [self._accumulated_gradients[self._get_variable_index(v)] for _, v in dense]
        kept = [self._row_slots.accumulators[self._get_variable_index(v)] for _, v in rows]

        def keep():
            for (g, _), total in zip(dense, sums):
                _on_every_device(
                    strategy,
                    total,
                    lambda sum_, new: sum_.assign_add(new if scale is None else new / scale),
                    g,
                )
            for (r, _), accumulator in zip(rows, kept):
                accumulator.keep(r)

        def update():
            keep()
            self._update(
                strategy,
                [(row_slices.native(total), v) for total, (_, v) in zip(sums, dense)],
                [(a.rows().merged(v).divided_by(steps), v) for (_, v), a in zip(rows, kept)],
                lambda total: total / steps,
            )
            for total in sums:
                _on_every_device(strategy, total, lambda sum_: sum_.assign(tf.zeros_like(sum_)))
            for accumulator in kept:
                accumulator.clear()

        keras.ops.cond((self._iterations + 1) % steps == 0, update, keep)

    def _update(self, strategy, dense, rows, prepare):
        """Clip, decay, update. `prepare(g)` is what is still to be done to a dense gradient, everywhere."""
        clip = row_clip.clipping(self)
        if clip is not None:
            rows = [(r.merged(v), v) for r, v in rows]
            firsts = [prepare(components(g)[0]) for g, _ in dense]
            clip = clip(firsts, [(r.values, v) for r, v in rows])
            rows = [(r._replace(values=clip.rows(r.values, v)), v) for r, v in rows]
        for g, variable in dense:
            _on_every_device(strategy, variable, self._update_dense, g, prepare, clip, variable)
        hypers = {}
        for r, variable in rows:
            decays = bool(self.weight_decay) and self._use_weight_decay(row_slices.native(variable))
            if decays not in hypers:
                learning_rate = tf.cast(self.learning_rate, tf.float32)
                hypers[decays] = self.row_hyper(
                    learning_rate, learning_rate * self.weight_decay if decays else 0.0
                )
            self._update_rows(variable, r, hypers[decays])

    def _update_dense(self, native, gradient, prepare, clip, variable):
        """Keras's own update of one dense weight, on the device of `native`."""
        gradient = prepare(tf.convert_to_tensor(gradient))
        if clip is not None:
            gradient = clip.dense(gradient)
        if self.weight_decay is not None and self._use_weight_decay(native):
            rate = tf.cast(self.learning_rate, native.dtype) * tf.cast(self.weight_decay, native.dtype)
            native.assign_sub(native * rate)
        self.update_step(gradient, native, self.learning_rate)
        if variable.constraint is not None:
            native.assign(variable.constraint(native))

    def update_step(self, gradient, variable, learning_rate):
        """Keras's update of a dense weight, which is `variable` as it lies on one device."""
        weight = row_slices.native(variable)
        if not self.in_one_pass(weight):
            return super().update_step(gradient, variable, learning_rate)
        rule, slots = self.row_rule(self._get_variable_index(variable))
        slots = [row_slices.native(slot) for slot in slots]
        rows, values = tf.range(weight.shape[0]), tf.cast(gradient, tf.float32)
        hyper = self.row_hyper(learning_rate, 0.0)
        row_update(rule, weight, slots, rows, values, hyper, copy_on_read=False)

    def in_one_pass(self, weight):
        """Whether `row_update` serves a dense variable: a large float32 matrix on a CPU, not under XLA."""
        return (
            weight.dtype == tf.float32
            and len(weight.shape) > 1
            and weight.shape[0] >= ONE_PASS_ROWS
            and weight.shape.num_elements() >= ONE_PASS_SIZE
            # On a GPU the indices would be copied there and waited for, in every step.
            and tf.DeviceSpec.from_string(weight.device).device_type != "GPU"
            and not in_xla()
        )

    def _update_rows(self, variable, rows, hyper):
        """One `row_update` on each device that has the rows: the owner of a shard, or all with a copy."""
        rule, slots = self.row_rule(self._get_variable_index(variable))
        copies = components(row_slices.native(variable))
        if len(copies) > 1:  # merged once, so that the copies stay the same
            rows = rows.merged(variable)
            count_merged(variable, rows)
        for number, copy in enumerate(copies):
            with on(copy):
                beside = [components(row_slices.native(slot))[number] for slot in slots]
                row_update(rule, copy, beside, rows.indices, rows.values, hyper)
                row_slices.apply_constraint(copy, rows.indices, variable.constraint)

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


def _on_every_device(strategy, variable, function, *args):
    """`function(native variable, *args)` on each device that has a copy."""
    return strategy.extended.update(row_slices.native(variable), function, args=args, group=False)


def _joined(gradients, variable):
    rows = row_slices.joined(gradients, variable)
    count_gradients(variable, gradients, rows)
    return rows


def _tensors(gradients):
    slices = [g for g in gradients if isinstance(g, tf.IndexedSlices)]
    dense = [g for g in gradients if g is not None and not isinstance(g, tf.IndexedSlices)]
    return dense + [tensor for s in slices for tensor in (s.values, s.indices)]


def _by_rows(gradient, variable):
    return gradient is not None and (isinstance(gradient, tf.IndexedSlices) or is_table(variable))
