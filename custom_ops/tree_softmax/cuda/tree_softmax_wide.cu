// Wide nodes, forward: logits as tiled matrix products over slices of pairs. In the loss a block goes through
// some hundred tiles of a node's children and keeps of each pair what its logsumexp needs; logits are written
// where the probabilities are saved, else nowhere. In the gradient the logsumexp is known, and probabilities
// are written at once.
//
// Bounds, for n pairs of a node of c children: 2 n c dim flops; the node's rows once from memory, c dim
// elements, as long as the pairs of 128 rows of it at a time stay in the L2 cache; and 4 n c bytes where
// probabilities are written, 12 n c where they are saved (logits written, read, written over).
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_logits.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

// The products of a slice of a wide node.
template <typename T, typename H>
__device__ __forceinline__ NodeLogits<T, H> LogitsOf(const TreeBatch<T, H>& batch, const TreeSlice& s) {
  const TreeTable<T>& table = batch.table;
  return {batch.hidden,
          batch.pair_token + s.first,
          table.rows + s.row * table.dim,
          table.bias == nullptr ? nullptr : table.bias + s.row,
          table.dim,
          s.count,
          s.children,
          batch.tf32};
}

template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    WideTermsOfTiles(TreeBatch<T, H> batch, const int32_t* tile_group, int64_t skipped, WideTerms terms,
                     float* probs, CopiedRows copied) {
  __shared__ float totals[NodeLogits<T, H>::kTerms];
  char* shared = DynamicShared<char>();
  const int64_t tile = blockIdx.x + skipped;
  const int group = tile_group[tile];
  const int64_t start = batch.group_start[group], pairs = batch.group_start[group + 1] - start;
  const int node = batch.group_node[group];
  const int64_t children = batch.tree.node_start[node + 1] - batch.tree.node_start[node];
  // Slices of one range are neighbours: they read the same rows.
  const int64_t local = tile - batch.offsets[group].loss_tiles,
                slices = CeilDiv(pairs, WideSlice(children));
  const int64_t ranges = (batch.offsets[group + 1].loss_tiles - batch.offsets[group].loss_tiles) / slices;
  const int64_t tiles = CeilDiv(children, kTileColumns), each = CeilDiv(tiles, ranges);
  const int64_t range = local / slices, begin = range * each, end = min(begin + each, tiles);
  const TreeSlice s = SliceOf(batch, group, local % slices, 0);
  const int64_t at = batch.offsets[group].terms + range * pairs + (s.first - start);
  const NodeLogits<T, H> logits = LogitsOf(batch, s);
  const auto target = [&](int t) { return static_cast<int>(batch.pair_row[s.first + t] - s.row); };
  float *picked = terms.picked + s.first, *high = terms.high + at, *total = terms.total + at;
  float* out = probs == nullptr ? nullptr : probs + s.prob;
  if (s.count > kSmallM) {
    logits.template TermsOfTiles<typename NodeLogits<T, H>::LargeM>(begin, end, copied, target, picked, out,
                                                                    high, total, shared, totals);
  } else {
    logits.template TermsOfTiles<typename NodeLogits<T, H>::SmallM>(begin, end, copied, target, picked, out,
                                                                    high, total, shared, totals);
  }
}

// A thread a pair, from `skipped` on.
template <typename T, typename H>
__global__ void JoinWideTerms(TreeBatch<T, H> batch, int64_t skipped, int64_t pairs, const int32_t* pair_group,
                              const int32_t* pair_slot, WideTerms terms, float* pair_loss) {
  const int64_t p = skipped + blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p >= pairs) return;
  const int group = pair_group[p];
  const int64_t begin = batch.offsets[group].terms, count = batch.offsets[group + 1].terms - begin;
  if (count == 0) return;  // of a narrow node
  const int64_t start = batch.group_start[group], n = batch.group_start[group + 1] - start;
  const int64_t at = begin + (p - start);
  const JoinedTotal all = JoinTotals(terms.high + at, terms.total + at, count / n, n);
  batch.pair_lse[p] = all.Lse();
  pair_loss[pair_slot[p]] = all.Minus(terms.picked[p]);
}

constexpr int kSlicePieces = 16;  // of a slice, a warp a pair

template <typename T, typename H>
__global__ void __launch_bounds__(kThreads)
    WideExponentials(TreeBatch<T, H> batch, const int32_t* wide_group, int64_t slices, float* probs) {
  for (int64_t unit = blockIdx.x; unit < slices * kSlicePieces; unit += gridDim.x) {
    const int64_t slice = unit / kSlicePieces;
    const int group = wide_group[slice];
    const TreeSlice s = SliceOf(batch, group, slice - batch.offsets[group].wide_slices, 0);
    const int t = static_cast<int>(unit % kSlicePieces) * (kThreads / 32) + threadIdx.x / 32;
    if (t >= s.count) continue;
    const float lse = batch.pair_lse[s.first + t];
    float* x = probs + s.prob + static_cast<int64_t>(t) * s.children;
#pragma unroll 4
    for (int j = threadIdx.x % 32; j < s.children; j += 32) x[j] = expf(x[j] - lse);
  }
}
static_assert(kSlicePieces * (kThreads / 32) >= kTileRows, "all pairs of a slice");

