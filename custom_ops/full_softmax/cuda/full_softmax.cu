// The check of targets, and the three numbers of every token: a block goes through a range of classes for 128
// tokens, tile by tile, and what the ranges give is joined in their order.
//
// Bounds: 2 x tokens x classes x dim flops, and the rows once from memory as long as those of a range stay in
// the L2 cache while all blocks of tokens go by; no logits are written.
#include <algorithm>

#include "common/cuda/gemm/softmax_terms.cuh"
#include "common/cuda/late_report.cuh"
#include "common/cuda/launch.cuh"
#include "full_softmax/cuda/full_softmax_library.cuh"
#include "full_softmax/cuda/full_softmax_tile.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostTiles = 64;  // of a range: a thread adds up 16 terms of each in float32

unsigned Blocks(int64_t n) { return static_cast<unsigned>(CeilDiv(n, kThreads)); }

template <typename Id>
__global__ void CheckTargets(const Id* targets, int64_t tokens, int64_t classes, int32_t* copy,
                             unsigned long long* bad) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens) return;
  const int64_t target = static_cast<int64_t>(targets[t]);
  const bool good = target >= -1 && target < classes;
  if (!good) atomicMin(bad, static_cast<unsigned long long>(t));
  if (copy != nullptr) copy[t] = good ? static_cast<int32_t>(target) : -1;
}

template <typename Id>
__global__ void PostTarget(const Id* targets, int64_t classes, const unsigned long long* bad,
                           LateFinding* slot) {
  const int64_t t = static_cast<int64_t>(*bad);
  if (t >= 0) Post(slot, 0, t, static_cast<int64_t>(targets[t]), classes);
}

// Waits for the stream.
template <typename Id>
int ReadBadTarget(const Id* targets, const unsigned long long* first, BadTarget* bad, GpuStream stream) {
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(first, sizeof(bad->position), &bad->position, stream));
  if (!bad->found()) return 0;
  Id value;
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(targets + bad->position, sizeof(value), &value, stream));
  bad->value = static_cast<int64_t>(value);
  return 0;
}

// The ranges and chunks into which the work is cut.
struct TermsPlan {
  TermsPlan(int64_t classes, int64_t count) {
    tiles = CeilDiv(classes, kTileColumns);
    const int64_t wanted =
        std::max<int64_t>(1, SoftmaxTuning::kTermBlocks / std::max<int64_t>(1, CeilDiv(count, kTileRows)));
    of_range = std::min(kMostTiles, std::max<int64_t>(1, CeilDiv(tiles, wanted)));
    ranges = CeilDiv(tiles, of_range);
    const int64_t fit =
        SoftmaxTuning::kPartialFloats / (3 * std::max<int64_t>(1, ranges)) / kTileRows * kTileRows;
    tokens = std::min(count, std::max<int64_t>(kTileRows, fit));
  }
  int64_t tiles, of_range, ranges;
  int64_t tokens;  // of a chunk
};

template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    RangeTerms(SoftmaxRows<T> table, SoftmaxBatch<H, int32_t> batch, TermsPlan plan, PartialTerms out,
               CopiedRows copied, bool tf32) {
  using Shape = SoftmaxTile<T, H>;
  using Totals = TileTotals<Shape>;
  __shared__ float terms[Totals::kFloats];
  __shared__ float sums[Shape::kAcross * Totals::kStride];  // of all logits, as the totals are laid out
  const Totals totals{terms};
  const int64_t token_tiles = CeilDiv(batch.count, kTileRows);
  // Blocks of one range are neighbours: they read the same rows.
  const int64_t range = blockIdx.x / token_tiles, token = blockIdx.x % token_tiles * kTileRows;
  const int64_t begin = range * plan.of_range, end = min(plan.tiles, begin + plan.of_range);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * kTileColumns;
    const int classes = static_cast<int>(min(table.classes - first, int64_t{kTileColumns}));  // of the tile
    float acc[Shape::kTM][Shape::kTN] = {};
    MultiplyLogits(batch.hidden, batch.count, table, token, first, copied, tf32, DynamicShared<char>(),
                   acc);
#pragma unroll
    for (int i = 0; i < Shape::kTM; ++i) {
      const int64_t t = token + Shape::Row(i);
      // The column of the target, if it is one of the tile's.
      const int at = t < batch.count ? batch.targets[t] - static_cast<int>(first) : -1;
      float* mine = sums + Shape::Across() * Totals::kStride + Shape::Row(i);
      float sum = tile > begin ? *mine : 0.f;
#pragma unroll
      for (int j = 0; j < Shape::kTN; ++j) {
        const int column = Shape::Column(j);
        if (column >= classes) {
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
        sum += acc[i][j];
      }
      *mine = sum;
    }
    totals.Add(acc, tile == begin);
  }
  __syncthreads();
  const int64_t t = token + threadIdx.x;
  if (threadIdx.x >= kTileRows || t >= batch.count) return;
  const SoftmaxTotal row = totals.Join(threadIdx.x);
  float sum = 0.f;
  for (int n = 0; n < Shape::kAcross; ++n) sum += sums[n * Totals::kStride + threadIdx.x];
  const int64_t to = range * batch.count + t;
  out.high[to] = row.high, out.total[to] = row.total, out.sum[to] = sum;
}

__global__ void JoinRanges(PartialTerms parts, int64_t ranges, const int32_t* targets, int64_t tokens,
                           bool skip, SoftmaxTerms out) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens) return;
  const JoinedTotal total = JoinTotals(parts.high + t, parts.total + t, ranges, tokens);
  double all = 0.0;
  for (int64_t r = 0; r < ranges; ++r) all += parts.sum[r * tokens + t];
  const bool aimed = targets[t] >= 0 && !skip;
  out.lse[t] = total.Lse();
  out.ce[t] = aimed ? total.Minus(parts.picked[t]) : 0.f;
  out.sum[t] = skip ? 0.f : static_cast<float>(all);
}

}  // namespace

