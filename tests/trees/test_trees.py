"""Trees: numbering, builders, checks, cost."""

import heapq
import sys

import numpy as np
import pytest

from keras_largeout import trees
from keras_largeout.trees import Tree


def zipf(classes, seed=0, power=1.0):
    counts = 1e6 / (np.arange(classes) + 2.7) ** power + 1
    np.random.default_rng(seed).shuffle(counts)
    return counts


def children(tree, node=0):
    """Nested lists again: what `from_children` takes."""
    found = []
    for child in tree.row_child[tree.node_start[node] : tree.node_start[node + 1]].tolist():
        found.append(child if child >= 0 else children(tree, ~child))
    return found


def check(tree, classes=None):
    """The invariants that the ops rely on."""
    tree.validate()
    if classes is not None:
        assert tree.num_classes == classes
    assert tree.num_rows == tree.num_classes + tree.num_nodes - 1 == tree.node_start[-1]
    names = ["class_row", "node_start", "node_row", "node_parent", "row_hint", "row_child"]
    assert list(tree.arrays()) == names
    assert all(a.dtype == np.int32 and a.ndim == 1 for a in tree.arrays().values())
    holder = np.repeat(np.arange(tree.num_nodes), tree.node_sizes)
    assert np.array_equal(tree.node_parent[1:], holder[tree.node_row[1:]]) and tree.node_parent[0] == -1
    assert len(tree.row_hint) == -(-tree.num_rows // 16)
    assert np.array_equal(tree.row_hint, holder[::16])
    rows = np.arange(tree.num_rows)
    assert np.all(holder[rows] - tree.row_hint[rows // 16] < 16)
    leaf = tree.row_child >= 0
    assert np.array_equal(tree.class_row[tree.row_child[leaf]], rows[leaf])
    assert np.array_equal(tree.node_row[~tree.row_child[~leaf]], rows[~leaf])
    lengths = []
    for class_id in np.random.default_rng(1).integers(tree.num_classes, size=20):
        nodes, taken = tree.path(class_id)
        assert nodes[0] == 0 and taken[-1] == tree.class_row[class_id]
        assert [holder[r] for r in taken] == nodes
        assert [tree.node_row[n] for n in nodes[1:]] == taken[:-1]
        lengths.append(len(nodes))
    assert max(lengths) <= tree.depth


def builders():
    yield "head_tail", trees.head_tail
    yield "head_tail narrow", lambda c: trees.head_tail(c, head=3, clusters=4, arity=3)
    yield "head_tail no head", lambda c: trees.head_tail(c, head=0, clusters=7, arity=2)
    yield "huffman 2", lambda c: trees.huffman(c, 2)
    yield "huffman 8", trees.huffman
    yield "two_level", trees.two_level
    yield "two_level ids", lambda c: trees.two_level(len(c))
    yield "balanced 2", lambda c: trees.balanced(c, 2)
    yield "balanced ids", lambda c: trees.balanced(len(c))
    yield (
        "vectors",
        lambda c: trees.head_tail(
            c, np.random.default_rng(2).standard_normal((len(c), 5)), head=4, clusters=5, arity=4
        ),
    )
    yield (
        "zero vectors",
        lambda c: trees.head_tail(c, np.zeros((len(c), 3)), head=1, clusters=2, arity=2),
    )


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 8, 9, 17, 100, 123, 507, 3000])
@pytest.mark.parametrize("name,build", list(builders()), ids=[n for n, _ in builders()])
def test_builders_make_valid_trees_of_any_size(name, build, classes):
    counts = zipf(classes)
    tree = build(counts)
    check(tree, classes)
    again = build(counts)
    assert all(np.array_equal(a, again.arrays()[k]) for k, a in tree.arrays().items())


def huffman_cost(counts, arity):
    """Weight times depth of the best tree, by a heap."""
    heap = list(map(float, counts)) + [0.0] * (-(len(counts) - 1) % (arity - 1))
    heapq.heapify(heap)
    total = 0.0
    while len(heap) > 1:
        merged = sum(heapq.heappop(heap) for _ in range(arity))
        total += merged
        heapq.heappush(heap, merged)
    return total


@pytest.mark.parametrize("arity", [2, 3, 8, 16])
@pytest.mark.parametrize("kind", ["zipf", "equal", "ints", "geometric", "tiny"])
def test_huffman_is_optimal(arity, kind):
    counts = {
        "zipf": zipf(1234),
        "equal": np.ones(1000, np.int64),
        "ints": np.random.default_rng(3).integers(1, 50, 777),
        "geometric": 1.7 ** np.arange(300),
        "tiny": np.array([5.0, 1.0, 1.0]),
    }[kind]
    tree = trees.huffman(counts, arity)
    check(tree, len(counts))
    found = tree.cost(counts, 1, 1).nodes * np.sum(counts)
    np.testing.assert_allclose(found, huffman_cost(counts, arity), rtol=1e-12)
    assert np.all(np.sort(tree.node_sizes)[1:] == arity) or tree.num_nodes == 1


def test_two_level_and_balanced_shapes():
    assert children(trees.balanced(8, 2)) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert children(trees.two_level(7, groups=3)) == [[0, 1, 2], [3, 4], [5, 6]]
    # Counts deal classes out by frequency.
    assert children(trees.two_level([1, 5, 3, 9], groups=2)) == [[3, 1], [2, 0]]
    tree = trees.balanced(1000, 10)
    assert tree.depth == 3 and set(tree.node_sizes) == {10}
    assert trees.two_level(10**4).node_sizes.max() == 100


def test_head_tail_defaults():
    # Few classes: a full softmax. Many: a wide root that holds the most frequent classes themselves.
    assert trees.head_tail(zipf(1000)).num_nodes == 1
    counts = zipf(100_000)
    tree = trees.head_tail(counts)
    assert tree.node_sizes[0] == 512 and tree.node_sizes[1:].max() == 16
    frequent = np.argsort(-counts)[:448]
    assert np.array_equal(np.sort(tree.class_row[frequent]), np.arange(448))
    cost, best = tree.cost(counts, 304, 3200), trees.huffman(counts).cost(counts, 304, 3200)
    assert best.nodes < cost.nodes + 3 and cost.bytes_touched < 2 * best.bytes_touched
    # A larger batch pays for wider nodes, given parameters are kept.
    assert trees.head_tail(counts, tokens=10**6).node_sizes[1:].max() >= 16
    given = trees.head_tail(counts, head=100, clusters=28, arity=5)
    assert given.node_sizes[0] == 128 and given.node_sizes[1:].max() == 5


def test_head_tail_puts_similar_classes_together():
    rng = np.random.default_rng(4)
    topic = rng.integers(8, size=2000)
    vectors = rng.standard_normal((8, 16))[topic] + 0.1 * rng.standard_normal((2000, 16))
    tree = trees.head_tail(zipf(2000), vectors, head=10, clusters=8, arity=8)
    tail = [c for c in range(2000) if len(tree.path(c)[0]) > 1]
    below_root = {c: tree.path(c)[0][1] for c in tail}
    groups = {}
    for c in tail:
        groups.setdefault(below_root[c], []).append(topic[c])
    pure = sum(np.bincount(g).max() for g in groups.values())
    assert pure > 0.95 * len(tail)
    other = trees.head_tail(zipf(2000), vectors, head=10, clusters=8, arity=8, seed=1)
    check(other, 2000)


def test_clusters_keep_their_cap():
    vectors = np.ones((1000, 4), np.float32)  # All the same: only the cap separates them.
    tree = trees.head_tail(np.ones(1000), vectors, head=0, clusters=10, arity=1000)
    sizes = tree.node_sizes[1:]
    assert sizes.sum() == 1000 and sizes.max() <= 200


def test_from_children():
    nested = [5, [1, [3, 4], 0], 2]
    tree = Tree.from_children(nested)
    check(tree, 6)
    assert children(tree) == [5, 2, [1, 0, [3, 4]]]
    assert tree.path(4) == ([0, 1, 2], [2, 5, 7])
    assert Tree.from_children([0]).num_rows == 1
    deep = [0]
    for c in range(1, 3000):
        deep = [c, deep]
    assert Tree.from_children(deep).depth == 3000


@pytest.mark.parametrize(
    "nested,words",
    [
        ([0, 1, 3], "class 2 has no leaf"),
        ([0, [1, 1]], "class 1 twice"),
        ([0, []], "none empty"),
        ([], "none empty"),
        ([0, "a"], "'a'"),
        ([0, -1], "-1"),
        (3, "`children`"),
    ],
)
def test_from_children_errors(nested, words):
    with pytest.raises(ValueError, match="`children`") as error:
        Tree.from_children(nested)
    assert words in str(error.value)


def test_from_parents_renumbers():
    rng = np.random.default_rng(5)
    tree = trees.huffman(zipf(500), 3)
    shuffle = rng.permutation(tree.num_nodes)
    holder = np.repeat(np.arange(tree.num_nodes), tree.node_sizes)
    node_parent = np.empty(tree.num_nodes, np.int64)
    node_parent[shuffle] = np.append(-1, shuffle[tree.node_parent[1:]])
    again = Tree.from_parents(shuffle[holder[tree.class_row]], node_parent)
    check(again, 500)

    def unordered(tree, node=0):
        return frozenset(
            c if c >= 0 else unordered(tree, ~c)
            for c in tree.row_child[tree.node_start[node] : tree.node_start[node + 1]].tolist()
        )

    assert unordered(again) == unordered(tree)


@pytest.mark.parametrize(
    "class_parent,node_parent,words",
    [
        ([0, 2], [-1, 0], "`class_parent`"),
        ([0, 1], [-1, 5], "`node_parent`"),
        ([0, 1], [-1, -1], "2 roots"),
        ([0, 1], [-1, 0, 0], "must have a child"),
        ([0, 1, 2], [-1, 2, 1], "cycle"),
        ([], [-1], "not be empty"),
        ([0.5], [-1], "integers"),
    ],
)
def test_from_parents_errors(class_parent, node_parent, words):
    with pytest.raises(ValueError, match=words):
        Tree.from_parents(class_parent, node_parent)


def test_from_arrays_round_trip():
    tree = trees.huffman(zipf(300), 5)
    again = Tree.from_arrays(tree.class_row.tolist(), tree.node_start.astype(np.int64), tree.node_row)
    assert all(np.array_equal(a, again.arrays()[k]) for k, a in tree.arrays().items())


@pytest.mark.parametrize(
    "change,words",
    [
        ({"class_row": [0, 2, 2, 4]}, "row 2 of class 2 is claimed twice"),
        ({"class_row": [0, 1, 2, 4]}, "row 1 of class 1 is claimed twice"),
        ({"class_row": [0, -1, 3, 4]}, r"class_row\[1\]=-1"),
        ({"class_row": [0, 2, 3, 5]}, "no leaf"),
        ({"node_start": [0, 3, 4]}, "must begin with 0 and end with 5"),
        ({"node_start": [0, 0, 5]}, "must have a child"),
        ({"node_start": [0, 5]}, "one longer"),
        ({"node_row": [0, 1]}, "`node_row`"),
        ({"node_row": [-1, 3]}, "after its parent"),
        ({"class_row": []}, "not be empty"),
        ({"class_row": [[0, 2, 3, 4]]}, "1-D"),
        ({"class_row": [0, 2, 3, 2**31]}, "int32"),
    ],
)
def test_from_arrays_errors(change, words):
    arrays = {"class_row": [0, 2, 3, 4], "node_start": [0, 3, 5], "node_row": [-1, 1]}
    check(Tree.from_arrays(**arrays), 4)
    with pytest.raises(ValueError, match=words):
        Tree.from_arrays(**{**arrays, **change})


@pytest.mark.parametrize(
    "build", [trees.head_tail, trees.huffman, trees.two_level, trees.balanced], ids=lambda b: b.__name__
)
@pytest.mark.parametrize(
    "counts,words",
    [
        ([0, 0, 0], r"counts\[0\]=0, and 3 such"),
        ([3, -1.5], r"counts\[1\]=-1.5"),
        ([np.nan, 1], r"counts\[0\]=nan"),
        ([np.inf, 1], r"counts\[0\]=inf"),
        ([], r"shape \(0,\)"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (["a"], "dtype"),
    ],
)
def test_bad_counts(build, counts, words):
    with pytest.raises(ValueError, match=words) as error:
        build(counts)
    assert "`counts`" in str(error.value)


@pytest.mark.parametrize(
    "build", [trees.head_tail, trees.huffman, trees.two_level, trees.balanced], ids=lambda b: b.__name__
)
def test_counts_of_zero(build):
    counts = np.array([0, 3, 0, 2])
    with pytest.warns(
        UserWarning, match=r"`counts` of 0 are taken as 2, .* 2 counts of 0, .*counts\[0\]"
    ) as seen:
        tree = build(counts)
    assert len(seen) == 1 and counts[0] == 0
    want = build([2, 3, 2, 2])
    for ours, theirs in zip(tree.arrays().values(), want.arrays().values()):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: trees.huffman([1, 2], arity=1), "`arity` must be .* at least 2. Received: arity=1"),
        (lambda: trees.balanced(9, arity=2.5), "`arity`"),
        (lambda: trees.balanced(0), "`num_classes`"),
        (lambda: trees.two_level(9, groups=10), "`groups`"),
        (lambda: trees.two_level(True), "`num_classes`"),
        (lambda: trees.head_tail([1, 2], head=-1), "`head`"),
        (lambda: trees.head_tail([1, 2], clusters=0), "`clusters`"),
        (lambda: trees.head_tail([1, 2], vectors=np.zeros((3, 2))), r"`vectors` .*\[2, k\].*\(3, 2\)"),
        (lambda: trees.head_tail([1, 2], vectors=np.full((2, 2), np.nan)), "`vectors` must be finite"),
        (lambda: trees.balanced(9).cost([1, 2], 3, 4), "`counts` must have 9"),
        (lambda: trees.balanced(9).path(9), "`class_id`"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_cost_matches_simulation():
    counts = zipf(400)
    tree = trees.huffman(counts, 4)
    cost = tree.cost(counts, dim=7, tokens=50)
    rng = np.random.default_rng(6)
    paths = [tree.path(c)[0] for c in range(400)]
    sizes = tree.node_sizes
    p = counts / counts.sum()
    rows = sum(q * sizes[path].sum() for q, path in zip(p, paths))
    np.testing.assert_allclose(cost.rows, rows, rtol=1e-12)
    np.testing.assert_allclose(cost.nodes, sum(q * len(path) for q, path in zip(p, paths)), rtol=1e-12)
    assert cost.multiply_adds == 3 * 7 * cost.rows and cost.bytes_touched == 20 * 7 * cost.rows_touched
    seen = [
        sizes[np.unique(np.concatenate([paths[c] for c in rng.choice(400, 50, p=p)]))].sum()
        for _ in range(300)
    ]
    np.testing.assert_allclose(cost.rows_touched, np.mean(seen), rtol=0.02)


def test_log_frequencies_multiply_to_the_frequencies():
    counts = 1 / np.arange(1.0, 124.0)
    for tree in (
        trees.huffman(counts, arity=3),
        trees.two_level(123),
        trees.head_tail(counts, head=9, clusters=4),
    ):
        logs = tree.log_frequencies(counts)
        assert logs.dtype == np.float32 and logs.shape == (tree.num_rows,)
        np.testing.assert_allclose(np.add.reduceat(np.exp(logs), tree.node_start[:-1]), 1.0, rtol=1e-5)
        for word in (0, 57, 122):
            assert np.isclose(logs[tree.path(word)[1]].sum(), np.log(counts[word] / counts.sum()), rtol=1e-5)
    with pytest.raises(ValueError, match=r"`counts` must have 123 values\. Received: 3"):
        tree.log_frequencies([1, 2, 3])


def test_memory_near_eight_bytes_a_class():
    tree = trees.huffman(zipf(200_000))
    assert tree.nbytes <= 8 * tree.num_classes
    with pytest.raises(ValueError, match="read-only"):
        tree.class_row[0] = 1


def test_cooccurrence_vectors_find_interchangeable_words():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(7)
    # Words 0..9 follow word 20, words 10..19 follow word 21.
    kind = rng.integers(2, size=5000)
    text = np.stack([20 + kind, 10 * kind + rng.integers(10, size=5000)], 1)
    vectors = trees.cooccurrence_vectors(text, 23, dim=4, window=1)
    assert vectors.shape == (23, 4) and vectors.dtype == np.float32
    assert not vectors[22].any()
    unit = vectors[:20] / np.linalg.norm(vectors[:20], axis=1, keepdims=True)
    near = unit @ unit.T
    assert near[:10, :10].min() > near[:10, 10:].max() + 0.5
    listed = trees.cooccurrence_vectors(list(text), 23, dim=4, window=1)
    np.testing.assert_array_equal(listed, vectors)
    fewer = trees.cooccurrence_vectors(text.ravel(), 23, dim=40, window=2, max_pairs=9000)
    assert fewer.shape == (23, 40) and np.isfinite(fewer).all()


def test_cooccurrence_vectors_skip_holes_and_check_ids():
    pytest.importorskip("sklearn")
    text = np.array([0, 1, -1, 2, 3, -5, 0, 1])
    vectors = trees.cooccurrence_vectors(text, 4, dim=2, window=1)
    assert np.isfinite(vectors).all()
    assert not trees.cooccurrence_vectors(np.array([], np.int64), 4, dim=2).any()
    assert not trees.cooccurrence_vectors([], 4, dim=2).any()
    with pytest.raises(ValueError, match=r"below num_classes=4. Received: an id of 4"):
        trees.cooccurrence_vectors(np.array([4, 1]), 4)
    with pytest.raises(ValueError, match="`ids` must be integers"):
        trees.cooccurrence_vectors(np.array([0.5, 1]), 4)


def test_cooccurrence_vectors_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"pip install keras-largeout\[vectors\]"):
        trees.cooccurrence_vectors(np.array([0, 1]), 2)