template <typename T, typename H, class Shape>
__device__ __forceinline__ void ProbsOfTile(const TreeBatch<T, H>& batch, const TreeSlice& s, int child,
                                            float* data, const CopiedRows& copied, char* shared) {
  float acc[Shape::kTM][Shape::kTN] = {};
  LogitsOf(batch, s).template Multiply<Shape>(child, copied, shared, acc);
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
    const int t = Shape::Row(i);
    if (t >= s.count) continue;
    const float lse = batch.pair_lse[s.first + t];
    float* out = data + static_cast<int64_t>(t) * s.children;
#pragma unroll
    for (int j = 0; j < Shape::kTN; ++j) {
      const int c = child + Shape::Column(j);
      if (c < s.children) out[c] = expf(acc[i][j] - lse);
    }
  }
}

// Blocks take turns: how many tiles a chunk has is known on the device alone.
template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    WideProbsOfTiles(TreeBatch<T, H> batch, const int32_t* tile_group, int64_t skipped, int64_t tiles,
                     ProbChunk chunk, CopiedRows copied) {
  char* shared = DynamicShared<char>();
  const int64_t begin = max(skipped, chunk.starts == nullptr ? 0 : chunk.starts[0].tiles);
  const int64_t end = chunk.starts == nullptr ? tiles : chunk.starts[1].tiles;
  for (int64_t tile = begin + blockIdx.x; tile < end; tile += gridDim.x) {
    const int group = tile_group[tile];
    const int node = batch.group_node[group];
    const int64_t children = batch.tree.node_start[node + 1] - batch.tree.node_start[node];
    const int64_t wide = CeilDiv(children, kTileColumns), local = tile - batch.offsets[group].tiles;
    const TreeSlice s = SliceOf(batch, group, local / wide, 0);
    const int child = static_cast<int>(local % wide) * kTileColumns;
    float* data = chunk.data + (s.prob - chunk.begin);
    if (s.count > kSmallM) {
      ProbsOfTile<T, H, typename NodeLogits<T, H>::LargeM>(batch, s, child, data, copied, shared);
    } else {
      ProbsOfTile<T, H, typename NodeLogits<T, H>::SmallM>(batch, s, child, data, copied, shared);
    }
  }
}

}  // namespace

template <typename T, typename H>
int WideLoss(const TreeBatch<T, H>& batch, const TreeWork& work, const int32_t* pair_group,
             const int32_t* pair_slot, const WideTerms& terms, float* probs, float* pair_loss,
             GpuStream stream) {
  const RootPieces& skipped = work.skipped;
  const int64_t tiles = work.loss_tiles - skipped.loss_tiles, pairs = work.pairs - skipped.pairs;
  if (tiles == 0 || pairs == 0) return 0;
  LARGEOUT_RETURN_IF_ERROR(Launch(WideTermsOfTiles<T, H>, static_cast<unsigned>(tiles), kTileThreads,
                                  kLogitBytes<T, H>, stream, batch, work.loss_tile_group, skipped.loss_tiles,
                                  terms, probs,
                                  CopiedRows::Of(batch.table.dim, batch.hidden, batch.table.rows)));
  LARGEOUT_RETURN_IF_ERROR(Launch(JoinWideTerms<T, H>, static_cast<unsigned>(CeilDiv(pairs, kThreads)),
                                  kThreads, 0, stream, batch, skipped.pairs, work.pairs, pair_group, pair_slot,
                                  terms, pair_loss));
  if (probs == nullptr) return 0;
  return Launch(WideExponentials<T, H>, GridStrideBlocks(work.wide_slices * kSlicePieces, 1 << 20), kThreads,
                0, stream, batch, work.wide_group, work.wide_slices, probs);
}

template <typename T, typename H>
int WideProbs(const TreeBatch<T, H>& batch, const TreeWork& work, const ProbChunk& chunk, GpuStream stream) {
  const int64_t tiles = work.tiles - work.skipped.tiles;
  if (tiles == 0) return 0;
  return Launch(WideProbsOfTiles<T, H>,
                GridStrideBlocks(tiles, chunk.starts == nullptr ? 0x7fffffff : 132 * 24), kTileThreads,
                kLogitBytes<T, H>, stream, batch, work.tile_group, work.skipped.tiles, work.tiles, chunk,
                CopiedRows::Of(batch.table.dim, batch.hidden, batch.table.rows));
}

#define LARGEOUT_INSTANTIATE(T, H)                                                                     \
  template int WideLoss<T, H>(const TreeBatch<T, H>&, const TreeWork&, const int32_t*, const int32_t*, \
                              const WideTerms&, float*, float*, GpuStream);                            \
  template int WideProbs<T, H>(const TreeBatch<T, H>&, const TreeWork&, const ProbChunk&, GpuStream);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)

}  // namespace largeout
