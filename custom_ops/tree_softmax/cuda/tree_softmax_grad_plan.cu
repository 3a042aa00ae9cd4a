// The plan of a gradient: checks of what the loss has saved, and the pieces that its groups are cut into.
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

// As CheckSaved of a CPU (tree_softmax_pairs.cc), for the pairs and groups; parents are checked by
// FindParents.
__global__ void CheckSaved(TreeArrays tree, TreeSaved saved, TreeTotals* totals) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i == 0) {
    totals->groups = saved.groups;
    if (saved.group_start[0] != 0 || saved.group_start[saved.groups] != saved.pairs) StoreRelaxed(&totals->bad, int64_t{1});
  }
  if (i >= saved.groups) return;
  const int64_t node = saved.group_node[i], begin = saved.group_start[i], end = saved.group_start[i + 1];
  bool good = node >= 0 && node < tree.nodes && (i == 0 || saved.group_node[i - 1] < node) && begin >= 0 &&
              begin < end && end <= saved.pairs;
  if (good) {
    const int64_t row = tree.node_start[node], next = tree.node_start[node + 1];
    good = row >= 0 && row < next && next <= tree.rows;
    if (good && i > 0 && saved.group_node[i - 1] >= 0) {  // rows ascend, from group to group
      good = tree.node_start[saved.group_node[i - 1] + 1] <= row;
    }
  }
  if (!good) StoreRelaxed(&totals->bad, int64_t{1});
}

__global__ void CheckSavedPairs(TreeArrays tree, TreeSaved saved, int64_t tokens, TreeTotals* totals) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= saved.pairs || LoadRelaxed(&totals->bad) != 0) return;
  const int64_t group = LastStart(saved.groups, p, [&](int64_t g) { return saved.group_start[g]; });
  const int64_t node = saved.group_node[group], row = saved.pair_row[p], token = saved.pair_token[p];
  // Tokens of a node increase: no token is twice in it, so no two warps add to one element of d_hidden.
  const bool good = token >= 0 && token < tokens && row >= tree.node_start[node] &&
                    row < tree.node_start[node + 1] &&
                    (p == saved.group_start[group] || saved.pair_token[p - 1] < token);
  if (!good) StoreRelaxed(&totals->bad, int64_t{1});
}

}  // namespace

template <>
TreeGradPlan TreeSoftmaxGpu::GradientPlan() const {
  return loss_.gradient;
}

template <>
TreeTouched TreeSoftmaxGpu::Resume(const TreeGradPlan& plan) {
  gradient_ = plan;
  return {plan.ok, plan.work.rows, plan.work.probs};
}

template <>
template <typename T>
int TreeSoftmaxGpu::Check(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t dim,
                          TreeTouched* touched) {
  constexpr bool kRoundRows = !std::is_same_v<T, float>;
  const GpuStream stream = call_.stream;
  TreeGradPlan plan;
  plan.work.pairs = saved.pairs;
  if (saved.pairs == 0 || saved.groups == 0) {
    plan.ok = saved.pairs == saved.groups;
    *touched = Resume(plan);
    return 0;
  }
  TreeTotals* device_totals = call_.scratch->Take<TreeTotals>(1);
  if (device_totals == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(device_totals, 0, sizeof(TreeTotals), stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(CheckSaved, static_cast<unsigned>(CeilDiv(saved.groups, kThreads)),
                                  kThreads, 0, stream, tree, saved, device_totals));
  LARGEOUT_RETURN_IF_ERROR(Launch(CheckSavedPairs, static_cast<unsigned>(CeilDiv(saved.pairs, kThreads)),
                                  kThreads, 0, stream, tree, saved, tokens, device_totals));
  TreeTotals totals;
  LARGEOUT_RETURN_IF_ERROR(CutTreeGroups(tree, saved.group_node, saved.group_start, saved.groups,
                                         device_totals, dim, kRoundRows && saved.probs == nullptr,
                                         call_.scratch, stream, &plan.work, &totals));
  plan.ok = totals.bad == 0;
  *touched = Resume(plan);
  return 0;
}

template int TreeSoftmaxGpu::Check<float>(const TreeArrays&, const TreeSaved&, int64_t, int64_t,
                                          TreeTouched*);
template int TreeSoftmaxGpu::Check<bfloat16>(const TreeArrays&, const TreeSaved&, int64_t, int64_t,
                                             TreeTouched*);

}  // namespace largeout
