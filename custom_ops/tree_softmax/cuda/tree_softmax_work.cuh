// The pieces into which a batch is cut, and small device helpers, for the CUDA files of tree_softmax.
//
// A group (one node, n pairs, c children) is *wide* (IsWide) where tiled GEMMs pay, else *narrow*: then a
// warp holds sums of eight children at a time and reads the node's rows straight from the table (they come
// from L1 when many tokens share them). Pairs of a group are cut into slices, of 64 or 128. Probabilities are
// in one array in the order of the pairs; when it is too large to be kept, the gradient computes it in chunks
// of consecutive slices.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_WORK_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_WORK_CUH_

#include <algorithm>

#include "common/cuda/cuda_warp.cuh"
#include "common/cuda/gemm/tile_shape.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/cuda/tree_softmax_tuning.cuh"

namespace largeout {

constexpr int kSlice = 64;  // pairs of a slice of a narrow node

// Pairs of a slice of a wide node. The probabilities of one are in memory together: half as many pairs of
// nodes that alone have a million children.
__host__ __device__ constexpr int64_t WideSlice(int64_t c) {
  return c <= 1 << 20 ? kTileRows : kTileRows / 2;
}
// The largest number of probabilities in a slice of any node of up to `most` children.
constexpr int64_t LargestSlice(int64_t most) {
  return std::max(WideSlice(most) * most, WideSlice(1 << 20) * std::min<int64_t>(most, 1 << 20));
}

// The number of tiles of children that a block of the loss goes through, for n pairs of a node of c children,
// one of `groups`: so many that some thousand blocks are left. Many small nodes give blocks enough, and the start
// of a block is a chain of dependent reads: four tiles at least.
constexpr int64_t kMostRangeTiles = 64;
__host__ __device__ constexpr int64_t RangeTiles(int64_t n, int64_t c, int64_t groups) {
  const int64_t slices = (n + WideSlice(c) - 1) / WideSlice(c), tiles = (c + kTileColumns - 1) / kTileColumns;
  constexpr int64_t kBlocks = TreeTuning::kLogitBlocks;
  const int64_t blocks = slices < kBlocks ? kBlocks / slices : 1, each = (tiles + blocks - 1) / blocks;
  const int64_t least = n <= kSmallM && groups > kBlocks / 4 ? 4 : 1;
  return each < least ? least : each < kMostRangeTiles ? each : kMostRangeTiles;
}

// Running sums over the groups, in their order. tiles: blocks of logits; loss_tiles: those of the loss, and
// terms: what they leave.
struct TreeOffsets {
  int64_t probs, rows, narrow_slices, wide_slices, tiles, loss_tiles, terms, weight_tiles, partial_rows,
      sum_rows;
};

// The pieces that a row of `dim` elements is cut into. A row without elements is one piece: the bias is summed
// with the first.
__host__ __device__ constexpr int64_t RowPieces(int64_t dim, int64_t size) {
  return dim > 0 ? CeilDiv(dim, size) : 1;
}

// Pairs of one split of a wide node's row gradients: enough splits to fill a GPU, but none shorter than 256
// pairs. It depends on nothing but the sizes, so the order of summation is the same everywhere.
constexpr int64_t kSplitTiles = 132 * kTileBlocks * 4;
__host__ __device__ constexpr int64_t SplitPairs(int64_t n, int64_t c, int64_t dim) {
  const int64_t tiles = CeilDiv(c, kTileRows) * RowPieces(dim, kTileColumns);
  const int64_t most = tiles >= kSplitTiles ? 1 : kSplitTiles / tiles;
  const int64_t splits = CeilDiv(n, 256) < most ? CeilDiv(n, 256) : most;
  return CeilDiv(CeilDiv(n, splits), WideSlice(c)) * WideSlice(c);
}

// Blocks that share the elements of 128 rows of a node of n pairs. Of few pairs one makes all: the start of a
// block is a chain of dependent reads.
__host__ __device__ constexpr int64_t RowBlocks(int64_t n, int64_t dim) {
  return n <= 64 ? 1 : RowPieces(dim, kTileColumns);
}

// d_hidden of wide nodes is made in tiles, of a slice and 128 elements, that are sums over all children.
// Where a launch has few tiles, each is cut into ranges of children, so that there are pieces for a whole
// GPU.
static_assert(TreeTuning::kLeastRange % kTileK == 0, "ranges of whole pieces of an operand");
// Ranges of every tile, for `tiles` of them.
__host__ __device__ constexpr int64_t HiddenRanges(int64_t tiles) {
  return 2 * tiles > TreeTuning::kHiddenPieces ? 1 : TreeTuning::kHiddenPieces / tiles;
}
// Children of a range of a node of c: there may be fewer ranges than `ranges`.
__host__ __device__ constexpr int64_t RangeChildren(int64_t c, int64_t ranges) {
  const int64_t each = CeilDiv(CeilDiv(c, ranges), kTileK) * kTileK;
  return each > TreeTuning::kLeastRange ? each : TreeTuning::kLeastRange;
}
// Pieces that leave their own sums, in any launch: up to `tiles`, nodes of up to `most` children.
constexpr int64_t MostHiddenPieces(int64_t tiles, int64_t most) {
  constexpr int64_t kLeast = TreeTuning::kLeastRange;
  return most <= kLeast ? 0 : std::min(TreeTuning::kHiddenPieces, tiles * CeilDiv(most, kLeast));
}

// The numbers of slices and of tiles of wide nodes before a chunk.
struct ChunkStart {
  int64_t slices, tiles;
};

// Probabilities [begin, end) are in memory, at `data`. starts: of this chunk and of the next one, on the device; null: the
// chunk is the whole.
struct ProbChunk {
  float* data;
  int64_t begin, end;
  const ChunkStart* starts;
};

// Everything that describes one batch to a kernel. Of narrow nodes H is float.
template <typename T, typename H = float>
struct TreeBatch {
  TreeArrays tree;
  TreeTable<T> table;
  const H* hidden;                          // [tokens, dim]
  const int32_t *pair_token, *pair_row;     // [pairs]
  const int32_t *group_node, *group_start;  // [groups] [groups + 1]
  const TreeOffsets* offsets;               // [groups + 1]
  float* pair_lse;                          // [pairs]
  bool tf32;                                // GpuCall::tf32, of wide nodes

