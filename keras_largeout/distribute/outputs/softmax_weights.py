"""The weights of a softmax over all classes, on one device or several: a row and a bias for each class.

Each device has a run of classes. It computes three numbers per token for its own (`SoftmaxTerms`), and these
are joined: a hidden vector goes to every device, and three numbers come back. All classes are equally much
work, so all devices have the same.
"""

import functools
import weakref
from typing import NamedTuple

import tensorflow as tf

from keras_largeout.distribute.outputs.over_hosts import best_of_hosts, logsumexp_of_hosts
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.full_softmax.stock import stock_full_top_k
from keras_largeout.ops.full_softmax.wrapper import SoftmaxTerms, full_softmax_terms
from keras_largeout.ops.rows import unit_rows
from keras_largeout.ops.top_k_in_chunks import NO_CLASS, best_of, marked_missing
from keras_largeout.replicas.collectives import AllGather
from keras_largeout.replicas.devices import device_scope, replica_copy
from keras_largeout.replicas.exchange_dtype import send_narrowed
from keras_largeout.replicas.hosts import ALONE
from keras_largeout.tables.array import HOT
from keras_largeout.tables.lookup import sharded_lookup


class Part(NamedTuple):
    """The weights of the classes `first .. first + count`, on one device.

    `kernel` and `bias` are the `tf.Variable`s `[count, dim]` and `[count]` (or None).
    """

    kernel: tf.Variable
    bias: tf.Variable
    first: int
    count: int

    def on_its_device(self):
        """Return a context in which ops run where the weights are."""
        return device_scope(self.kernel)


