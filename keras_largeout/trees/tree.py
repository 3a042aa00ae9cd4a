"""The shape of a tree over classes: three int32 arrays, and what follows from them."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.trees import _assemble, _check
from keras_largeout.trees.cost import TreeCost, expected_cost, log_frequencies

#: The node of a row is found by starting at the hint of its block and walking at most this far.
HINT_STRIDE = 16


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A tree whose leaves are the classes `0 .. num_classes - 1`.

    Every child of every node has one row in a table of `num_rows = num_classes + num_nodes - 1` rows. The
    children of a node are contiguous rows. Nodes are numbered breadth first: the root is 0, and `node_row`
    increases.

    `log p(class) = sum over the path of (logit of the row - logsumexp of the logits of the node's rows)`.

    Build one by `head_tail`, `huffman`, `two_level`, `balanced`, or from your own description by
    `from_children`, `from_parents` or `from_arrays`.

    Attributes:
        class_row: int32 `[num_classes]`, the row of each class.
        node_start: int32 `[num_nodes + 1]`; rows `node_start[n] .. node_start[n + 1] - 1` are the children of
            node n.
        node_row: int32 `[num_nodes]`, the row that a node has among its parent's children; -1 for the root.

    Raises:
        ValueError: arrays that are not vectors of integers within int32.

    Example:

    >>> tree = kl.trees.Tree.from_children([0, 1, [2, 3, [4, 5]]])
    >>> tree.num_rows  # the root has 3 children, its inner child 3, that one's 2
    8
    >>> tree.path(4)  # the nodes from the root to class 4, and the row taken at each
    ([0, 1, 2], [2, 5, 6])
    """

    class_row: np.ndarray
    node_start: np.ndarray
    node_row: np.ndarray

    def __post_init__(self):
        for field in dataclasses.fields(self):
            array = _assemble.int32_vector(field.name, getattr(self, field.name)).view()
            array.flags.writeable = False
            object.__setattr__(self, field.name, array)

    # Other descriptions of a tree.

    @classmethod
    def from_arrays(cls, class_row: ArrayLike, node_start: ArrayLike, node_row: ArrayLike) -> "Tree":
        """Return a tree from its three arrays, which are checked.

        Args:
            class_row, node_start, node_row: 1-D integers, see the attributes of `Tree`.

        Raises:
            ValueError: the arrays do not describe a tree.
        """
        return cls(class_row, node_start, node_row).validate()

    @classmethod
    def from_children(cls, children: Sequence) -> "Tree":
        """Return a tree from nested lists: an integer is a class, a list is an inner node.

        Args:
            children: the children of the root, such as `[0, 1, [2, 3, [4, 5]]]`. Every class from 0 to the
                largest must occur exactly once. The rows of a node are its classes first and then its inner
                nodes, each in the order given.

        Raises:
            ValueError: an empty node, a class without a leaf, or a class with two.
        """
        return cls(*_assemble.from_children(children))

    @classmethod
    def from_parents(
        cls, class_parent: ArrayLike, node_parent: ArrayLike, class_order: ArrayLike | None = None
    ) -> "Tree":
        """Return a tree from the parent of every class and of every inner node; suited to millions of
        classes.

        Args:
            class_parent: integers `[num_classes]`, the node that each class is a child of.
            node_parent: integers `[num_nodes]`, the parent of each node; -1 for the root. Nodes may be in any
                order.
            class_order: integers `[num_classes]`, a permutation: the order of the classes among the children
                of a node. None: the order of the ids. Defaults to `None`.

        Raises:
            ValueError: nodes out of range, a node without children, no root or several, or a cycle.
        """
        return cls(*_assemble.from_parents(class_parent, node_parent, class_order))

    # Sizes.

    @property
    def num_classes(self) -> int:
        """int: the number of classes."""
        return len(self.class_row)

    @property
    def num_nodes(self) -> int:
        """int: the number of inner nodes, including the root."""
        return len(self.node_row)

    @property
    def num_rows(self) -> int:
        """int: the rows of the table of weights, one for every child of every node."""
        return self.num_classes + self.num_nodes - 1

    @functools.cached_property
    def depth(self) -> int:
        """int: the number of nodes on the longest path from the root to a class."""
        return len(self.levels) - 1

    @property
    def nbytes(self) -> int:
        """int: bytes of the three arrays that define the tree."""
        return self.class_row.nbytes + self.node_start.nbytes + self.node_row.nbytes

    @property
    def node_sizes(self) -> np.ndarray:
        """int32 `[num_nodes]`: the number of children of each node."""
        return np.diff(self.node_start)

    # Derived arrays, computed when they are first used.

    @functools.cached_property
    def node_parent(self) -> np.ndarray:
        """int32 `[num_nodes]`: the parent of each node; -1 for the root."""
        parent = self._node_of(self.node_row)
        parent[0] = -1
        return parent

    @functools.cached_property
    def row_hint(self) -> np.ndarray:
        """int32 `[ceil(num_rows / 16)]`: the node that holds row `16 * i`."""
        return self._node_of(np.arange(0, self.num_rows, HINT_STRIDE))

    @functools.cached_property
    def row_child(self) -> np.ndarray:
        """int32 `[num_rows]`: what each row stands for: a class, or an inner node n as `~n`."""
        child = np.empty(self.num_rows, np.int32)
        child[self.class_row] = np.arange(self.num_classes, dtype=np.int32)
        child[self.node_row[1:]] = ~np.arange(1, self.num_nodes, dtype=np.int32)
        return child

    @functools.cached_property
    def levels(self) -> np.ndarray:
        """int64 `[depth + 1]`: nodes `levels[i] .. levels[i + 1] - 1` are i steps below the root."""
        bounds = [0, 1]
        while bounds[-1] < self.num_nodes:
            # The next level ends before the first node whose parent is in it.
            bounds.append(int(np.searchsorted(self.node_parent, bounds[-1])))
        return np.array(bounds)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return dict of all six arrays by name, in the order in which the ops take them."""
        names = ("class_row", "node_start", "node_row", "node_parent", "row_hint", "row_child")
        return {name: getattr(self, name) for name in names}

    def path(self, class_id: int) -> tuple[list[int], list[int]]:
        """Return the nodes from the root to a class, and the row taken at each: two lists of ints of equal
        length.

        Args:
            class_id: int.

        Raises:
            ValueError: there is no such class.
        """
        if not 0 <= class_id < self.num_classes:
            raise ValueError(f"`class_id` must be in [0, {self.num_classes}). Received: class_id={class_id}")
        nodes, rows = [], [int(self.class_row[class_id])]
        while True:
            node = int(np.searchsorted(self.node_start, rows[-1], side="right")) - 1
            nodes.append(node)
            if node == 0:
                return nodes[::-1], rows[::-1]
            rows.append(int(self.node_row[node]))

    def cost(self, counts: ArrayLike, dim: int, tokens: int) -> TreeCost:
        """Return what a training step is expected to cost if targets are drawn in proportion to `counts`.

        Args:
            counts: numbers `[num_classes]`, finite and at least 0.
            dim: int, width of the hidden vectors.
            tokens: int, targets per step.

        Returns:
            A `TreeCost`, whose docstring states the cost model.

        Raises:
            ValueError: counts that are negative, not finite, all 0, or of another length; other numbers
                below 1.
        """
        dim, tokens = positive_int("dim", dim), positive_int("tokens", tokens)
        return expected_cost(self, self._class_counts(counts), dim, tokens)

    def log_frequencies(self, counts: ArrayLike) -> np.ndarray:
        """Return the log of how often each row is taken by the tokens that pass its node, drawn by `counts`.

        These are the logits of a model that knows nothing but the frequencies of the classes.

        Args:
            counts: numbers `[num_classes]`, finite and at least 0.

        Returns:
            float32 `[num_rows]`; the exponentials of the rows of one node sum to 1.

        Raises:
            ValueError: counts that are negative, not finite, or all 0, or of another length.
        """
        return log_frequencies(self, self._class_counts(counts))

    def validate(self) -> "Tree":
        """Returns this tree. Raises ValueError, naming what is wrong, if the arrays describe no tree."""
        _assemble.check_arrays(self.class_row, self.node_start, self.node_row)
        return self

    def _class_counts(self, counts):
        counts = _check.class_counts(counts)
        if len(counts) != self.num_classes:
            raise ValueError(f"`counts` must have {self.num_classes} values. Received: {len(counts)}")
        return counts

    def _node_of(self, rows):
        return (np.searchsorted(self.node_start, rows, side="right") - 1).astype(np.int32)

    def __repr__(self):
        return f"Tree(num_classes={self.num_classes}, num_nodes={self.num_nodes}, depth={self.depth})"
