// Wide nodes, forward: logits as tiled matrix products over slices of pairs, then softmax in place. The
// logits of a chunk of slices are in memory once; nothing is gathered but the hidden vectors on their way to
// shared memory.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_mma_tile.cuh"

namespace largeout {
namespace {

// A tile of logits: written as they are (softmax follows), or with kExp as probabilities by the known
// pair_lse.
template <typename T, class Shape, bool kExp>
__device__ __forceinline__ void LogitTile(const TreeBatch<T>& batch, const TreeSlice& s, int child,
                                          float* data, float* shared, bool aligned) {
  const int64_t dim = batch.table.dim;
  const int depth = static_cast<int>(dim);
  const RowOperand<float> a{batch.hidden, dim, batch.pair_token + s.first, s.count, depth, aligned};
  const RowOperand<T> b{
      batch.table.rows + (s.row + child) * dim, dim, nullptr, s.children - child, depth, aligned};
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyTile<Shape, true, true>(a, b, 0, depth, shared, acc, NothingEachK());
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
    const int t = Shape::Row(i);
    if (t >= s.count) continue;
    const float lse = kExp ? batch.pair_lse[s.first + t] : 0.f;
    float* out = data + static_cast<int64_t>(t) * s.children;
#pragma unroll
    for (int j = 0; j < Shape::kTN; ++j) {
      const int c = child + Shape::Column(j);
      if (c >= s.children) continue;
      const float logit = acc[i][j] + (batch.table.bias == nullptr ? 0.f : batch.table.bias[s.row + c]);
      out[c] = kExp ? expf(logit - lse) : logit;
    }
  }
}

template <typename T, bool kExp>
__global__ void __launch_bounds__(kTileThreads, 3)
    WideLogits(TreeBatch<T> batch, const int32_t* tile_group, ProbChunk chunk, bool aligned) {
  __shared__ __align__(16) float shared[Tiles<T>::Tall::kShared];
  const int64_t begin = chunk.starts == nullptr ? 0 : chunk.starts[0].tiles;
  const int64_t end = chunk.starts == nullptr ? gridDim.x : chunk.starts[1].tiles;
  for (int64_t tile = begin + blockIdx.x; tile < end; tile += gridDim.x) {
    const int group = tile_group[tile];
    const int node = batch.group_node[group];
    const int64_t children = batch.tree.node_start[node + 1] - batch.tree.node_start[node];
    const int64_t wide = CeilDiv(children, kTileChildren);
    const int64_t local = tile - batch.offsets[group].tiles;
    const TreeSlice s = SliceOf(batch, group, local / wide);
    const int child = static_cast<int>(local % wide) * kTileChildren;
    float* data = chunk.data + (s.prob - chunk.begin);
    if (s.count > kFlatRows) {
      LogitTile<T, typename Tiles<T>::Tall, kExp>(batch, s, child, data, shared, aligned);
    } else {
      LogitTile<T, typename Tiles<T>::Flat, kExp>(batch, s, child, data, shared, aligned);
    }
  }
}

constexpr int kSoftmaxBlocks = 16;  // of a slice

// The sum or maximum over the block's 128 threads, in a fixed order.
template <bool kMax>
__device__ float Across(float x, float* shared) {
  x = kMax ? WarpMax(x) : WarpSum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int w = 1; w < kTileThreads / 32; ++w) x = kMax ? MaxOrNan(x, shared[w]) : x + shared[w];
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    WideSoftmax(TreeBatch<T> batch, const int32_t* wide_group, const int32_t* pair_slot, ProbChunk chunk,
                bool keep, float* pair_loss) {
  __shared__ float shared[kTileThreads / 32];
  const int64_t begin = (chunk.starts == nullptr ? 0 : chunk.starts[0].slices) * kSoftmaxBlocks;
  const int64_t end = chunk.starts == nullptr ? gridDim.x : chunk.starts[1].slices * kSoftmaxBlocks;
  for (int64_t unit = begin + blockIdx.x; unit < end; unit += gridDim.x) {
    const int64_t slice = unit / kSoftmaxBlocks;
    const int group = wide_group[slice];
    const TreeSlice s = SliceOf(batch, group, slice - batch.offsets[group].wide_slices);
    for (int t = static_cast<int>(unit % kSoftmaxBlocks); t < s.count; t += kSoftmaxBlocks) {
      float* x = chunk.data + (s.prob - chunk.begin) + static_cast<int64_t>(t) * s.children;
      const int p = s.first + t;
      const float target = x[batch.pair_row[p] - s.row];
      float top = -INFINITY, sum = 0.f;
      for (int j = threadIdx.x; j < s.children; j += kTileThreads) top = MaxOrNan(top, x[j]);
      top = Across<true>(top, shared);
      for (int j = threadIdx.x; j < s.children; j += kTileThreads) sum += expf(x[j] - top);
      const float log_sum = logf(Across<false>(sum, shared));  // a barrier: every thread has read `target`
      const float lse = top + log_sum;
      if (threadIdx.x == 0) {
        batch.pair_lse[p] = lse;
        // Not lse - target, which rounds a small loss to nothing where logits are large.
        pair_loss[pair_slot[p]] = (top - target) + log_sum;
      }
      if (keep) {
        for (int j = threadIdx.x; j < s.children; j += kTileThreads) x[j] = expf(x[j] - lse);
      }
    }
  }
}

}  // namespace

template <typename T>
int WideProbs(const TreeBatch<T>& batch, const TreeWork& work, const int32_t* pair_slot,
              const ProbChunk& chunk, bool keep, float* pair_loss, GpuStream stream) {
  if (work.tiles == 0) return 0;
  const bool aligned = RowsAligned(batch.table.dim, batch.table.rows, batch.hidden);
  // How many pieces a chunk has is known on the device alone: blocks take turns.
  const auto grid = [&](int64_t pieces) {
    return static_cast<unsigned>(chunk.starts == nullptr ? pieces : std::min<int64_t>(pieces, 132 * 24));
  };
  if (pair_loss == nullptr) {
    return Launch(WideLogits<T, true>, grid(work.tiles), kTileThreads, 0, stream, batch, work.tile_group, chunk,
                  aligned);
  }
  LARGEOUT_RETURN_IF_ERROR(Launch(WideLogits<T, false>, grid(work.tiles), kTileThreads, 0, stream, batch,
                                  work.tile_group, chunk, aligned));
  return Launch(WideSoftmax<T>, grid(work.wide_slices * kSoftmaxBlocks), kTileThreads, 0, stream, batch,
                work.wide_group, pair_slot, chunk, keep, pair_loss);
}

#define LARGEOUT_INSTANTIATE(T)                                                                           \
  template int WideProbs<T>(const TreeBatch<T>&, const TreeWork&, const int32_t*, const ProbChunk&, bool, \
                            float*, GpuStream);
LARGEOUT_INSTANTIATE(float)
LARGEOUT_INSTANTIATE(bfloat16)

}  // namespace largeout
