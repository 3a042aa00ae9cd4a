// The forward pass of the losses: a warp goes through a range of classes for one block of examples; the sums
// of warps, then those of thread blocks, meet in a fixed order. Terms are float32, sums float64. No logits
// are written.
#include "common/arena.h"
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_labels.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

// As many ranges as there are warps on 132 multiprocessors, 24 on each.
constexpr int64_t kMostRanges = 132 * 24, kLeastRows = 32;
constexpr int kAddThreads = 1024;

// A range is a multiple of 8 rows: a byte of `active` belongs to one warp.
struct Ranges {
  explicit Ranges(int64_t classes)
      : rows(std::max(kLeastRows, ((classes + kMostRanges - 1) / kMostRanges + 7) / 8 * 8)),
        count((classes + rows - 1) / rows) {}
  int64_t rows, count;
};

// The sums of some classes for an example.
struct LaneSums {
  double loss;         // softmax: sum over labels of weight * logit
  double mass, total;  // softmax only: sum of weights; of exp(logit - high)
  double high;

  __device__ static LaneSums Nothing() { return {0, 0, 0, kNoTerm}; }

  // Adds the term of one class; returns whether it has a gradient other than zero.
  __device__ __forceinline__ bool Add(FanInLoss kind, float z, bool label, float weight) {
    if (kind == FanInLoss::kSoftmax) {
      if (label) {
        loss += static_cast<double>(weight) * z;
        mass += weight;
      }
      if (z == kNoTerm) return true;
      const float before = static_cast<float>(high);
      if (z <= before) {
        total += expf(z - before);
      } else {  // also NaN, which stays
        total = total * expf(before - z) + 1.0;
        high = z;
      }
      return true;
    }
    if (label) {
      loss += weight * PositiveTerm(kind, z);
      return !(PositiveGradient(kind, z) == 0.0);
    }
    if (kind == FanInLoss::kSquaredHinge) {
      const float slack = Positive(1.f + z);
      loss += slack * slack;
      return slack != 0.f;
    }
    loss += Positive(z) + log1pf(expf(-fabsf(z)));
    return true;
  }

  // Adds what other classes have.
  __device__ void Join(const LaneSums& other) {
    loss += other.loss;
    mass += other.mass;
    if (other.high == kNoTerm) return;  // exp(-inf) of every class
    const double highest = other.high <= high ? high : other.high;
    total = total * exp(high - highest) + other.total * exp(other.high - highest);
    high = highest;
  }
};

// The sums of all warps of a thread block, in their order, for warp 0. all: [warps][32].
__device__ __forceinline__ LaneSums JoinWarps(LaneSums own, LaneSums (*all)[32]) {
  all[Warp()][Lane()] = own;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int warp = 1; Warp() == 0 && warp < warps; ++warp) own.Join(all[warp][Lane()]);
  __syncthreads();
  return own;
}

// sums: [blocks, thread blocks, width].
template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads, 3)
    ForwardRanges(FanInLayer<T, Id> layer, FanInBatch batch, InputBlocks blocks, FanInLoss loss,
                  PositivesOnGpu positives, uint8_t* active, Ranges ranges, LaneSums* sums,
                  Verdict* verdict) {
  __shared__ Connection stage[kWarps][32];
  __shared__ LaneSums of_warps[kWarps][32];
  const int lane = Lane(), width = batch.width;
  const Vec4Lanes vec4(width);
  const int64_t first = (int64_t{blockIdx.x} * kWarps + Warp()) * ranges.rows;
  const int begin = static_cast<int>(min(first, layer.classes)),
            end = static_cast<int>(min(first + ranges.rows, layer.classes));
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width + lane;
    const bool used = lane < width && example < batch.size;
    const InputBlocks inputs = blocks + block * batch.inputs * width;
    uint8_t* bytes = active == nullptr ? nullptr : active + block * ((layer.classes + 7) / 8);
    LabelCursor labels(positives, block, begin);
    LaneSums own = LaneSums::Nothing();
    unsigned byte = 0;
    RowStart<T, Id> next = StartRow(layer, begin, end);
    for (int row = begin; row < end; ++row) {
      const RowStart<T, Id> start = next;
      next = StartRow(layer, row + 1, end);
      float z, weight = 0.f;
      bool any = false;
      if (RowLogit(layer, row, start, inputs, vec4, stage[Warp()], &z)) {
        const bool label = labels.Find(row, example, &weight);
        any = own.Add(loss, z, label, weight) && used;
      } else {
        Found(&verdict->row, row);
      }
      if (bytes == nullptr) continue;
      byte |= (__any_sync(kAll, any) != 0 ? 1u : 0u) << (row % 8);
      if (row % 8 != 7 && row != end - 1) continue;
      if (lane == 0) bytes[row / 8] = static_cast<uint8_t>(byte);
      byte = 0;
    }
    own = JoinWarps(own, of_warps);
    if (Warp() == 0 && lane < width) sums[(block * gridDim.x + blockIdx.x) * width + lane] = own;
  }
}