  // The same with hidden vectors in float32.
  TreeBatch<T> With(const float* floats) const {
    return {tree, table, floats, pair_token, pair_row, group_node, group_start, offsets, pair_lse, tf32};
  }
};

// Some pairs of one node.
struct TreeSlice {
  int group, first, count, children;
  int64_t row;   // the node's first row
  int64_t prob;  // where the probabilities of the first pair are
};

// Slice `index` of a group, if its slices are of `pairs` pairs; 0: of a wide group.
template <typename T, typename H>
__device__ __forceinline__ TreeSlice SliceOf(const TreeBatch<T, H>& batch, int group, int64_t index,
                                             int64_t pairs) {
  TreeSlice s;
  s.group = group;
  const int begin = batch.group_start[group], end = batch.group_start[group + 1];
  const int node = batch.group_node[group];
  s.row = batch.tree.node_start[node];
  s.children = static_cast<int>(batch.tree.node_start[node + 1] - s.row);
  if (pairs == 0) pairs = WideSlice(s.children);
  s.first = begin + static_cast<int>(index * pairs);
  s.count = static_cast<int>(min(pairs, static_cast<int64_t>(end - s.first)));
  s.prob = batch.offsets[group].probs + static_cast<int64_t>(s.first - begin) * s.children;
  return s;
}

// Some pairs of a narrow node, as the gradient reads them.
struct alignas(16) NarrowSlice {
  int32_t first, count, children, row;  // pairs; the node's first row
  int64_t prob;                         // where the probabilities of the first pair are
  int64_t out;                          // the first row of the gradients; ~ where they are parts of sums
};

__device__ __forceinline__ bool Inside(const ProbChunk& chunk, int64_t prob) {
  return prob >= chunk.begin && prob < chunk.end;
}

// The first i of [low, high) that is not `before`, or high. Those that are come first.
template <typename Before>
__device__ __forceinline__ int64_t FirstNot(int64_t low, int64_t high, const Before& before) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (before(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The last i of [0, count) with starts(i) <= x. Starts do not fall, and starts(0) <= x.
template <typename Starts>
__device__ __forceinline__ int64_t LastStart(int64_t count, int64_t x, const Starts& starts) {
  return FirstNot(1, count, [&](int64_t i) { return starts(i) <= x; }) - 1;
}

// NaN wins, so that it is not lost.
__device__ __forceinline__ float MaxOrNan(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = MaxOrNan(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// The logits of children [0, 8) of `rows` for kTokens vectors, one warp. Lane l ends up with child (l >> 2)
// in out[t] (the same value in four lanes). Children from `children` on repeat the last one. The order of
// summation does not depend on kTokens.
template <typename T, int kVec, int kTokens>
__device__ __forceinline__ void EightLogits(const T* rows, int children, int64_t dim,
                                            const float* const (&hidden)[kTokens], float (&out)[kTokens]) {
  const int lane = threadIdx.x & 31;
  float sum[kTokens][8] = {};
  for (int64_t k = lane * kVec; k < dim; k += 32 * kVec) {
    float h[kTokens][kVec];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) LoadVec<kVec>(hidden[t] + k, h[t]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float w[kVec];
      LoadVec<kVec>(rows + min(j, children - 1) * dim + k, w);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[t][j] = fmaf(w[i], h[t][i], sum[t][j]);
      }
    }
  }
  // Each step halves the children that a lane is responsible for: 4 + 2 + 1 + 1 + 1 shuffles instead of 8
  // * 5.
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int step = 16, keep = 4; keep > 0; step /= 2, keep /= 2) {
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int j = 0; j < keep; ++j) {
        const float mine = upper ? sum[t][j + keep] : sum[t][j];
        const float other = upper ? sum[t][j] : sum[t][j + keep];
        sum[t][j] = mine + __shfl_xor_sync(0xffffffffu, other, step);
      }
    }
    sum[t][0] += __shfl_xor_sync(0xffffffffu, sum[t][0], 2);
    sum[t][0] += __shfl_xor_sync(0xffffffffu, sum[t][0], 1);
    out[t] = sum[t][0];
  }
}

