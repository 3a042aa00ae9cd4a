// The check of targets, and the three numbers of every token: a block goes through a range of classes for 64
// tokens, tile by tile, and what the ranges give is joined in their order.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "full_softmax/cuda/full_softmax_tile.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocks = 4096;             // that a launch should have: tens for each multiprocessor
constexpr int64_t kMostTiles = 64;            // of a range: a thread adds up 8 or 16 terms of each in float32
constexpr int64_t kPartialFloats = 16 << 20;  // of what the ranges give, for all tokens of a chunk

unsigned Blocks(int64_t n) { return static_cast<unsigned>(CeilDiv(n, kThreads)); }

template <typename Id>
__global__ void CheckTargets(const Id* targets, int64_t tokens, int64_t classes, int32_t* copy,
                             unsigned long long* bad) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens) return;
  const int64_t target = static_cast<int64_t>(targets[t]);
  if (target < -1 || target >= classes) atomicMin(bad, static_cast<unsigned long long>(t));
  if (copy != nullptr) copy[t] = static_cast<int32_t>(target);
}

// How the work is cut.
struct TermsPlan {
  TermsPlan(int64_t classes, int64_t count) {
    tiles = CeilDiv(classes, kLogitClasses);
    const int64_t wanted = std::max<int64_t>(1, kBlocks / std::max<int64_t>(1, CeilDiv(count, kLogitTokens)));
    of_range = std::min(kMostTiles, std::max<int64_t>(1, CeilDiv(tiles, wanted)));
    ranges = CeilDiv(tiles, of_range);
    const int64_t fit = kPartialFloats / (3 * std::max<int64_t>(1, ranges)) / kLogitTokens * kLogitTokens;
    tokens = std::min(count, std::max<int64_t>(kLogitTokens, fit));
  }
  int64_t tiles, of_range, ranges;
  int64_t tokens;  // of a chunk
};

// What the ranges give: [ranges, tokens] each; and the logits of the targets [tokens].
struct PartialTerms {
  float *high, *total, *sum, *picked;
};

// The maximum of some logits, the sum of exp(logit - maximum), and the sum of all. A NaN among them makes
// `total` NaN.
struct RunningTerms {
  float high = -INFINITY, total = 0.f, sum = 0.f;

  // What exponents are relative to: without any logit but -inf the total is 0, not NaN.
  __device__ __forceinline__ float Shift() const { return high == -INFINITY ? 0.f : high; }
  __device__ __forceinline__ void Raise(float top) {
    const float before = high;
    high = fmaxf(high, top);
    total *= expf(before - Shift());
  }
};

// The terms that the threads of a block keep of its rows, [threads of a row, rows] in shared memory: in
// registers they would take those of the product.
template <class Shape>
struct SharedTerms {
  using Shares = TileShares<Shape>;
  static constexpr int kStride = Shape::kM + 1;  // neighbouring threads are in different banks
  float high[Shares::kAcross * kStride], total[Shares::kAcross * kStride], sum[Shares::kAcross * kStride];

  static __device__ __forceinline__ int At(int across, int row) { return across * kStride + row; }
  __device__ __forceinline__ RunningTerms Get(int at) const { return {high[at], total[at], sum[at]}; }
  __device__ __forceinline__ void Set(int at, const RunningTerms& terms) {
    high[at] = terms.high, total[at] = terms.total, sum[at] = terms.sum;
  }
  // All of a row, in the order of its threads.
  __device__ __forceinline__ RunningTerms Join(int row) const {
    RunningTerms all;
    for (int n = 0; n < Shares::kAcross; ++n) all.high = fmaxf(all.high, high[At(n, row)]);
    for (int n = 0; n < Shares::kAcross; ++n) {
      const RunningTerms one = Get(At(n, row));
      all.total += one.total * expf(one.high - all.Shift());
      all.sum += one.sum;
    }
    return all;
  }
};

template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    RangeTerms(SoftmaxRows<T> table, SoftmaxBatch<H, int32_t> batch, TermsPlan plan, PartialTerms out,
               bool aligned) {
  using Shape = typename SoftmaxTiles<T>::Logits;
  using Terms = SharedTerms<Shape>;
  static_assert(Shape::kM == kLogitTokens && Shape::kN == kLogitClasses, "what the plan counts on");
  __shared__ __align__(16) float shared[Shape::kShared];
  __shared__ Terms terms;
  const int64_t token_tiles = CeilDiv(batch.count, kLogitTokens);
  const int64_t range = blockIdx.x / token_tiles, token = blockIdx.x % token_tiles * kLogitTokens;
  const int64_t begin = range * plan.of_range, end = min(plan.tiles, begin + plan.of_range);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * kLogitClasses;
    float acc[Shape::kTM][Shape::kTN] = {};
    MultiplyLogits<Shape>(batch.hidden, batch.count, table.rows, table.classes, table.dim, token, first,
                          aligned, shared, acc);
#pragma unroll
    for (int j = 0; j < Shape::kTN; ++j) {
      const int64_t c = first + Shape::Column(j);
      const float bias = table.bias == nullptr || c >= table.classes ? 0.f : table.bias[c];
#pragma unroll
      for (int i = 0; i < Shape::kTM; ++i) acc[i][j] += bias;
    }
#pragma unroll
    for (int i = 0; i < Shape::kTM; ++i) {
      const int64_t t = token + Shape::Row(i);
      // The column of the target, if it is one of the tile's.
      const int64_t at = t < batch.count ? batch.targets[t] - first : -1;
      const int mine = Terms::At(TileShares<Shape>::Across(), Shape::Row(i));
      RunningTerms row;
      if (tile > begin) row = terms.Get(mine);
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < Shape::kTN; ++j) {
        const int column = Shape::Column(j);
        if (first + column >= table.classes) {
          acc[i][j] = -INFINITY;
          continue;
        }
        if (column == at) {
          if (batch.skip_target) {
            acc[i][j] = -INFINITY;
          } else {
            out.picked[t] = acc[i][j];
          }
        }
        row.sum += acc[i][j];
        top = fmaxf(top, acc[i][j]);
      }
      row.Raise(top);
#pragma unroll
      for (int j = 0; j < Shape::kTN; ++j) row.total += expf(acc[i][j] - row.Shift());
      terms.Set(mine, row);
    }
  }
  __syncthreads();
  const int64_t t = token + threadIdx.x;
  if (threadIdx.x >= kLogitTokens || t >= batch.count) return;
  const RunningTerms row = terms.Join(threadIdx.x);
  const int64_t to = range * batch.count + t;
  out.high[to] = row.high, out.total[to] = row.total, out.sum[to] = row.sum;
}

