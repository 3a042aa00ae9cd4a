// Narrow nodes: softmax, and gradients, by warps that read the node's rows straight from the table.
//
// Forward, a warp takes four consecutive pairs; those of one node share every load of a row. Backward, a warp
// takes a slice (up to 64 pairs of a node) and 128 elements of the rows: eight rows and their gradients stay
// in registers while the tokens go by, so a row is read once and its gradient written once.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

constexpr int kWarps = 8;
constexpr int kPairs = 4;  // of a warp, forward

// kTokens pairs from `first` on, all of `group`. logits: [kTokens][kNarrowChildren], of this warp.
template <typename T, int kVec, int kTokens>
__device__ void SoftmaxPairs(const TreeBatch<T>& batch, int group, int first, int count,
                             const int32_t* pair_slot, const ProbChunk& chunk, float* pair_loss,
                             float* logits) {
  const int lane = threadIdx.x & 31;
  const int node = batch.group_node[group];
  const int64_t row = batch.tree.node_start[node], dim = batch.table.dim;
  const int children = static_cast<int>(batch.tree.node_start[node + 1] - row);
  const float* hidden[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    hidden[t] = batch.hidden + batch.pair_token[first + min(t, count - 1)] * dim;
  for (int j = 0; j < children; j += 8) {
    float logit[kTokens];
    EightLogits<T, kVec, kTokens>(batch.table.rows + (row + j) * dim, children - j, dim, hidden, logit);
    const int child = j + (lane >> 2);
    if ((lane & 3) == 0 && child < children) {
      const float bias = batch.table.bias == nullptr ? 0.f : batch.table.bias[row + child];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) logits[t * kNarrowChildren + child] = logit[t] + bias;
    }
  }
  __syncwarp();
  const int64_t prob =
      batch.offsets[group].probs + static_cast<int64_t>(first - batch.group_start[group]) * children;
  for (int t = 0; t < count; ++t) {
    const float* x = logits + t * kNarrowChildren;
    const int p = first + t;
    float lse;
    if (pair_loss != nullptr) {
      float top = -INFINITY, sum = 0.f;
      for (int j = lane; j < children; j += 32) top = MaxOrNan(top, x[j]);
      top = WarpMax(top);
      for (int j = lane; j < children; j += 32) sum += expf(x[j] - top);
      const float log_sum = logf(WarpSum(sum));
      lse = top + log_sum;
      if (lane == 0) {
        batch.pair_lse[p] = lse;
        // Not lse - x, which rounds a small loss to nothing where logits are large.
        pair_loss[pair_slot[p]] = (top - x[batch.pair_row[p] - row]) + log_sum;
      }
    } else {
      lse = batch.pair_lse[p];
    }
    if (chunk.data != nullptr) {
      float* out = chunk.data + (prob - chunk.begin) + static_cast<int64_t>(t) * children;
      for (int j = lane; j < children; j += 32) out[j] = expf(x[j] - lse);
    }
  }
  __syncwarp();  // before the logits are overwritten
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kWarps * 32, 2)
    NarrowSoftmax(TreeBatch<T> batch, int64_t pairs, const int32_t* pair_group, const int32_t* pair_slot,
                  ProbChunk chunk, float* pair_loss) {
  __shared__ float all_logits[kWarps * kPairs * kNarrowChildren];
  const int warp = threadIdx.x / 32;
  float* logits = all_logits + warp * kPairs * kNarrowChildren;
  const int64_t begin = (blockIdx.x * static_cast<int64_t>(kWarps) + warp) * kPairs;
  const int64_t end = min(begin + kPairs, pairs);
  for (int64_t p = begin; p < end;) {
    const int group = pair_group[p];
    const int first = batch.group_start[group];
    const int slice = static_cast<int>((p - first) / kSlice);
    const TreeSlice s = SliceOf(batch, group, slice, kSlice);
    // The pairs of this warp that are in this slice (slices may lie in different chunks).
    const int count = static_cast<int>(min(end, static_cast<int64_t>(s.first) + s.count) - p);
    const bool wide = IsWide(batch.group_start[group + 1] - first, s.children);
    if (!wide && (pair_loss != nullptr || Inside(chunk, s.prob))) {
      if (count == 1) {
        SoftmaxPairs<T, kVec, 1>(batch, group, static_cast<int>(p), count, pair_slot, chunk, pair_loss,
                                 logits);
      } else {
        SoftmaxPairs<T, kVec, 4>(batch, group, static_cast<int>(p), count, pair_slot, chunk, pair_loss,
                                 logits);
      }
    }
    p += count;
  }
}