class SoftmaxWeights:
    """Computes losses and best classes over the parts of two tables.

    Args:
        kernel: `ShardedTable` `[num_classes, dim]`: whole, or cut by ranges.
        bias: `ShardedTable` `[num_classes]` of the same placement, or None.
        layer: the head. Where it is frozen, no weights get gradients from it, whoever else trains them.
        normalize: bool, whether the rows of the kernel are divided by their lengths. `terms` makes a tensor
            of the size of a part on its device, once for each replica; `top_scores` and `rows` normalize the
            rows that they read.
    """

    def __init__(self, kernel, bias, layer, normalize=False):
        self.kernel, self.bias, self._layer = kernel, bias, weakref.ref(layer)
        self._normalize = normalize
        self.num_classes = kernel.shape[0]

    @property
    def tables(self):
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return all(table.initialized for table in self.tables)

    @property
    def trainable(self):
        """True if the weights need gradients."""
        layer = self._layer()
        own = layer.optimizer is not None  # it trains what no other does
        trained = own or any(shard.trainable for table in self.tables for shard in table.shards)
        return layer.trainable and trained

    def parts(self):
        """Return a `Part` for each device that has classes, in their order."""
        if is_exporting() or self.kernel.is_whole:
            bias = None if self.bias is None else self.bias.variable
            return [Part(self.kernel.variable, bias, 0, self.num_classes)]
        offsets = self.kernel.placement.offsets
        return [
            Part(
                replica_copy(shard.value),
                None if self.bias is None else replica_copy(self.bias.array.parts[key].value),
                0 if key == HOT else int(offsets[key]),
                shard.shape[0],
            )
            for key, shard in self.kernel.array.parts.items()
        ]

    def terms(self, hidden, targets, expected=None, skip_target=False):
        """Return what a loss needs: the `SoftmaxTerms` over all classes.

        Args:
            hidden: float32 or bfloat16 `[tokens, dim]`.
            targets: int32 or int64 `[tokens]`, -1: none.
            expected: None, or the `Expected` gradients; of use where one device has all classes.
            skip_target: bool, whether the class of the target is left out of `lse`; the other terms mean
                nothing then.

        Raises:
            tf.errors.InvalidArgumentError: a target that is no class.
        """
        hosts, parts, trainable = self.kernel.hosts, self.parts(), self.trainable
        if not (hosts.is_alone or self.kernel.is_whole):
            return self._terms_of_all_hosts(hosts, hidden, targets, skip_target)
        if len(parts) == 1:
            (part,) = parts
            vectors = send_narrowed(hidden, part.kernel, self.kernel.exchange_dtype)
            with part.on_its_device():
                return full_softmax_terms(
                    vectors,
                    targets,
                    self._table(part),
                    part.bias,
                    skip_target,
                    expected if trainable else None,
                    weight_gradient=trainable,
                )
        return self._terms_here(hidden, self.checked(tf.cast(targets, tf.int64)), skip_target)[0]

    def _terms_of_all_hosts(self, hosts, hidden, targets, skip_target):
        """Return the terms over all hosts: send hidden vectors to all, receive three numbers per token."""
        targets = self.checked(tf.cast(targets, tf.int64))
        route = AllGather(hosts, hidden)
        terms, here = self._terms_here(route.forward(hidden), route.forward(targets), skip_target)
        here = tf.unstack(route.reverse(tf.cast(here, tf.int32)) > 0, hosts.count)
        numbers = tf.unstack(route.reverse(tf.stack(terms, axis=1)), hosts.count)
        return _combine_terms([SoftmaxTerms(*tf.unstack(of_host, 3, axis=1)) for of_host in numbers], here)

    def _terms_here(self, hidden, targets, skip_target):
        """Return the `SoftmaxTerms` over the classes of this process, and which of the targets are among
        them.
        """
        # The parts' gradients are added up where this is differentiated: in float32.
        whole, trainable = tf.cast(hidden, tf.float32), self.trainable
        found, here = [], []
        for part in self.parts():
            mine = targets - part.first
            inside = (mine >= 0) & (mine < part.count)
            vectors = send_narrowed(tf.cast(whole, hidden.dtype), part.kernel, self.kernel.exchange_dtype)
            with part.on_its_device():
                local_targets = tf.where(inside, mine, tf.constant(-1, tf.int64))
                found.append(
                    full_softmax_terms(
                        vectors,
                        local_targets,
                        self._table(part),
                        part.bias,
                        skip_target,
                        weight_gradient=trainable,
                    )
                )
                here.append(inside)
        return _combine_terms(found, here), functools.reduce(tf.logical_or, here)

    def _table(self, part):
        """Return what the logits of a part are computed from: its variable, or a tensor of its unit rows."""
        return unit_rows(tf.convert_to_tensor(part.kernel)) if self._normalize else part.kernel

    def checked(self, targets, name="targets", least=-1):
        """Return `targets`, looked at where no op does, or where it cannot tell another's class from none.

        Raises:
            tf.errors.InvalidArgumentError: one is not in `[least, num_classes)`; `name` is what it calls it.
        """
        with tf.device("CPU:0"):
            none = ", or -1 for none" if least < 0 else ""
            message = f"`{name}` must be in [0, {self.num_classes}), the classes{none}. Received:"
            wrong = tf.boolean_mask(targets, (targets < least) | (targets >= self.num_classes))
            check = tf.debugging.Assert(tf.size(wrong) == 0, [message, wrong])
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(targets)

    @property
    def hosts(self):
        """The `Hosts` that have the classes together; `ALONE` where this one has all."""
        return ALONE if is_exporting() or self.kernel.is_whole else self.kernel.hosts

    def top_scores(self, hidden, k, normalized=True, excluded=None, present=None):
        """Return the k best classes: float32 `[n, k]` log-probabilities (or logits), int32 `[n, k]` ids.

        Args:
            hidden: float `[n, dim]`.
            k: int, or an int32 scalar tensor.
            normalized: bool, whether log-probabilities are asked for.
            excluded: None, or int32 `[pairs, 2]`, tokens and class ids, where there is one host: others
                follow, and at last (-inf, -1).
            present: None, or bool `[num_classes]`: the classes that may be found.
        """
        hosts = self.hosts
        route = AllGather(hosts, hidden)
        best, chosen, total = self._top_here(route.forward(hidden), k, excluded, present)
        best, chosen = best_of_hosts(hosts, route, best, chosen, k)
        total = logsumexp_of_hosts(hosts, route, total)
        if not (excluded is None and present is None):  # some tokens may have fewer classes left
            best, chosen = marked_missing(best, chosen, best <= NO_CLASS)
        best += 0.0 * tf.reduce_sum(tf.cast(hidden, tf.float32), axis=1, keepdims=True)  # NaN gives NaN
        return (best - total[:, None] if normalized else best), chosen

    def _top_here(self, hidden, k, excluded, present):
        """Return the k best logits of this process (or all), their class ids, and the logsumexp of all."""
        logits, ids, totals = [], [], []
        parts = self.parts()
        classes = sum(part.count for part in parts)
        for part in parts:
            with part.on_its_device():
                most = tf.minimum(k, part.count) if tf.is_tensor(k) else min(k, part.count)
                here = None if excluded is None else excluded - [0, part.first]
                found = None if present is None else present[part.first : part.first + part.count]
                scores, places, total = stock_full_top_k(
                    hidden, part.kernel, part.bias, part.count, most, here, self._normalize, found
                )
                logits.append(scores)
                ids.append(places + part.first)
                totals.append(total)
        if len(parts) == 1:
            return logits[0], ids[0], totals[0]
        most = tf.minimum(k, classes) if tf.is_tensor(k) else min(k, classes)
        # Ids ascend from part to part, so ties still go to the smaller one.
        return *best_of(logits, ids, most), tf.reduce_logsumexp(tf.stack(totals, axis=1), axis=1)

    def rows(self, classes):
        """Return rows float `[n, dim]` and biases float32 `[n]` (or None) of some classes, wherever they are.

        Gradients go to these rows alone, as in a lookup, and to none of a frozen head.
        """
        rows, biases = sharded_lookup(self.kernel, classes), self._biases(classes)
        if not self.trainable:  # the table may be another layer's, which is trained
            rows, biases = (None if x is None else tf.stop_gradient(x) for x in (rows, biases))
        return (unit_rows(rows) if self._normalize else rows), biases

    def _biases(self, classes):
        if self.bias is None:
            return None
        if self.bias.is_whole:
            with device_scope(self.bias.variable):
                return tf.gather(self.bias.variable, classes)
        partition = self.bias.exchange.partition(classes, "error")
        return tf.gather(self.bias.exchange.rows(partition), partition.inverse)


def _combine_terms(found, here):
    """Return the `SoftmaxTerms` over all classes from the terms of each part, and where a target is."""
    lse = tf.reduce_logsumexp(tf.stack([terms.lse for terms in found]), axis=0)
    # Not lse - logit: exact where one logit stands far above the others.
    nothing = tf.zeros_like(lse)
    ce = [
        tf.where(inside, terms.ce + tf.where(inside, lse - terms.lse, nothing), nothing)
        for terms, inside in zip(found, here)
    ]
    return SoftmaxTerms(lse, tf.add_n(ce), tf.add_n([terms.sum for terms in found]))