__global__ void JoinRanges(PartialTerms parts, int64_t ranges, const int32_t* targets, int64_t tokens,
                           bool skip, SoftmaxTerms out) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens) return;
  float top = -INFINITY;
  for (int64_t r = 0; r < ranges; ++r) top = fmaxf(top, parts.high[r * tokens + t]);
  const double shift = top == -INFINITY ? 0.0 : top;
  double exps = 0.0, all = 0.0;
  for (int64_t r = 0; r < ranges; ++r) {
    exps += parts.total[r * tokens + t] * exp(parts.high[r * tokens + t] - shift);
    all += parts.sum[r * tokens + t];
  }
  const double log_total = log(exps);
  const bool aimed = targets[t] >= 0 && !skip;
  out.lse[t] = exps == 0.0 ? -INFINITY : static_cast<float>(top + log_total);
  // Not lse - picked: exact where one logit stands far above the others.
  out.ce[t] = aimed ? static_cast<float>((static_cast<double>(top) - parts.picked[t]) + log_total) : 0.f;
  out.sum[t] = skip ? 0.f : static_cast<float>(all);
}

}  // namespace

template <typename Id>
int SoftmaxTargetsCuda(const Id* targets, int64_t tokens, int64_t classes, int32_t* copy, Scratch* scratch,
                       GpuStream stream, int64_t* bad) {
  *bad = -1;
  if (tokens == 0) return 0;
  auto* first = scratch->Take<unsigned long long>(1);
  if (first == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(first, 0xff, sizeof(*first), stream));  // all ones are -1
  LARGEOUT_RETURN_IF_ERROR(
      Launch(CheckTargets<Id>, Blocks(tokens), kThreads, 0, stream, targets, tokens, classes, copy, first));
  return CopyToHostCuda(first, sizeof(*bad), bad, stream);
}

template <typename T, typename H>
int FullSoftmaxTermsCuda(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch,
                         const SoftmaxTerms& terms, Scratch* scratch, GpuStream stream) {
  if (batch.count == 0) return 0;
  const TermsPlan plan(table.classes, batch.count);
  const int64_t partial = plan.ranges * plan.tokens;
  const PartialTerms parts{scratch->Take<float>(partial), scratch->Take<float>(partial),
                           scratch->Take<float>(partial), scratch->Take<float>(plan.tokens)};
  if (parts.picked == nullptr || parts.high == nullptr || parts.total == nullptr || parts.sum == nullptr)
    return kNoMemory;
  const bool aligned = RowsAligned(table.dim, table.rows, batch.hidden);
  for (int64_t begin = 0; begin < batch.count; begin += plan.tokens) {
    const int64_t count = std::min(plan.tokens, batch.count - begin);
    const SoftmaxBatch<H, int32_t> chunk{batch.hidden + begin * table.dim, batch.targets + begin, count,
                                         batch.skip_target};
    const int64_t blocks = CeilDiv(count, kLogitTokens) * plan.ranges;
    if (blocks > 0) {
      LARGEOUT_RETURN_IF_ERROR(Launch(RangeTerms<T, H>, static_cast<unsigned>(blocks), kTileThreads, 0,
                                      stream, table, chunk, plan, parts, aligned));
    }
    LARGEOUT_RETURN_IF_ERROR(Launch(JoinRanges, Blocks(count), kThreads, 0, stream, parts, plan.ranges,
                                    chunk.targets, count, batch.skip_target,
                                    SoftmaxTerms{terms.lse + begin, terms.ce + begin, terms.sum + begin}));
  }
  return 0;
}

#define LARGEOUT_INSTANTIATE_TARGETS(Id) \
  template int SoftmaxTargetsCuda<Id>(const Id*, int64_t, int64_t, int32_t*, Scratch*, GpuStream, int64_t*);
LARGEOUT_INSTANTIATE_TARGETS(int32_t)
LARGEOUT_INSTANTIATE_TARGETS(int64_t)
#define LARGEOUT_INSTANTIATE(T, H)                                                                \
  template int FullSoftmaxTermsCuda<T, H>(const SoftmaxRows<T>&, const SoftmaxBatch<H, int32_t>&, \
                                          const SoftmaxTerms&, Scratch*, GpuStream);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)

}  // namespace largeout
