"""`ShardedTree`: the weights of a softmax over a tree, cut over several devices.

The nodes near the root, which every token passes, are on every device; below them each subtree is whole on
one device. A replica computes the top for its own tokens, and sends the hidden vector of a token to the one
device that has the subtree of its target: at most one, whatever the tree's depth.
"""

import tensorflow as tf

from keras_largeout.ops._gradients import with_gradient
from keras_largeout.ops.tree_softmax.stock_dense import TreeFacts, rows_on_paths
from keras_largeout.ops.tree_softmax.wrapper import TreeArrays, tree_softmax_pairs
from keras_largeout.planning.repacking import spread_subtrees
from keras_largeout.planning.tree_estimator import node_owners
from keras_largeout.planning.tree_placement import cut_and_units
from keras_largeout.replicas.collectives import AllToAll
from keras_largeout.replicas.devices import (
    device_scope,
    per_device_variables,
    plain_variable,
    replica_copy,
)
from keras_largeout.replicas.exchange_dtype import gather_narrowed, send_narrowed
from keras_largeout.tables.array import HOT
from keras_largeout.tables.counting import counter_of
from keras_largeout.trees.parts import split_tree

_FIELDS = ("class_row", "node_start", "node_row", "node_parent", "row_hint")


class ShardedTree:
    """Computes the losses of one replica over the parts of a tree.

    Args:
        kernel, bias: `ShardedTable`s of one explicit placement; `bias` may be None.
        num_classes: int.
        name: the name by which a `Plan` knows the tree.
        counts: frequencies of the classes, as far as they are known before anything is measured, or None.
    """

    def __init__(self, kernel, bias, num_classes, name="tree", counts=None):
        self.kernel, self.bias, self.num_classes = kernel, bias, num_classes
        self.plan_name, self.counter = name, None
        self.tables = [kernel] if bias is None else [kernel, bias]
        for table in self.tables:
            table.placement_unit = self
        self._tree, self._top_tree, self._leaf_of_class, self._counts = None, None, None, counts
        remote = kernel.remote
        self._top = {field: _Vector(remote) for field in _FIELDS}
        self._top_class, self._class_position = _Vector(remote), _Vector(remote)
        self._class_offsets = _Vector(remote, dtype=tf.int64)
        self._forests = {
            key: {field: _Vector(remote, device=part.device) for field in _FIELDS}
            for key, part in kernel.array.parts.items()
            if key != HOT
        }

    def set_tree(self, tree):
        """Takes the arrays of `tree`, cut as the placement of the tables says."""
        placement = self.kernel.placement
        parts = split_tree(tree, node_owners(tree, placement), placement.devices)
        self._tree, self._top_tree, self._leaf_of_class = tree, parts.top, parts.top_class
        for field in _FIELDS:
            self._top[field].set(getattr(parts.top, field))
            for key, forest in self._forests.items():
                forest[field].set(parts.forests[key][field])
        self._top_class.set(parts.top_class)
        self._class_position.set(parts.class_position)
        self._class_offsets.set(parts.class_offsets)

    def replace_tree(self, tree, cut):
        """Places the rows for another tree of these sizes, to be written then.

        Raises:
            ValueError: the parts that exist are of other sizes.
        """
        old = self.kernel.placement
        new = cut.place(tree, old.devices)
        if (new.num_hot, new.sizes) != (old.num_hot, old.sizes):
            raise ValueError(
                "The tree in the weights file has parts of other sizes than the head was built with. Make "
                "the model with keras.models.load_model, in the strategy's scope. "
                f"Received: {new!r} of sizes {new.sizes}, expected {old!r} of sizes {old.sizes}"
            )
        self._tree = tree
        self.move_to(new)

    @property
    def placement(self):
        return self.kernel.placement

    @property
    def top_leaves(self):
        """int: how many leaves the replicated top has: classes, and subtrees that are on one device each."""
        return self._top_tree.num_classes

    def even_placement(self, recorded):
        """Return the `Placement` that is even for what a counter recorded, and what it makes each device
        do.
        """
        dim = self.kernel.shape[1]
        return spread_subtrees(self.placement, self._tree, recorded, self._leaf_of_class, self._counts, dim)

    def check_move(self, placement):
        """Raises ValueError where rows cannot be moved to `placement`, or it tears a subtree apart."""
        cut_and_units(self._tree, placement)
        self.kernel.check_move(placement)

    def move_to(self, placement):
        """Takes over a placement of the same sizes; the rows' values are then to be written again."""
        moved = [table.move_to(placement) for table in self.tables]
        self.set_tree(self._tree)
        return all(moved)

    def losses(self, hidden, targets, weights=None):
        """Return -log p of the targets of this replica.

        Args:
            hidden: float32 or bfloat16 `[tokens, dim]`.
            targets: int32 or int64 `[tokens]`.
            weights: None, or float `[tokens]`, 0 or 1; tokens of weight 0 are skipped.

        Returns:
            float32 `[tokens]`.
        """
        targets = tf.cast(targets, tf.int64)
        inside = (targets >= 0) & (targets < self.num_classes)
        known = tf.where(inside, targets, 0)
        top_class = tf.cast(tf.gather(self._top_class.local, known), tf.int64)
        losses, pairs = self._top_losses(hidden, tf.where(inside, top_class, targets), weights)
        position = tf.cast(tf.gather(self._class_position.local, known), tf.int64)
        if weights is not None:
            position = tf.where(weights == 0, tf.constant(-1, tf.int64), position)
        counter = counter_of(self)
        if counter is not None:
            counter.record(top_class, weights)
        hosts = self.kernel.hosts
        if hosts.is_alone:
            below, of_parts, sizes = self._below(hidden, position)
            self._count(hidden, sizes, [pairs, *of_parts])
            return losses + below
        # Hidden vectors of tokens go to the host that has the subtree of their target, and losses come back.
        starts = self._class_offsets.local[:: hosts.per_host]
        order, sizes = self._by_owner(position, starts, hosts.count)
        route = AllToAll(hosts, tf.stack(sizes))
        there = route.forward(permute_rows(hidden, order)), route.forward(tf.gather(position, order))
        below, of_parts, _ = self._below(*there)
        if counter is not None:
            asked = self._by_owner(position, self._class_offsets.local, len(of_parts))[1]
            self._count(hidden, asked, [pairs, *of_parts])
        return losses + tf.scatter_nd(order[:, None], route.reverse(below), tf.shape(losses))

    def _count(self, hidden, sizes, pairs):
        counter = counter_of(self)
        if counter is not None:
            counter.add_pairs(hidden, sizes, pairs)

    def _top_losses(self, hidden, targets, weights):
        """Return the losses of the top, and its pairs; a target that is no class is named by the op."""
        remote = self.kernel.remote
        tables = (
            self._fetched_top(targets, weights) if remote else (*self._weights(HOT), self._arrays(self._top))
        )
        losses, pairs = tree_softmax_pairs(hidden, targets, *tables, weights, num_classes=self.num_classes)
        return losses, None if remote else pairs  # pairs that a worker computes are no load of a server

    def _fetched_top(self, targets, weights):
        """Return table, bias and arrays of the top as tensors of a worker.

        All tokens need these few rows: they come to the worker, the tokens don't go to the server. Only those
        of nodes on the paths: an optimizer that is lazy leaves the others where they are.
        """
        arrays = TreeArrays(*self._top_tree.arrays().values())
        if weights is not None:
            targets = tf.boolean_mask(targets, weights != 0)
        wrong_too = tf.clip_by_value(targets, 0, self._top_tree.num_classes - 1)
        wanted = rows_on_paths(wrong_too, arrays, TreeFacts(arrays))
        kernel, bias = self._weights(HOT)
        fetched = _fetched(kernel, wanted, self.kernel.exchange_dtype)
        return fetched, None if bias is None else _fetched(bias, wanted), arrays

    def _by_owner(self, position, offsets, parts):
        """Return the tokens with something below the top, by parts that begin at `offsets`, and how many
        of each.
        """
        owner = tf.searchsorted(offsets, position, side="right", out_type=tf.int32)  # 0: nothing below
        tokens = tf.dynamic_partition(tf.range(tf.size(position)), owner, parts + 1)[1:]
        return tf.concat(tokens, axis=0), [tf.size(t) for t in tokens]

    def _below(self, hidden, position):
        """Return the losses of the subtrees of this process, each computed where the subtree is; 0 without
        one.

        Also the pairs of each device's subtrees (None: not here), and how many of the tokens they have.
        Tokens that are skipped have no position and are not sent. So all that are sent weigh 1.
        """
        offsets, devices = self._class_offsets.local, self.kernel.placement.devices
        order, sizes = self._by_owner(position, offsets, devices)
        pieces = tf.split(permute_rows(hidden, order), sizes)
        classes = tf.split(tf.gather(position, order), sizes)
        below, pairs = [], [None] * devices
        for index, (mine, piece) in enumerate(zip(classes, pieces)):
            if index not in self._forests:
                continue
            kernel, bias = self._weights(index)
            vectors = send_narrowed(piece, kernel, self.kernel.exchange_dtype)
            with device_scope(kernel):
                loss, pairs[index] = tree_softmax_pairs(
                    vectors,
                    mine - offsets[index],
                    kernel,
                    bias,
                    self._arrays(self._forests[index]),
                    forest=True,
                )
                below.append(loss)
        shape = tf.shape(position)
        if not below:
            return tf.zeros(shape), pairs, sizes
        return tf.scatter_nd(order[:, None], tf.concat(below, axis=0), shape), pairs, sizes

    def _weights(self, key):
        kernel = replica_copy(self.kernel.array.parts[key].value)
        return kernel, None if self.bias is None else replica_copy(self.bias.array.parts[key].value)

    def _arrays(self, arrays):
        return TreeArrays(*(arrays[field].local for field in _FIELDS), row_child=None)


