// Loss and Gradient of TreeSoftmaxGpu, and what is left when nodes are done: the sum of a path's losses, row ids.
#include <algorithm>

#include "common/cuda/blas.h"
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.cuh"
#include "tree_softmax/cuda/tree_softmax_root.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

unsigned Blocks(int64_t n) { return static_cast<unsigned>(CeilDiv(n, kThreads)); }

// token_start is null when there are no pairs at all.
__global__ void SumPaths(const float* pair_loss, const int32_t* token_start, const float* weights,
                         int64_t tokens, float* loss) {
  const int64_t token = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (token >= tokens) return;
  double sum = 0.0;
  if (token_start != nullptr) {
    for (int slot = token_start[token]; slot < token_start[token + 1]; ++slot) sum += pair_loss[slot];
  }
  const float weight = weights == nullptr ? 1.f : weights[token];
  loss[token] = weight == 0.f ? 0.f : static_cast<float>(weight * sum);
}

__global__ void ScalePairs(const int32_t* pair_token, const float* grad_loss, const float* weights,
                           int64_t pairs, float* scale) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= pairs) return;
  const int token = pair_token[p];
  scale[p] = grad_loss[token] * (weights == nullptr ? 1.f : weights[token]);
}

// A warp a group. left: null, or the same rows, but -1 for those that are taken: with `takes`, of narrow
// groups of one slice.
__global__ void WriteRowIds(TreeArrays tree, const int32_t* group_node, const TreeOffsets* offsets,
                            int64_t groups, int64_t* rows, int64_t* left, bool takes) {
  const int64_t g = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / 32;
  if (g >= groups) return;
  const int64_t row = tree.node_start[group_node[g]];
  const int64_t begin = offsets[g].rows, count = offsets[g + 1].rows - begin;
  const bool taken = takes && offsets[g + 1].narrow_slices - offsets[g].narrow_slices == 1;
  for (int64_t j = threadIdx.x % 32; j < count; j += 32) {
    rows[begin + j] = row + j;
    if (left != nullptr) left[begin + j] = taken ? -1 : row + j;
  }
}

__global__ void ListGroupsOfPairs(const int32_t* group_start, int64_t groups, int64_t pairs,
                                  int32_t* pair_group) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= pairs) return;
  pair_group[p] = static_cast<int32_t>(LastStart(groups, p, [&](int64_t g) { return group_start[g]; }));
}

__global__ void Widen(const bfloat16* in, int64_t n, float* out) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = GpuToFloat(in[i]);
}

// The chunks in which the gradient computes probabilities: their number and length. A chunk takes the slices
// that begin in it, so its memory is up to a slice longer: scratch_bytes, or two of the largest slices.
struct Chunks {
  int64_t count, length, bytes;
  ProbChunk At(int64_t i, float* data, const ChunkStart* starts) const {
    return {data, i * length, (i + 1) * length, starts == nullptr ? nullptr : starts + i};
  }
  // *starts stays null where there is one chunk.
  int Start(const TreeArrays& tree, const TreeWork& work, Scratch* scratch, GpuStream stream,
            const ChunkStart** starts) const {
    if (count <= 1) return 0;
    auto* all = scratch->Take<ChunkStart>(count + 1);
    if (all == nullptr) return kNoMemory;
    *starts = all;
    return FindChunkStarts(tree, work, length, count, all, stream);
  }
  Chunks(const TreeWork& work, int64_t scratch_bytes) {
    const int64_t most = scratch_bytes / static_cast<int64_t>(sizeof(float)),
                  slice = LargestSlice(work.max_children);
    length = work.probs <= most ? work.probs : std::max(most - slice, slice);
    count = CeilDiv(work.probs, length);
    bytes = std::min(work.probs, length + slice) * static_cast<int64_t>(sizeof(float));
  }
};

}  // namespace

int Floats(const float* in, int64_t, const GpuCall&, const float** out) {
  *out = in;
  return 0;
}
int Floats(const bfloat16* in, int64_t n, const GpuCall& call, const float** out) {
  float* copy = call.scratch->Take<float>(n);
  *out = copy;
  if (copy == nullptr) return kNoMemory;
  return n == 0 ? 0 : Launch(Widen, Blocks(n), kThreads, 0, call.stream, in, n, copy);
}

