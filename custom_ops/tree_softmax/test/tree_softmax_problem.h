// A batch with random values for the tests, and what its nodes say in float64.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PROBLEM_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PROBLEM_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/test/check.h"
#include "common/test/factors.h"
#include "common/test/levels.h"
#include "common/test/test_call.h"
#include "tree_softmax/test/tree_softmax_testing.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// T: the type of the table, H: of hidden vectors.
template <typename T, typename H = float>
struct Problem {
  Problem(TestTree t, int64_t dim, int64_t tokens, uint64_t seed, bool use_bias = true, bool use_weights = true)
      : tree(std::move(t)), arrays(tree.arrays()), dim(dim), tokens(tokens), table(arrays.rows * dim),
        hidden(tokens * dim), bias(use_bias ? arrays.rows : 0), weights(use_weights ? tokens : 0), grad_loss(tokens),
        targets(tokens) {
    Random random(seed);
    for (T& x : table) FromFloat(random.Normalish(), &x);
    for (H& x : hidden) FromFloat(random.Normalish(), &x);
    for (float& x : bias) x = random.Normalish();
    for (float& x : weights) x = random.Below(4) == 0 ? 0.f : random.Normalish();
    for (float& x : grad_loss) x = random.Normalish();
    for (int32_t& x : targets) {  // many tokens on few classes
      x = static_cast<int32_t>(random.Below(2) ? random.Below(arrays.classes) : random.Below(std::min<int64_t>(3, arrays.classes)));
    }
    for (int64_t i = 0; i < tokens && use_weights; ++i) {
      if (weights[i] == 0.f) targets[i] = -5;  // never looked at
    }
  }
  TreeTable<T> Table() const { return {table.data(), bias.empty() ? nullptr : bias.data(), dim}; }

  const TestTree tree;
  const TreeArrays arrays;
  const int64_t dim, tokens;
  std::vector<T> table;
  std::vector<H> hidden;
  std::vector<float> bias, weights, grad_loss;
  std::vector<int32_t> targets;
};

// log softmax of a node's rows, in float64. rounded: the rows are.
template <typename T, typename H>
std::vector<double> NodeLogProbs(const Problem<T, H>& p, int64_t node, int64_t token, bool rounded = false) {
  std::vector<double> x;
  double top = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (int64_t r = p.arrays.node_start[node]; r < p.arrays.node_start[node + 1]; ++r) {
    double dot = p.bias.empty() ? 0.0 : p.bias[r];
    for (int64_t k = 0; k < p.dim; ++k)
      dot += Factor(p.table[r * p.dim + k], rounded) * ToFloat(p.hidden[token * p.dim + k]);
    x.push_back(dot);
    top = std::max(top, dot);
  }
  for (const double v : x) sum += std::exp(v - top);
  for (double& v : x) v -= top + std::log(sum);
  return x;
}

// A tree, and a batch on it, in the memory of a device.
template <typename Device>
struct TreeOn {
  explicit TreeOn(const TestTree& tree)
      : class_row(tree.class_row),
        node_start(tree.node_start),
        node_row(tree.node_row),
        node_parent(tree.node_parent),
        row_hint(tree.row_hint),
        row_child(tree.row_child),
        sizes(tree.arrays()) {}
  TreeArrays arrays() const {
    return {class_row.get(), node_start.get(), node_row.get(), node_parent.get(),
            row_hint.get(),  sizes.classes,    sizes.nodes,    sizes.rows};
  }
  const ArrayOf<Device, int32_t> class_row, node_start, node_row, node_parent, row_hint, row_child;
  const TreeArrays sizes;  // only the sizes are used
};

template <typename Device, typename T, typename H = float>
struct ProblemOn : TreeOn<Device> {
  explicit ProblemOn(const Problem<T, H>& p)
      : TreeOn<Device>(p.tree),
        table_data(p.table),
        hidden(p.hidden),
        bias(p.bias),
        weights_data(p.weights),
        grad_loss(p.grad_loss),
        targets(p.targets),
        table{table_data.get(), p.bias.empty() ? nullptr : bias.get(), p.dim},
        weights(p.weights.empty() ? nullptr : weights_data.get()) {}
  const ArrayOf<Device, T> table_data;
  const ArrayOf<Device, H> hidden;
  const ArrayOf<Device, float> bias, weights_data, grad_loss;
  const ArrayOf<Device, int32_t> targets;
  const TreeTable<T> table;
  const float* const weights;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PROBLEM_H_