int JoinTerms(const PartialTerms& parts, int64_t ranges, const int32_t* targets, int64_t tokens, bool skip,
              const SoftmaxTerms& out, GpuStream stream) {
  return Launch(JoinRanges, Blocks(tokens), kThreads, 0, stream, parts, ranges, targets, tokens, skip, out);
}

template <typename H, typename Id>
int CheckBatch(const SoftmaxBatch<H, Id>& batch, int64_t classes, const GpuCall& call,
               SoftmaxBatch<H, int32_t>* checked, BadTarget* bad) {
  if (bad != nullptr) *bad = {};
  int32_t* copy = nullptr;
  *checked = {batch.hidden, nullptr, batch.count, batch.skip_target};
  bool as_they_are = false;
  if constexpr (std::is_same_v<Id, int32_t>) {
    as_they_are = call.late == nullptr;  // bad ones end the call
    checked->targets = batch.targets;
  }
  if (!as_they_are) {
    copy = call.scratch->template Take<int32_t>(batch.count);
    if (copy == nullptr) return kNoMemory;
    checked->targets = copy;
  }
  if (batch.count == 0) return 0;
  const GpuStream stream = call.stream;
  auto* first = call.scratch->template Take<unsigned long long>(1);
  if (first == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(first, 0xff, sizeof(*first), stream));  // all ones are -1
  LARGEOUT_RETURN_IF_ERROR(Launch(CheckTargets<Id>, Blocks(batch.count), kThreads, 0, stream, batch.targets,
                                  batch.count, classes, copy, first));
  if (bad == nullptr) return 0;
  if (call.late == nullptr) return ReadBadTarget(batch.targets, first, bad, stream);
  LateFinding* slot;
  LARGEOUT_RETURN_IF_ERROR(call.late->Open(&slot));
  return Launch(PostTarget<Id>, 1, 1, 0, stream, batch.targets, classes, first, slot);
}

template <>
template <typename T, typename H, typename Id>
int FullSoftmaxGpu::Terms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& asked,
                          const SoftmaxTerms& terms, BadTarget* bad) {
  LateFinding earlier;
  if (call_.late != nullptr && call_.late->Take(&earlier)) {
    *bad = {earlier.position, earlier.value};
    return 0;
  }
  SoftmaxBatch<H, int32_t> batch;
  LARGEOUT_RETURN_IF_ERROR(CheckBatch(asked, table.classes, call_, &batch, bad));
  if (bad->found() || batch.count == 0) return 0;
  const int by_library = LibraryTerms(table, batch, terms, call_);
  if (by_library != kNoProduct) return by_library;
  Scratch* const scratch = call_.scratch;
  const GpuStream stream = call_.stream;
  const TermsPlan plan(table.classes, batch.count);
  const int64_t partial = plan.ranges * plan.tokens;
  const PartialTerms parts{scratch->Take<float>(partial), scratch->Take<float>(partial),
                           scratch->Take<float>(partial), scratch->Take<float>(plan.tokens)};
  if (parts.picked == nullptr || parts.high == nullptr || parts.total == nullptr || parts.sum == nullptr)
    return kNoMemory;
  const CopiedRows copied = CopiedRows::Of(table.dim, batch.hidden, table.rows);
  for (int64_t begin = 0; begin < batch.count; begin += plan.tokens) {
    const int64_t count = std::min(plan.tokens, batch.count - begin);
    const SoftmaxBatch<H, int32_t> chunk{batch.hidden + begin * table.dim, batch.targets + begin, count,
                                         batch.skip_target};
    const int64_t blocks = CeilDiv(count, kTileRows) * plan.ranges;
    if (blocks > 0) {
      LARGEOUT_RETURN_IF_ERROR(Launch(RangeTerms<T, H>, static_cast<unsigned>(blocks), kTileThreads,
                                      kLogitBytes<T, H>, stream, table, chunk, plan, parts, copied,
                                      call_.tf32));
    }
    LARGEOUT_RETURN_IF_ERROR(JoinTerms(parts, plan.ranges, chunk.targets, count, batch.skip_target,
                                       {terms.lse + begin, terms.ce + begin, terms.sum + begin}, stream));
  }
  return 0;
}

#define LARGEOUT_TERMS(T, H)                                                                                \
  template int FullSoftmaxGpu::Terms<T, H, int32_t>(const SoftmaxRows<T>&, const SoftmaxBatch<H, int32_t>&, \
                                                    const SoftmaxTerms&, BadTarget*);                       \
  template int FullSoftmaxGpu::Terms<T, H, int64_t>(const SoftmaxRows<T>&, const SoftmaxBatch<H, int64_t>&, \
                                                    const SoftmaxTerms&, BadTarget*);
LARGEOUT_TERMS(float, float)
LARGEOUT_TERMS(float, bfloat16)
LARGEOUT_TERMS(bfloat16, float)
LARGEOUT_TERMS(bfloat16, bfloat16)
#define LARGEOUT_CHECK(H)                                                           \
  template int CheckBatch(const SoftmaxBatch<H, int32_t>&, int64_t, const GpuCall&, \
                          SoftmaxBatch<H, int32_t>*, BadTarget*);                   \
  template int CheckBatch(const SoftmaxBatch<H, int64_t>&, int64_t, const GpuCall&, \
                          SoftmaxBatch<H, int32_t>*, BadTarget*);
LARGEOUT_CHECK(float)
LARGEOUT_CHECK(bfloat16)

}  // namespace largeout