namespace {

// d_hidden is float32, for any H.
template <typename T, typename H>
int GradientOf(const TreeGradPlan& plan, const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
               const float* weights, const float* grad_loss, int64_t tokens, const TreeSaved& saved,
               int64_t scratch_bytes, float* d_hidden, int64_t* rows, T* row_grads,
               const NarrowRowTaker<T>* taker, float* bias_grads, const GpuCall& call) {
  Scratch* const scratch = call.scratch;
  const GpuStream stream = call.stream;
  if (tokens == 0) return 0;
  // Tokens without pairs get no other value.
  if (table.dim > 0) {
    LARGEOUT_CUDA_RETURN(cudaMemsetAsync(d_hidden, 0, tokens * table.dim * sizeof(float), stream));
  }
  if (saved.pairs == 0) return 0;
  TreeWork work = plan.work;
  work.group_node = saved.group_node, work.group_start = saved.group_start;
  LARGEOUT_RETURN_IF_ERROR(ListGradPieces(tree, saved.probs == nullptr, scratch, stream, &work));
  float* pair_scale = scratch->Take<float>(saved.pairs);
  float* partials = scratch->Take<float>(work.partial_rows * table.dim);
  float* bias_partials = scratch->Take<float>(work.partial_rows);
  const int64_t hidden_pieces =
      MostHiddenPieces(work.wide_slices * CeilDiv(table.dim, kTileColumns), work.max_children);
  float* hidden_sums = scratch->Take<float>(hidden_pieces * kTileRows * kTileColumns);
  if (pair_scale == nullptr || (work.partial_rows > 0 && (partials == nullptr || bias_partials == nullptr)) ||
      (hidden_pieces > 0 && hidden_sums == nullptr)) {
    return kNoMemory;
  }
  LARGEOUT_RETURN_IF_ERROR(Launch(ScalePairs, Blocks(saved.pairs), kThreads, 0, stream, saved.pair_token,
                                  grad_loss, weights, saved.pairs, pair_scale));
  const float* floats = nullptr;
  if (work.narrow_slices > 0) LARGEOUT_RETURN_IF_ERROR(Floats(hidden, tokens * table.dim, call, &floats));
  const TreeBatch<T, H> batch{tree,
                              table,
                              hidden,
                              saved.pair_token,
                              saved.pair_row,
                              saved.group_node,
                              saved.group_start,
                              work.offsets,
                              const_cast<float*>(saved.pair_lse),
                              call.tf32};
  const TreeBatch<T> narrow = batch.With(floats);
  const TreeGradOutputs<T> out{pair_scale, d_hidden,      row_grads,  bias_grads,
                               partials,   bias_partials, hidden_sums};
  const bool takes = taker != nullptr && taker->Takes(narrow, out);
  int64_t* const left = taker == nullptr ? nullptr : taker->left();
  LARGEOUT_RETURN_IF_ERROR(Launch(WriteRowIds, Blocks(work.groups * 32), kThreads, 0, stream, tree,
                                  saved.group_node, work.offsets, work.groups, rows, left, takes));
  if (saved.probs == nullptr) {
    const int error = RootGradient(batch, work, tokens, out, call);
    if (error == 0) work.skipped = work.root;
    if (error != 0 && error != kNoProduct) return error;
  }
  const Chunks chunks(work, saved.probs == nullptr ? scratch_bytes : INT64_MAX);
  const int64_t first_chunk = chunks.length > 0 ? work.skipped.probs / chunks.length : 0;
  const bool any = work.probs > work.skipped.probs;  // that are computed here
  float* data = const_cast<float*>(saved.probs);
  int32_t* pair_group = nullptr;
  const ChunkStart* starts = nullptr;
  if (data == nullptr && any) {
    data = static_cast<float*>(scratch->Allocate(chunks.bytes));
    pair_group = scratch->Take<int32_t>(saved.pairs);
    if (data == nullptr || pair_group == nullptr) return kNoMemory;
    LARGEOUT_RETURN_IF_ERROR(Launch(ListGroupsOfPairs, Blocks(saved.pairs), kThreads, 0, stream,
                                    saved.group_start, work.groups, saved.pairs, pair_group));
    LARGEOUT_RETURN_IF_ERROR(chunks.Start(tree, work, scratch, stream, &starts));
  }
  for (int64_t i = first_chunk; any && i < chunks.count; ++i) {
    const ProbChunk chunk = chunks.At(i, data, starts);
    if (saved.probs == nullptr) {
      if (work.narrow_slices > 0) {
        LARGEOUT_RETURN_IF_ERROR(
            NarrowProbs(narrow, saved.pairs, pair_group, nullptr, chunk, nullptr, stream));
      }
      LARGEOUT_RETURN_IF_ERROR(WideProbs(batch, work, chunk, stream));
    }
    // A token is in one node of a level, so the launches of one level write different rows of d_hidden, and
    // each waits for the level before it.
    for (int64_t level = work.skipped.pairs > 0 ? 1 : 0; level < work.levels; ++level) {
      const uint64_t bit = uint64_t{1} << std::min<int64_t>(level, 63);
      if ((work.narrow_levels & bit) != 0)
        LARGEOUT_RETURN_IF_ERROR(takes ? taker->Gradient(narrow, work, level, chunk, out, stream)
                                       : NarrowGrad(narrow, work, level, chunk, out, stream));
      if ((work.wide_levels & bit) != 0)
        LARGEOUT_RETURN_IF_ERROR(WideHiddenGrad(batch, work, level, chunk, out, stream));
    }
    LARGEOUT_RETURN_IF_ERROR(WideRowGrad(batch, work, chunk, out, stream));
  }
  return SumPartials(narrow, work, out, stream);
}

}  // namespace