// Where the gradients of `children` rows go: the output, or partial sums where other slices add to the same
// rows.
template <typename T, int kVec>
__device__ __forceinline__ void StoreRow(const TreeGradOutputs<T>& out, bool partial, int64_t row,
                                         int64_t dim, int64_t k, const float (&v)[kVec]) {
  if (partial) {
    StoreVec<kVec>(out.partials + row * dim + k, v);
  } else {
    StoreVec<kVec>(out.row_grads + row * dim + k, v);
  }
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kWarps * 32, 2)
    NarrowGradients(TreeBatch<T> batch, const int32_t* narrow_group, const int32_t* level_start,
                    int64_t level, ProbChunk chunk, TreeGradOutputs<T> out) {
  __shared__ float all_grads[kWarps * kSlice * 8];
  __shared__ int all_tokens[kWarps * kSlice];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  float* grads = all_grads + warp * kSlice * 8;  // [pair][child]
  int* tokens = all_tokens + warp * kSlice;
  const int64_t dim = batch.table.dim;
  const int64_t parts = RowPieces(dim, 32 * kVec);
  const int64_t begin = batch.offsets[level_start[level]].narrow_slices * parts;
  const int64_t end = batch.offsets[level_start[level + 1]].narrow_slices * parts;
  for (int64_t unit = begin + blockIdx.x * static_cast<int64_t>(kWarps) + warp; unit < end;
       unit += gridDim.x * static_cast<int64_t>(kWarps)) {
    const int64_t slice = unit / parts, part = unit - slice * parts;
    const int group = narrow_group[slice];
    const TreeOffsets& offsets = batch.offsets[group];
    const int64_t in_group = slice - offsets.narrow_slices;
    const TreeSlice s = SliceOf(batch, group, in_group, kSlice);
    if (!Inside(chunk, s.prob)) continue;
    const bool partial = batch.offsets[group + 1].narrow_slices - offsets.narrow_slices > 1;
    const int64_t out_row = partial ? offsets.partial_rows + in_group * s.children : offsets.rows;
    const float* probs = chunk.data + (s.prob - chunk.begin);
    const int64_t k = (part * 32 + lane) * kVec;
    const bool active = k < dim;
    for (int t = lane; t < s.count; t += 32) tokens[t] = batch.pair_token[s.first + t];
    for (int j0 = 0; j0 < s.children; j0 += 8) {
      for (int e = lane; e < s.count * 8; e += 32) {
        const int t = e / 8, j = j0 + e % 8;
        float g = 0.f;
        if (j < s.children) {
          g = probs[static_cast<int64_t>(t) * s.children + j];
          if (batch.pair_row[s.first + t] == s.row + j) g -= 1.f;
          g *= out.pair_scale[s.first + t];
        }
        grads[e] = g;
      }
      __syncwarp();
      if (active) {
        float w[8][kVec], sum[8][kVec] = {};
#pragma unroll
        for (int j = 0; j < 8;
             ++j) {  // beyond the last child g is 0: any finite row will do, but a NaN must not spread
          if (j0 + j < s.children) {
            LoadVec<kVec>(batch.table.rows + (s.row + j0 + j) * dim + k, w[j]);
          } else {
#pragma unroll
            for (int i = 0; i < kVec; ++i) w[j][i] = 0.f;
          }
        }
        const bool add = level > 0 || j0 > 0;
        constexpr int kBatch = 4;  // tokens in flight
        for (int t0 = 0; t0 < s.count; t0 += kBatch) {
          float h[kBatch][kVec], d[kBatch][kVec] = {};
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if (t0 + b < s.count) {
              const int64_t at = tokens[t0 + b] * dim + k;
              LoadVec<kVec>(batch.hidden + at, h[b]);
              if (add) LoadVec<kVec>(out.d_hidden + at, d[b]);
            }
          }
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if (t0 + b < s.count) {
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                const float g = grads[(t0 + b) * 8 + j];
#pragma unroll
                for (int i = 0; i < kVec; ++i) {
                  sum[j][i] = fmaf(g, h[b][i], sum[j][i]);
                  d[b][i] = fmaf(g, w[j][i], d[b][i]);
                }
              }
              StoreVec<kVec>(out.d_hidden + tokens[t0 + b] * dim + k, d[b]);
            }
          }
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (j0 + j < s.children) StoreRow<T, kVec>(out, partial, out_row + j0 + j, dim, k, sum[j]);
        }
      }
      if (part == 0 && out.bias_grads != nullptr && lane < 8 && j0 + lane < s.children) {
        float sum = 0.f;
        for (int t = 0; t < s.count; ++t) sum += grads[t * 8 + lane];
        (partial ? out.bias_partials : out.bias_grads)[out_row + j0 + lane] = sum;
      }
      __syncwarp();
    }
  }
}

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
  // The number of slices of one level is not known here: at most this many blocks, which take turns.
  const bool aligned = RowsAligned(batch.table.dim, batch.table.rows, batch.hidden) &&
                       RowsAligned(batch.table.dim, out.d_hidden, out.row_grads, out.partials);
  const int64_t units = work.narrow_slices * RowPieces(batch.table.dim, aligned ? 128 : 32);
  const unsigned blocks = TurnBlocks(CeilDiv(units, kWarps), 132 * 8);
  return Launch(aligned ? NarrowGradients<T, 4> : NarrowGradients<T, 1>, blocks, kWarps * 32, 0, stream,
                batch, work.narrow_group, work.level_start, level, chunk, out);
}

#define LARGEOUT_INSTANTIATE(T)                                                               \
  template int NarrowProbs<T>(const TreeBatch<T>&, int64_t, const int32_t*, const int32_t*,   \
                              const ProbChunk&, float*, GpuStream);                           \
  template int NarrowGrad<T>(const TreeBatch<T>&, const TreeWork&, int64_t, const ProbChunk&, \
                             const TreeGradOutputs<T>&, GpuStream);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)

}  // namespace largeout