def permute_rows(values, order):
    """Return `values[order]` where no index occurs twice: its gradient only moves rows."""
    shape = tf.shape(values)
    taken = tf.gather(values, order)
    return with_gradient(lambda grad: [tf.scatter_nd(order[:, None], grad, shape)], taken, [values])


def _fetched(variable, rows, dtype=None):
    """Return a tensor of the shape of `variable` that has its `rows`, and zeros elsewhere.

    Its gradient must be a `tf.IndexedSlices` of these rows. `dtype`: None, or what they travel in.
    """
    shape = tf.constant(variable.shape.as_list(), rows.dtype)
    values = gather_narrowed(variable, rows, dtype)
    spread = tf.scatter_nd(rows[:, None], values, shape)
    return with_gradient(lambda grad: [grad.values], spread, [values])


class _Vector:
    """Integers beside a table: on one device, or a copy on every one; they may change, and in length too."""

    def __init__(self, remote, device=None, dtype=tf.int32):
        self._remote, self._device, self._dtype = remote, device, dtype
        self._variable = None

    @property
    def local(self):
        """The `tf.Variable` that the current replica uses."""
        return replica_copy(self._variable)

    def set(self, values):
        values = tf.constant(values, self._dtype)
        with tf.init_scope():
            # A worker cannot be sent the handle of a variable of unknown length.
            if self._variable is None or (self._remote and self._variable.shape != values.shape):
                shape = values.shape if self._remote else [None]
                make = tf.Variable if self._device is None else plain_variable
                with tf.device(self._device):
                    self._variable = make(values, shape=shape, trainable=False)
            for copy in per_device_variables(self._variable):
                with device_scope(copy):
                    copy.assign(values)