template <>
template <typename T, typename H>
int TreeSoftmaxGpu::Loss(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                         const float* weights, int64_t tokens, const TreeLossOutputs& outputs,
                         int64_t /*scratch_bytes*/) {
  const TreeLossPlan& plan = loss_;
  Scratch* const scratch = call_.scratch;
  const GpuStream stream = call_.stream;
  if (tokens == 0) {
    if (outputs.group_start != nullptr) {
      LARGEOUT_CUDA_RETURN(cudaMemsetAsync(outputs.group_start, 0, sizeof(int32_t), stream));
    }
    return 0;
  }
  float* pair_loss = nullptr;
  if (plan.pairs > 0) {
    pair_loss = scratch->Take<float>(plan.pairs);
    if (pair_loss == nullptr) return kNoMemory;
    const TreeBatch<T, H> batch{tree,
                                table,
                                hidden,
                                plan.pair_token,
                                plan.pair_row,
                                plan.work.group_node,
                                plan.work.group_start,
                                plan.work.offsets,
                                outputs.pair_lse,
                                call_.tf32};
    const ProbChunk all{outputs.probs, 0, plan.probs, nullptr};
    TreeWork work = plan.work;
    if (outputs.probs == nullptr) {
      const int error = RootLoss(batch, work, plan.pair_slot, tokens, pair_loss, call_);
      if (error == 0) work.skipped = work.root;
      if (error != 0 && error != kNoProduct) return error;
    }
    if (plan.work.narrow_slices > 0) {
      const float* floats;
      LARGEOUT_RETURN_IF_ERROR(Floats(hidden, tokens * table.dim, call_, &floats));
      LARGEOUT_RETURN_IF_ERROR(NarrowProbs(batch.With(floats), plan.pairs, plan.pair_group, plan.pair_slot,
                                           all, pair_loss, stream));
    }
    if (plan.work.wide_slices > 0) {
      const WideTerms terms{scratch->Take<float>(plan.work.terms), scratch->Take<float>(plan.work.terms),
                            scratch->Take<float>(plan.pairs)};
      if (terms.high == nullptr || terms.total == nullptr || terms.picked == nullptr) return kNoMemory;
      LARGEOUT_RETURN_IF_ERROR(WideLoss(batch, work, plan.pair_group, plan.pair_slot, terms,
                                        outputs.probs, pair_loss, stream));
    }
    if (outputs.pair_token != nullptr) {
      const auto copy = [&](int32_t* to, const int32_t* from, int64_t n) {
        return cudaMemcpyAsync(to, from, n * sizeof(int32_t), cudaMemcpyDeviceToDevice, stream);
      };
      LARGEOUT_CUDA_RETURN(copy(outputs.pair_token, plan.pair_token, plan.pairs));
      LARGEOUT_CUDA_RETURN(copy(outputs.pair_row, plan.pair_row, plan.pairs));
      LARGEOUT_CUDA_RETURN(copy(outputs.group_node, plan.work.group_node, plan.groups));
      LARGEOUT_CUDA_RETURN(copy(outputs.group_start, plan.work.group_start, plan.groups + 1));
    }
  } else if (outputs.group_start != nullptr) {
    LARGEOUT_CUDA_RETURN(cudaMemsetAsync(outputs.group_start, 0, sizeof(int32_t), stream));
  }
  return Launch(SumPaths, Blocks(tokens), kThreads, 0, stream, pair_loss,
                plan.pairs > 0 ? plan.token_start : nullptr, weights, tokens, outputs.loss);
}

