// For the tests and the bench of the CUDA twin: device memory that starts as NaN, problems, and one call for
// a whole step.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CUDA_TESTING_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CUDA_TESTING_CUH_

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "common/test/check.h"
#include "tree_softmax/cuda/tree_softmax_cuda.h"
#include "tree_softmax/test/tree_softmax_testing.h"

#define CUDA_OK(call)                                                                               \
  do {                                                                                              \
    const int error_ = static_cast<int>(call);                                                      \
    if (error_ != 0) {                                                                              \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ::largeout::CudaErrorName(error_)); \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (0)

namespace largeout {

// A test program returns 77 (skipped) where this is false.
inline bool HasGpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  std::printf("skipped: no GPU\n");
  return false;
}

template <typename T>
class GpuArray {
 public:
  GpuArray() = default;
  explicit GpuArray(int64_t n) : size_(n) {
    if (n == 0) return;
    CUDA_OK(cudaMalloc(&data_, n * sizeof(T)));
    CUDA_OK(cudaMemset(data_, 0xff, n * sizeof(T)));
  }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(static_cast<int64_t>(values.size())) {
    if (size_ > 0) CUDA_OK(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  GpuArray(GpuArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  GpuArray& operator=(GpuArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~GpuArray() { cudaFree(data_); }
  T* data() const { return data_; }  // null when empty
  int64_t size() const { return size_; }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    if (size_ > 0) CUDA_OK(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// Every piece is allocated anew and starts as NaN, so that reading what nobody wrote shows.
class FreshScratch final : public GpuScratch {
 public:
  void* Allocate(int64_t bytes) override {
    pieces_.emplace_back(bytes > 0 ? bytes : 1);
    return pieces_.back().data();
  }

 private:
  std::vector<GpuArray<char>> pieces_;
};

struct GpuTree {
  explicit GpuTree(const TestTree& t)
      : class_row(t.class_row),
        node_start(t.node_start),
        node_row(t.node_row),
        node_parent(t.node_parent),
        row_hint(t.row_hint),
        row_child(t.row_child),
        sizes(t.arrays()) {}
  TreeArrays arrays() const {
    return {class_row.data(), node_start.data(), node_row.data(), node_parent.data(),
            row_hint.data(),  sizes.classes,     sizes.nodes,     sizes.rows};
  }
  GpuArray<int32_t> class_row, node_start, node_row, node_parent, row_hint, row_child;
  TreeArrays sizes;  // only the sizes are used
};

// Many tokens on few classes, some of weight 0 (whose targets are out of range: they must not be looked at).
template <typename T>
struct CudaProblem {
  CudaProblem(TestTree t, int64_t dim, int64_t tokens, uint64_t seed, bool use_bias = true,
              bool use_weights = true)
      : tree(std::move(t)),
        arrays(tree.arrays()),
        dim(dim),
        tokens(tokens),
        table(arrays.rows * dim),
        hidden(tokens * dim),
        bias(use_bias ? arrays.rows : 0),
        weights(use_weights ? tokens : 0),
        grad_loss(tokens),
        targets(tokens) {
    Random random(seed);
    for (T& x : table) FromFloat(random.Normalish(), &x);
    for (float& x : hidden) x = random.Normalish();
    for (float& x : bias) x = random.Normalish();
    for (float& x : weights) x = random.Below(4) == 0 ? 0.f : random.Normalish();
    for (float& x : grad_loss) x = random.Normalish();
    for (int32_t& x : targets) {
      x = static_cast<int32_t>(
          random.Below(random.Below(2) ? arrays.classes : std::min<int64_t>(3, arrays.classes)));
    }
    for (int64_t i = 0; i < tokens && use_weights; ++i) {
      if (weights[i] == 0.f) targets[i] = -5;
    }
  }
  TreeTable<T> Table() const { return {table.data(), bias.empty() ? nullptr : bias.data(), dim}; }

  const TestTree tree;
  const TreeArrays arrays;
  const int64_t dim, tokens;
  std::vector<T> table;
  std::vector<float> hidden, bias, weights, grad_loss;
  std::vector<int32_t> targets;
};

// Everything that a step leaves behind.
template <typename T>
struct StepResult {
  TreeStatus status = TreeStatus::kOk;
  int64_t bad_position = -1;
  std::vector<float> loss, lse, probs, d_hidden, bias_grads;
  std::vector<int32_t> pair_token, pair_row, group_node, group_start;
  std::vector<int64_t> rows;
  std::vector<T> row_grads;
  template <typename U>
  static bool Bits(const std::vector<U>& a, const std::vector<U>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(U)) == 0);
  }
  bool operator==(const StepResult& o) const {
    return Bits(loss, o.loss) && Bits(lse, o.lse) && Bits(probs, o.probs) && Bits(d_hidden, o.d_hidden) &&
           Bits(bias_grads, o.bias_grads) && Bits(row_grads, o.row_grads) && rows == o.rows &&
           pair_token == o.pair_token && pair_row == o.pair_row && group_node == o.group_node &&
           group_start == o.group_start;
  }
};

// scratch_bytes < 0: probabilities are saved between loss and gradient.
template <typename T>
StepResult<T> CudaStep(const CudaProblem<T>& p, int64_t scratch_bytes) {
  const GpuTree tree(p.tree);
  const GpuArray<T> table(p.table);
  const GpuArray<float> hidden(p.hidden), bias(p.bias), weights(p.weights), grad_loss(p.grad_loss);
  const GpuArray<int32_t> targets(p.targets);
  const TreeTable<T> rows{table.data(), bias.data(), p.dim};
  StepResult<T> r;
  FreshScratch scratch;
  TreeLossPlan plan;
  CUDA_OK(PlanTreeLossCuda(tree.arrays(), targets.data(), weights.data(), p.tokens, p.dim, &scratch, nullptr,
                           &plan));
  r.status = plan.status;
  r.bad_position = plan.bad_position;
  if (plan.status != TreeStatus::kOk) return r;
  const GpuArray<float> loss(p.tokens), lse(plan.pairs), probs(scratch_bytes < 0 ? plan.probs : 0);
  const GpuArray<int32_t> pair_token(plan.pairs), pair_row(plan.pairs), group_node(plan.groups),
      group_start(plan.groups + 1);
  const TreeLossOutputs outputs{loss.data(),        pair_token.data(), pair_row.data(), group_node.data(),
                                group_start.data(), lse.data(),        probs.data()};
  CUDA_OK(TreeSoftmaxLossCuda(plan, tree.arrays(), rows, hidden.data(), weights.data(), p.tokens, outputs,
                              scratch_bytes, &scratch, nullptr));
  const TreeSaved saved{pair_token.data(), pair_row.data(), group_node.data(), group_start.data(),
                        lse.data(),        probs.data(),    plan.pairs,        plan.groups};
  TreeGradPlan grad_plan;
  CUDA_OK(
      PlanTreeGradCuda(tree.arrays(), saved, p.tokens, p.dim, sizeof(T) == 2, &scratch, nullptr, &grad_plan));
  CHECK_TRUE(grad_plan.ok && grad_plan.work.probs == plan.probs);
  const int64_t unique = grad_plan.work.rows;
  const GpuArray<float> d_hidden(p.tokens * p.dim), bias_grads(p.bias.empty() ? 0 : unique);
  const GpuArray<int64_t> row_ids(unique);
  const GpuArray<T> row_grads(unique * p.dim);
  CUDA_OK(TreeSoftmaxGradCuda(grad_plan, tree.arrays(), rows, hidden.data(), weights.data(), grad_loss.data(),
                              p.tokens, saved, scratch_bytes, d_hidden.data(), row_ids.data(),
                              row_grads.data(), bias_grads.data(), &scratch, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  r.loss = loss.Download(), r.lse = lse.Download(), r.probs = probs.Download();
  r.pair_token = pair_token.Download(), r.pair_row = pair_row.Download();
  r.group_node = group_node.Download(), r.group_start = group_start.Download();
  r.d_hidden = d_hidden.Download(), r.rows = row_ids.Download();
  r.row_grads = row_grads.Download(), r.bias_grads = bias_grads.Download();
  return r;
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_CUDA_TESTING_CUH_
