// Trees for the test and the bench: b-ary Huffman, two-level, head and tail, random; in the arrays of tree_softmax.h.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TESTING_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/test/check.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// Children of every node: a class, or ~node. Node 0 is the root; any order.
using NodeChildren = std::vector<std::vector<int32_t>>;

struct TestTree {
  std::vector<int32_t> class_row, node_start, node_row, node_parent, row_hint, row_child;

  // Numbers nodes breadth first.
  static TestTree From(const NodeChildren& children, int64_t classes) {
    TestTree tree;
    tree.class_row.resize(classes);
    std::vector<int32_t> queue = {0};
    tree.node_start = {0};
    tree.node_row = tree.node_parent = {-1};
    for (size_t n = 0; n < queue.size(); ++n) {
      for (const int32_t child : children[queue[n]]) {
        const int32_t row = static_cast<int32_t>(tree.row_child.size());
        if (row % 16 == 0) tree.row_hint.push_back(static_cast<int32_t>(n));
        if (child >= 0) {
          tree.class_row[child] = row;
          tree.row_child.push_back(child);
        } else {
          tree.row_child.push_back(~static_cast<int32_t>(queue.size()));
          tree.node_row.push_back(row);
          tree.node_parent.push_back(static_cast<int32_t>(n));
          queue.push_back(~child);
        }
      }
      tree.node_start.push_back(static_cast<int32_t>(tree.row_child.size()));
    }
    return tree;
  }

  TreeArrays arrays() const {
    return {class_row.data(), node_start.data(), node_row.data(), node_parent.data(), row_hint.data(),
            static_cast<int64_t>(class_row.size()), static_cast<int64_t>(node_row.size()),
            static_cast<int64_t>(row_child.size())};
  }
};

// Class c has weight 1 / (c + 1): ids in order of frequency.
inline TestTree HuffmanTree(int64_t classes, int64_t arity) {
  struct Item {
    double weight;
    int32_t child;
  };
  NodeChildren made;  // in order of making; the root comes last
  std::vector<Item> nodes;
  int64_t leaf = classes - 1, node = 0;
  const auto pop = [&]() -> Item {
    const double leaf_weight = leaf >= 0 ? 1.0 / (leaf + 1) : INFINITY;
    if (node < static_cast<int64_t>(nodes.size()) && nodes[node].weight < leaf_weight) return nodes[node++];
    const int32_t c = static_cast<int32_t>(leaf--);
    return {leaf_weight, c};
  };
  int64_t left = classes;
  int64_t take = classes > 1 ? (classes - 2) % (arity - 1) + 2 : 1;  // the first node takes what makes all others full
  while (left > 1 || made.empty()) {
    Item item{0.0, ~static_cast<int32_t>(made.size())};
    made.emplace_back();
    for (int64_t i = 0; i < take; ++i) {
      const Item child = pop();
      item.weight += child.weight;
      made.back().push_back(child.child);
    }
    nodes.push_back(item);
    left -= take - 1;
    take = std::min(arity, left);
    if (left == 1) break;
  }
  const int32_t last = static_cast<int32_t>(made.size()) - 1;
  for (auto& children : made) {
    for (int32_t& child : children) {
      if (child < 0) child = ~(last - ~child);
    }
  }
  std::reverse(made.begin(), made.end());
  return TestTree::From(made, classes);
}

// Classes [begin, end) below a new node, balanced with `arity`.
inline int32_t AddBalanced(int64_t begin, int64_t end, int64_t arity, NodeChildren* nodes) {
  const int32_t id = static_cast<int32_t>(nodes->size());
  nodes->emplace_back();
  const int64_t n = end - begin;
  std::vector<int32_t> children;
  for (int64_t i = 0; i < std::min(n, arity); ++i) {
    const int64_t from = begin + n * i / std::min(n, arity), to = begin + n * (i + 1) / std::min(n, arity);
    children.push_back(to - from == 1 ? static_cast<int32_t>(from) : ~AddBalanced(from, to, arity, nodes));
  }
  (*nodes)[id] = children;
  return id;
}

inline TestTree TwoLevelTree(int64_t classes, int64_t groups) {
  NodeChildren nodes(1);
  for (int64_t g = 0; g < groups; ++g) {
    nodes[0].push_back(~static_cast<int32_t>(nodes.size()));
    nodes.emplace_back();
    for (int64_t c = classes * g / groups; c < classes * (g + 1) / groups; ++c) nodes.back().push_back(static_cast<int32_t>(c));
  }
  return TestTree::From(nodes, classes);
}

