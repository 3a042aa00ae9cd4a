// Narrow nodes: softmax by warps that read the node's rows straight from the table; and their gradients, written
// (tree_softmax_narrow_grad.cuh).
//
// What a pair is about (its node, rows, token) hangs on four or five reads, each of which waits for the one
// before. So each lane reads that of its own pair, and the warp then goes through the pairs: 16
// consecutive ones, of which up to four of one node share every load of a row.
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_narrow_grad.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

constexpr int kWarps = 8;
constexpr int kPairs = 16;    // of a warp
constexpr int kTogether = 4;  // of them, of one node

// The pair of a lane.
struct NarrowPair {
  int group = -1, token = 0, row = 0, children = 0;  // the node's first row
  int target = 0;                                    // the child on the path
  int64_t prob = 0;                                  // where its probabilities are
  bool wanted = false;                               // whether it is of a narrow node, in the chunk
};

template <typename T>
__device__ __forceinline__ NarrowPair PairOf(const TreeBatch<T>& batch, int64_t p, const int32_t* pair_group,
                                             const ProbChunk& chunk, bool any_chunk) {
  NarrowPair pair;
  pair.group = pair_group[p], pair.token = batch.pair_token[p];
  const int first = batch.group_start[pair.group], next = batch.group_start[pair.group + 1];
  const int node = batch.group_node[pair.group];
  const int64_t probs = batch.offsets[pair.group].probs;
  pair.row = batch.tree.node_start[node];
  pair.children = batch.tree.node_start[node + 1] - pair.row;
  pair.target = batch.pair_row[p] - pair.row;
  const int64_t before = p - first;
  pair.prob = probs + before * pair.children;
  // Pairs of a slice are in one chunk: where the slice begins.
  pair.wanted = !IsWide(next - first, pair.children) &&
                (any_chunk || Inside(chunk, probs + before / kSlice * kSlice * pair.children));
  return pair;
}

template <typename X>
__device__ __forceinline__ X FromLane(X x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}

// kTokens pairs, of one node: those of the lanes from `at` on. logits: [kTokens][kNarrowChildren], of this
// warp.
template <typename T, int kVec, int kTokens>
__device__ void SoftmaxPairs(const TreeBatch<T>& batch, const NarrowPair& own, int64_t begin, int at,
                             int count, const int32_t* pair_slot, float* probs, float* pair_loss,
                             float* logits) {
  const int lane = threadIdx.x & 31;
  const int64_t row = FromLane(own.row, at), dim = batch.table.dim;
  const int children = FromLane(own.children, at);
  // Of each pair `kLanes` lanes make the softmax.
  constexpr int kLanes = 32 / kTokens;
  const int mine = lane / kLanes, within = lane % kLanes;
  const int64_t p = begin + at + mine;
  const int target = FromLane(own.target, at + mine);
  const int64_t prob = FromLane(own.prob, at + mine);
  const bool used = mine < count;
  const int slot = used && pair_loss != nullptr ? pair_slot[p] : 0;
  float lse = used && pair_loss == nullptr ? batch.pair_lse[p] : 0.f;
  const float* hidden[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    hidden[t] = batch.hidden + FromLane(own.token, at + min(t, count - 1)) * dim;
  for (int j = 0; j < children; j += 8) {
    float logit[kTokens];
    const int child = j + (lane >> 2);
    const bool writes = (lane & 3) == 0 && child < children;
    const float bias = writes && batch.table.bias != nullptr ? batch.table.bias[row + child] : 0.f;
    EightLogits<T, kVec, kTokens>(batch.table.rows + (row + j) * dim, children - j, dim, hidden, logit);
    if (writes) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) logits[t * kNarrowChildren + child] = logit[t] + bias;
    }
  }
  __syncwarp();
  const float* x = logits + mine * kNarrowChildren;
  if (pair_loss != nullptr) {
    float top = -INFINITY, sum = 0.f;
    for (int j = within; j < children; j += kLanes) top = MaxOrNan(top, x[j]);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      top = MaxOrNan(top, __shfl_xor_sync(0xffffffffu, top, step));
    for (int j = within; j < children; j += kLanes) sum += expf(x[j] - top);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float log_sum = logf(sum);
    lse = top + log_sum;
    if (used && within == 0) {
      batch.pair_lse[p] = lse;
      // Not lse - x, which rounds a small loss to nothing where logits are large.
      pair_loss[slot] = (top - x[target]) + log_sum;
    }
  }
  if (used && probs != nullptr) {
    for (int j = within; j < children; j += kLanes) probs[prob + j] = expf(x[j] - lse);
  }
  __syncwarp();  // before the logits are overwritten
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kWarps * 32, 2)
    NarrowSoftmax(TreeBatch<T> batch, int64_t pairs, const int32_t* pair_group, const int32_t* pair_slot,
                  ProbChunk chunk, float* pair_loss) {
  __shared__ float all_logits[kWarps * kTogether * kNarrowChildren];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  float* logits = all_logits + warp * kTogether * kNarrowChildren;
  const int64_t begin = (blockIdx.x * static_cast<int64_t>(kWarps) + warp) * kPairs;
  if (begin >= pairs) return;
  const int n = static_cast<int>(min(int64_t{kPairs}, pairs - begin));
  NarrowPair own;
  if (lane < n) own = PairOf(batch, begin + lane, pair_group, chunk, pair_loss != nullptr);
  float* probs = chunk.data == nullptr ? nullptr : chunk.data - chunk.begin;
  const unsigned wanted = __ballot_sync(0xffffffffu, own.wanted);
  for (int at = 0; at < n;) {
    // The needed pairs of one group are adjacent.
    const unsigned same = __ballot_sync(0xffffffffu, own.group == FromLane(own.group, at)) & wanted;
    const int count = min(kTogether, __popc(same & (0xffffffffu << at)));
    if ((wanted >> at & 1) == 0) {
      ++at;
      continue;
    }
    if (count == 1) {
      SoftmaxPairs<T, kVec, 1>(batch, own, begin, at, count, pair_slot, probs, pair_loss, logits);
    } else {
      SoftmaxPairs<T, kVec, kTogether>(batch, own, begin, at, count, pair_slot, probs, pair_loss, logits);
    }
    at += count;
  }
}