// A thread block a block of examples; a warp takes every 32nd of `count` sums.
__global__ void __launch_bounds__(kAddThreads)
    AddSums(FanInBatch batch, FanInLoss loss, int64_t count, const LaneSums* sums, FanInLossOutputs out) {
  __shared__ LaneSums of_warps[kAddThreads / 32][32];
  const int lane = Lane(), width = batch.width;
  for (int64_t block = blockIdx.x; block < batch.blocks; block += gridDim.x) {
    LaneSums own = LaneSums::Nothing();
    for (int64_t i = Warp(); lane < width && i < count; i += kAddThreads / 32)
      own.Join(sums[(block * count + i) * width + lane]);
    own = JoinWarps(own, of_warps);
    const int64_t example = block * width + lane;
    if (Warp() > 0 || lane >= width || example >= batch.size) continue;
    double total = own.loss;
    if (loss == FanInLoss::kSoftmax) {
      const double lse = own.high + log(own.total);
      out.lse[example] = static_cast<float>(lse), out.mass[example] = static_cast<float>(own.mass);
      // Without labels 0, though all logits be -inf.
      total = own.mass == 0 && total == 0 ? 0.0 : own.mass * lse - total;
    }
    out.loss[example] = static_cast<float>(total);
  }
}

}  // namespace
}  // namespace fan_in_gpu

using namespace fan_in_gpu;

template <>
template <typename T, typename Id>
int FanInGpu::LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                          const FanInLossOutputs& out, int64_t* bad) {
  if (FoundBefore(call_.late, bad)) return 0;
  *bad = -1;
  if (batch_.size == 0) return 0;
  Arena arena(call_.scratch);
  Verdict* verdict = arena.Take<Verdict>(1);
  const Ranges ranges(layer.classes);
  const unsigned of_ranges = Blocks(ranges.count, kWarps);
  LaneSums* sums = arena.Take<LaneSums>(of_ranges * batch_.padded());
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  PositivesOnGpu on_gpu;
  LARGEOUT_RETURN_IF_ERROR(ToGpu(positives, call_, &on_gpu));
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(verdict, call_.stream));
  if (ranges.count > 0) {
    LARGEOUT_RETURN_IF_ERROR(Launch(ForwardRanges<T, Id>, Grid(of_ranges, batch_), kThreads, 0, call_.stream,
                                    layer, batch_, InputBlocks(blocks_, narrow_blocks_), loss, on_gpu,
                                    loss == FanInLoss::kSquaredHinge ? out.active : nullptr, ranges, sums,
                                    verdict));
  }
  LARGEOUT_RETURN_IF_ERROR(Launch(AddSums, GridStrideBlocks(batch_.blocks, 65535), kAddThreads, 0,
                                  call_.stream, batch_, loss, of_ranges, sums, out));
  return EndWithVerdict(verdict, layer.inputs, call_.stream, call_.late, bad);
}

#define LARGEOUT_FORWARD(T, Id)                                                                         \
  template int FanInGpu::LossForward<T, Id>(const FanInLayer<T, Id>&, FanInLoss, const FanInPositives&, \
                                            const FanInLossOutputs&, int64_t*);
LARGEOUT_FORWARD(float, uint16_t)
LARGEOUT_FORWARD(float, uint32_t)
LARGEOUT_FORWARD(bfloat16, uint16_t)
LARGEOUT_FORWARD(bfloat16, uint32_t)
#undef LARGEOUT_FORWARD

}  // namespace largeout