template <typename T, typename H>
int TreeSoftmaxGradToCuda(const TreeGradPlan& plan, const TreeArrays& tree, const TreeTable<T>& table,
                          const H* hidden, const float* weights, const float* grad_loss, int64_t tokens,
                          const TreeSaved& saved, int64_t scratch_bytes, H* d_hidden, int64_t* rows,
                          T* row_grads, const NarrowRowTaker<T>* taker, float* bias_grads,
                          const GpuCall& call) {
  const int64_t n = tokens * table.dim;
  if constexpr (std::is_same_v<H, float>) {
    return GradientOf(plan, tree, table, hidden, weights, grad_loss, tokens, saved, scratch_bytes, d_hidden,
                      rows, row_grads, taker, bias_grads, call);
  } else {
    float* floats = call.scratch->template Take<float>(n);
    if (floats == nullptr) return kNoMemory;
    LARGEOUT_RETURN_IF_ERROR(GradientOf(plan, tree, table, hidden, weights, grad_loss, tokens, saved,
                                        scratch_bytes, floats, rows, row_grads, taker, bias_grads, call));
    return RoundCuda(floats, n, d_hidden, call.stream);
  }
}

template <>
template <typename T, typename H>
int TreeSoftmaxGpu::Gradient(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                             const float* weights, const float* grad_loss, int64_t tokens,
                             const TreeSaved& saved, int64_t scratch_bytes, H* d_hidden, int64_t* rows,
                             T* row_grads, float* bias_grads) {
  return TreeSoftmaxGradToCuda<T, H>(gradient_, tree, table, hidden, weights, grad_loss, tokens, saved,
                                     scratch_bytes, d_hidden, rows, row_grads, nullptr, bias_grads, call_);
}

#define LARGEOUT_INSTANTIATE(T, H)                                                                        \
  template int TreeSoftmaxGpu::Loss<T, H>(const TreeArrays&, const TreeTable<T>&, const H*, const float*, \
                                          int64_t, const TreeLossOutputs&, int64_t);                      \
  template int TreeSoftmaxGpu::Gradient<T, H>(const TreeArrays&, const TreeTable<T>&, const H*,           \
                                              const float*, const float*, int64_t, const TreeSaved&,      \
                                              int64_t, H*, int64_t*, T*, float*);                         \
  template int TreeSoftmaxGradToCuda<T, H>(                                                               \
      const TreeGradPlan&, const TreeArrays&, const TreeTable<T>&, const H*, const float*, const float*,  \
      int64_t, const TreeSaved&, int64_t, H*, int64_t*, T*, const NarrowRowTaker<T>*, float*,             \
      const GpuCall&);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)

}  // namespace largeout