template <typename T>
struct WriteRows {
  template <int kVec>
  __device__ __forceinline__ void Take(int64_t, int64_t out_row, int n, int64_t k, const float (&)[8][kVec],
                                       const float (&gradient)[8][kVec]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < n) StoreVec<kVec>(row_grads + (out_row + j) * dim + k, gradient[j]);
    }
  }
  T* row_grads;
  int64_t dim;
};

}  // namespace

template <typename T>
int NarrowProbs(const TreeBatch<T>& batch, int64_t pairs, const int32_t* pair_group, const int32_t* pair_slot,
                const ProbChunk& chunk, float* pair_loss, GpuStream stream) {
  const unsigned blocks = static_cast<unsigned>(CeilDiv(pairs, kWarps * kPairs));
  return Launch(RowsAligned(batch.table.dim, batch.table.rows, batch.hidden) ? NarrowSoftmax<T, 4>
                                                                             : NarrowSoftmax<T, 1>,
                blocks, kWarps * 32, 0, stream, batch, pairs, pair_group, pair_slot, chunk, pair_loss);
}

template <typename T>
int NarrowGrad(const TreeBatch<T>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
               const TreeGradOutputs<T>& out, GpuStream stream) {
  const WriteRows<T> rows{out.row_grads, batch.table.dim};
  return NarrowGradAligned(batch, out) ? NarrowGradTo<4>(rows, batch, work, level, chunk, out, stream)
                                       : NarrowGradTo<1>(rows, batch, work, level, chunk, out, stream);
}

#define LARGEOUT_INSTANTIATE(T)                                                               \
  template int NarrowProbs<T>(const TreeBatch<T>&, int64_t, const int32_t*, const int32_t*,   \
                              const ProbChunk&, float*, GpuStream);                           \
  template int NarrowGrad<T>(const TreeBatch<T>&, const TreeWork&, int64_t, const ProbChunk&, \
                             const TreeGradOutputs<T>&, GpuStream);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)

}  // namespace largeout