// A root of the `head` most frequent classes and `clusters` of the rest (cut so that clusters weigh about the same).
inline TestTree HeadTailTree(int64_t classes, int64_t head, int64_t clusters, int64_t arity) {
  NodeChildren nodes(1);
  for (int64_t c = 0; c < head; ++c) nodes[0].push_back(static_cast<int32_t>(c));
  const auto cut = [&](int64_t i) {
    return std::min<int64_t>(classes, std::llround(head * std::pow(static_cast<double>(classes) / head, double(i) / clusters)));
  };
  for (int64_t i = 0; i < clusters; ++i) {
    const int32_t below = AddBalanced(cut(i), cut(i + 1), arity, &nodes);
    nodes[0].push_back(~below);
  }
  return TestTree::From(nodes, classes);
}

// One node: what is below the root are the classes.
inline TestTree FlatTree(int64_t classes) { return HeadTailTree(classes, classes, 0, 2); }

// Nodes of 1 to `widest` children, leaves at any depth.
inline TestTree RandomTree(int64_t classes, int64_t widest, Random* random) {
  NodeChildren nodes(1);
  std::vector<int32_t> id(classes);
  std::iota(id.begin(), id.end(), 0);
  for (int64_t i = classes - 1; i > 0; --i) std::swap(id[i], id[random->Below(i + 1)]);
  int64_t used = 0;
  std::vector<int32_t> open = {0};
  while (used < classes) {
    if (open.empty()) {  // every path has ended: hang one more node below the root
      nodes[0].push_back(~static_cast<int32_t>(nodes.size()));
      open.push_back(static_cast<int32_t>(nodes.size()));
      nodes.emplace_back();
    }
    const int64_t at = random->Below(static_cast<int64_t>(open.size()));
    const int32_t node = open[at];
    open.erase(open.begin() + at);
    const int64_t want = random->Below(3) == 0 ? 1 + random->Below(widest) : 1 + random->Below(9);
    for (int64_t i = 0; i < want && used < classes; ++i) {
      if (random->Below(4) == 0 && static_cast<int64_t>(open.size()) < classes - used) {
        nodes[node].push_back(~static_cast<int32_t>(nodes.size()));
        open.push_back(static_cast<int32_t>(nodes.size()));
        nodes.emplace_back();
      } else {
        nodes[node].push_back(id[used++]);
      }
    }
  }
  for (bool changed = true; changed;) {  // nodes that got no children go
    changed = false;
    for (auto& children : nodes) {
      const size_t before = children.size();
      children.erase(std::remove_if(children.begin(), children.end(), [&](int32_t c) { return c < 0 && nodes[~c].empty(); }),
                     children.end());
      changed = changed || children.size() != before;
    }
  }
  return TestTree::From(nodes, classes);
}

// What is left of a tree without its first `removed` nodes and the classes there, renumbered: a forest, whose roots
// need not have one depth in the tree. Its classes keep their order.
inline TestTree Forest(const TestTree& tree, int32_t removed) {
  TestTree forest;
  const int32_t row = tree.node_start[removed];
  for (size_t n = removed; n < tree.node_row.size(); ++n) {
    const bool root = tree.node_parent[n] < removed;
    forest.node_start.push_back(tree.node_start[n] - row);
    forest.node_row.push_back(root ? -1 : tree.node_row[n] - row);
    forest.node_parent.push_back(root ? -1 : tree.node_parent[n] - removed);
  }
  forest.node_start.push_back(tree.node_start.back() - row);
  std::vector<int32_t> number(tree.class_row.size());
  for (size_t c = 0; c < tree.class_row.size(); ++c) {
    if (tree.class_row[c] < row) continue;
    number[c] = static_cast<int32_t>(forest.class_row.size());
    forest.class_row.push_back(tree.class_row[c] - row);
  }
  int32_t node = 0;
  for (int32_t r = 0; r < forest.node_start.back(); ++r) {
    const int32_t child = tree.row_child[row + r];
    forest.row_child.push_back(child < 0 ? ~(~child - removed) : number[child]);
    if (forest.node_start[node + 1] == r) ++node;
    if (r % 16 == 0) forest.row_hint.push_back(node);
  }
  return forest;
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TESTING_H_
