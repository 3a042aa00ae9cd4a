"""One step of an optimizer with row updates, for all its weights and all replicas together."""

import contextlib

import keras
import tensorflow as tf

from keras_largeout._keras import step_counter
from keras_largeout.ops.embedding.update import LookupGradient
from keras_largeout.ops.tree_softmax.update import TableStep
from keras_largeout.optimizers import row_clip, row_slices
from keras_largeout.optimizers.row_average import AVERAGE, Averages
from keras_largeout.optimizers.weight import native
from keras_largeout.replicas.devices import per_device_variables
from keras_largeout.replicas.hosts import hosts_of
from keras_largeout.tables.counting import count_gradients, count_merged


def by_rows(gradient, weight):
    """Return whether a gradient updates the rows of a weight: every gradient of a table does."""
    return gradient is not None and (isinstance(gradient, tf.IndexedSlices) or weight.is_table)


class RowStep:
    """Sums, unscales, accumulates, clips, decays and updates.

    In a graph of one replica a table takes the gradient of its lookup in one pass (`ops.embedding.update`),
    where nothing else reads the rows before: no clipping, accumulation, scale, constraint or counter.

    Args:
        optimizer: `RowSparse`, whose hyperparameters and slots these are.
        strategy: `tf.distribute.Strategy`. With several replicas a step is a call that all make together.
    """

    def __init__(self, optimizer, strategy):
        self.optimizer, self.strategy, self.hosts = optimizer, strategy, hosts_of(strategy)
        self.scale, self.steps = optimizer.loss_scale_factor, optimizer.gradient_accumulation_steps
        self.averages = None
        if optimizer.use_ema:
            step = tf.cast(step_counter(optimizer), tf.int64) + 1
            self.averages = Averages(optimizer.ema_momentum, step, self.steps or 1)

    def run(self, grads, weights):
        """Takes the step.

        Args:
            grads: list of gradients, each what the strategy makes of the gradients of all replicas.
            weights: list of `Weight`s.
        """
        triples = [(g, self.strategy.experimental_local_results(g), w) for g, w in zip(grads, weights)]
        lookups = {id(w): self._lookup(values, w) for _, values, w in triples}
        # Nothing is updated before all gradients are there: a step that fails changes nothing.
        made_of = [values if lookups[id(w)] is None else lookups[id(w)].tensors for _, values, w in triples]
        everything = tf.nest.flatten(made_of, expand_composites=True)
        arrived = tf.group(*(tensor for tensor in everything if tensor is not None))
        with tf.control_dependencies([arrived]):
            rows = [
                (lookups[id(w)] or self._concat(values, w), w)
                for _, values, w in triples
                if by_rows(values[0], w)
            ]
            dense = [(g, w) for g, values, w in triples if not by_rows(values[0], w)]
            for _, weight in rows:
                self.optimizer.check_rows(weight)
            if dense and self.strategy.num_replicas_in_sync > 1:
                pairs = [(g, w.native) for g, w in dense]
                sums = self.strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
                dense = [(g, w) for g, (_, w) in zip(sums, dense)]
            if self.scale is not None:
                rows = [(r.divided_by(self.scale), w) for r, w in rows]
            if self.steps:
                self._accumulate(dense, rows)
            else:
                self._update(dense, rows, self._unscaled)
            if self.averages is not None:  # in a step that accumulates, too
                for weight in self.optimizer.averaged_densely:
                    average = weight.slots[AVERAGE]
                    self._on_every_device(average, self.averages.of_dense, weight.native)

    def _concat(self, gradients, weight):
        """Return the rows of all replicas, and of all hosts where those have copies of the weight."""
        rows = row_slices.concat_slices(gradients, weight)
        if weight.is_table:
            count_gradients(weight.variable, gradients, rows)
        if not self._on_hosts(weight):
            return rows
        return row_slices.summed_over_hosts(rows, self.hosts, weight)

    def _on_hosts(self, weight):
        """Return whether several hosts have copies of a weight: its rows are summed over them."""
        return weight.on_every_host and not self.hosts.is_alone

    def _lookup(self, gradients, weight):
        """Return the `LookupGradient` of a weight that takes its gradient's rows as they come; else None."""
        if len(gradients) > 1 or not self._unseen(weight):
            return None
        return LookupGradient.of(gradients[0])

    def _unseen(self, weight):
        """Return whether nothing reads the rows of a weight's gradient before the update."""
        seen = (
            self.averages is not None
            or self.scale is not None
            or self.steps
            or row_clip.clipping(self.optimizer) is not None
        )
        return not seen and not self._on_hosts(weight) and weight.fuses_updates

    def of_a_tree(self, weight):
        """Return the `TableStep` by which the gradient of a tree softmax takes the step of its table; else
        None.
        """
        if self.strategy.num_replicas_in_sync > 1 or not weight.is_table or not self._unseen(weight):
            return None
        self.optimizer.check_rows(weight)
        slots = [native(slot) for slot in self.optimizer.slots_of(weight.variable)]
        hyper = self._hyper(self.optimizer.decays(weight))
        return TableStep(
            self.optimizer.row_rule, weight.native, slots, hyper, self.optimizer.rounding_of(weight)
        )

    def _unscaled(self, gradient):
        return gradient if self.scale is None else gradient / self.scale

    def _accumulate(self, dense, rows):
        sums = [w.slots["gradient_accumulator"] for _, w in dense]

        def keep():
            for (g, _), total in zip(dense, sums):
                self._on_every_device(total, lambda sum_, new: sum_.assign_add(self._unscaled(new)), g)
            for r, weight in rows:
                weight.kept.keep(r)

        def update():
            keep()
            self._update(
                [(native(total), w) for total, (_, w) in zip(sums, dense)],
                [(w.kept.rows().merged(w).divided_by(self.steps), w) for _, w in rows],
                lambda total: total / self.steps,
            )
            for total in sums:
                self._on_every_device(total, lambda sum_: sum_.assign(tf.zeros_like(sum_)))
            for _, weight in rows:
                weight.kept.clear()

        keras.ops.cond((step_counter(self.optimizer) + 1) % self.steps == 0, update, keep)

    def _update(self, dense, rows, prepare):
        """Clip, decay, update. `prepare(g)` is what is still to be done to a dense gradient, everywhere."""
        optimizer = self.optimizer
        clip = row_clip.clipping(optimizer)
        if clip is not None:
            rows = [(r.merged(w), w) for r, w in rows]
            firsts = [prepare(per_device_variables(g)[0]) for g, _ in dense]
            clip = clip(firsts, [(r.values, w) for r, w in rows], self.hosts)
            rows = [(r._replace(values=clip(r.values, w)), w) for r, w in rows]
        for g, weight in dense:
            self._on_every_device(weight.native, self._update_dense, g, prepare, clip, weight)
        hypers = {}
        for r, weight in rows:
            decays = optimizer.decays(weight)
            if decays not in hypers:
                hypers[decays] = self._hyper(decays)
            self._update_rows(r, weight, hypers[decays])

    def _hyper(self, decays):
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        return self.optimizer.row_hyper(rate, rate * self.optimizer.weight_decay if decays else 0.0)

    def _update_dense(self, copy, gradient, prepare, clip, weight):
        """Run Keras's own update of one dense weight, on the device of `copy`."""
        optimizer = self.optimizer
        gradient = prepare(tf.convert_to_tensor(gradient))
        if clip is not None:
            gradient = clip(gradient)
        if optimizer.decays(weight):
            rate = tf.cast(optimizer.learning_rate, copy.dtype) * tf.cast(optimizer.weight_decay, copy.dtype)
            copy.assign_sub(copy * rate)
        optimizer.update_step(gradient, copy, optimizer.learning_rate)
        if weight.variable.constraint is not None:
            copy.assign(weight.variable.constraint(copy))

    def _update_rows(self, rows, weight, hyper):
        """Update rows on the owner of a shard, or on every device with a copy."""
        optimizer, rounding = self.optimizer, self.optimizer.rounding_of(weight)
        rule, slots = optimizer.row_rule, optimizer.slot_names
        if isinstance(rows, LookupGradient):
            weight.update_by_lookup(rule, slots, rows, hyper, rounding)
            return
        if len(weight.copies) > 1 or self._on_hosts(weight):  # merged once, so that the copies stay the same
            rows = rows.merged(weight)
            if weight.is_table:
                count_merged(weight.variable, rows)
        of_rows = contextlib.nullcontext()
        if self.averages is not None and weight.is_table:
            of_rows = self.averages.of_rows(weight, rows.indices)
        with of_rows:
            weight.update_rows(rule, slots, rows.indices, rows.values, hyper, rounding)
            weight.constrain_rows(rows.indices)

    def _on_every_device(self, variable, function, *args):
        """Return `function(tf.Variable, *args)` on each device that has a copy."""
        return self.strategy.extended.update(native(variable), function, args=args, group=False)