// ---- Functions that launch kernels, for other files.

// Logits and softmax of narrow nodes. With pair_loss: writes pair_lse and pair_loss[slot], and probabilities
// where chunk.data is not null; without: reads pair_lse and writes probabilities.
template <typename T>
int NarrowProbs(const TreeBatch<T>& batch, int64_t pairs, const int32_t* pair_group, const int32_t* pair_slot,
                const ProbChunk& chunk, float* pair_loss, GpuStream stream);
// The terms that the tiles of the loss compute for each pair of a wide node, [terms] each, and the logits of the
// pairs' rows.
struct WideTerms {
  float *high, *total;
  float* picked;  // [pairs]
};
// The loss of wide nodes: writes pair_lse and pair_loss[slot], and all probabilities to `probs` unless it is
// null.
template <typename T, typename H>
int WideLoss(const TreeBatch<T, H>& batch, const TreeWork& work, const int32_t* pair_group,
             const int32_t* pair_slot, const WideTerms& terms, float* probs, float* pair_loss,
             GpuStream stream);
// Probabilities of a chunk by the known pair_lse.
template <typename T, typename H>
int WideProbs(const TreeBatch<T, H>& batch, const TreeWork& work, const ProbChunk& chunk, GpuStream stream);

template <typename T>
struct TreeGradOutputs {
  const float* pair_scale;  // [pairs] grad_loss * weight
  float* d_hidden;
  T* row_grads;
  float* bias_grads;     // or null
  float* partials;       // [partial_rows, dim]
  float* bias_partials;  // [partial_rows]
  float* hidden_sums;    // [MostHiddenPieces, 128, 128] sums over ranges of children
};
// Takes the gradients of rows of narrow nodes in the place of row_grads, where a node's pairs are one slice.
template <typename T>
class NarrowRowTaker {
 public:
  explicit NarrowRowTaker(int64_t* left) : left_(left) {}
  virtual ~NarrowRowTaker() = default;
  // Whether it takes any of this batch: it may take none, where memory is not aligned.
  virtual bool Takes(const TreeBatch<T>& batch, const TreeGradOutputs<T>& out) const = 0;
  // In the place of NarrowGrad.
  virtual int Gradient(const TreeBatch<T>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
                       const TreeGradOutputs<T>& out, GpuStream stream) const = 0;
  // [touched] device memory: the rows that were not taken, in their places; -1: taken.
  int64_t* left() const { return left_; }

 private:
  int64_t* const left_;
};
// Gradients of the narrow nodes of one level: rows, and d_hidden (added to unless level is 0).
template <typename T>
int NarrowGrad(const TreeBatch<T>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
               const TreeGradOutputs<T>& out, GpuStream stream);
// d_hidden from the wide nodes of one level.
template <typename T, typename H>
int WideHiddenGrad(const TreeBatch<T, H>& batch, const TreeWork& work, int64_t level, const ProbChunk& chunk,
                   const TreeGradOutputs<T>& out, GpuStream stream);
// Row gradients of all wide nodes, from the pairs of a chunk.
template <typename T, typename H>
int WideRowGrad(const TreeBatch<T, H>& batch, const TreeWork& work, const ProbChunk& chunk,
                const TreeGradOutputs<T>& out, GpuStream stream);
// Sums what several slices or splits left in partials.
template <typename T>
int SumPartials(const TreeBatch<T>& batch, const TreeWork& work, const TreeGradOutputs<T>& out,
                GpuStream stream);

// tree_softmax.cu: TreeSoftmaxGpu::Gradient. taker: may be null.
template <typename T, typename H>
int TreeSoftmaxGradToCuda(const TreeGradPlan& plan, const TreeArrays& tree, const TreeTable<T>& table,
                          const H* hidden, const float* weights, const float* grad_loss, int64_t tokens,
                          const TreeSaved& saved, int64_t scratch_bytes, H* d_hidden, int64_t* rows,
                          T* row_grads, const NarrowRowTaker<T>* taker, float* bias_grads,
                          const GpuCall& call);

// tree_softmax.cu: hidden vectors in float32, themselves, or a copy in scratch memory.
int Floats(const float* in, int64_t n, const GpuCall& call, const float** out);
int Floats(const bfloat16* in, int64_t n, const GpuCall& call, const float** out);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_WORK_CUH_
