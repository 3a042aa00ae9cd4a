// The forward pass of the losses: a warp goes through a range of classes for one block of examples; the sums
// of ranges meet in a fixed order. Terms are float32, sums float64. No logits are written.
#include "common/arena.h"
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_labels.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

// As many ranges as there are warps on 132 multiprocessors, 24 on each.
constexpr int64_t kMostRanges = 132 * 24, kLeastRows = 32;

// A range is a multiple of 8 rows: a byte of `active` belongs to one warp.
struct Ranges {
  explicit Ranges(int64_t classes)
      : rows(std::max(kLeastRows, ((classes + kMostRanges - 1) / kMostRanges + 7) / 8 * 8)),
        count((classes + rows - 1) / rows) {}
  int64_t rows, count;
};

// What a range adds: [blocks, ranges, width] each. The last three for softmax only.
struct RangeSums {
  RangeSums(const Ranges& ranges, const FanInBatch& batch, Arena* arena) {
    const int64_t n = ranges.count * batch.padded();
    loss = arena->Take<double>(n);  // softmax: sum over labels of weight * logit
    mass = arena->Take<double>(n);
    total = arena->Take<double>(n);  // sum of exp(logit - high)
    high = arena->Take<float>(n);
  }
  double *loss, *mass, *total;
  float* high;
};

struct LaneSums {
  double loss = 0, mass = 0, total = 0;
  float high = kNoTerm;

  // Adds the term of one class; returns whether it has a gradient other than zero.
  __device__ bool Add(FanInLoss kind, float z, bool label, float weight) {
    if (kind == FanInLoss::kSoftmax) {
      if (label) {
        loss += static_cast<double>(weight) * z;
        mass += weight;
      }
      if (z == kNoTerm) return true;
      if (z <= high) {
        total += expf(z - high);
      } else {  // also NaN, which stays
        total = total * expf(high - z) + 1.0;
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
};

template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads, 3)
    ForwardRanges(FanInLayer<T, Id> layer, FanInBatch batch, const float* blocks, FanInLoss loss,
                  FanInPositivesCuda positives, uint8_t* active, Ranges ranges, RangeSums sums,
                  Verdict* verdict) {
  __shared__ Connection stage[kWarps][32];
  const int lane = Lane(), width = batch.width;
  const Quads quads(width);
  const int64_t range = int64_t{blockIdx.x} * kWarps + Warp(), begin = range * ranges.rows,
                end = min(begin + ranges.rows, layer.classes);
  if (range >= ranges.count) return;
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width + lane;
    const bool used = lane < width && example < batch.size;
    uint8_t* bytes = active == nullptr ? nullptr : active + block * ((layer.classes + 7) / 8);
    LabelCursor labels(positives, block, begin);
    LaneSums own;
    unsigned byte = 0;
    for (int64_t row = begin; row < end; ++row) {
      float z, weight = 0.f;
      bool any = false;
      if (RowLogit(layer, row, blocks + block * batch.inputs * width, quads, stage[Warp()], &z)) {
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
    if (lane >= width) continue;
    const int64_t at = (block * ranges.count + range) * width + lane;
    sums.loss[at] = own.loss;
    if (loss != FanInLoss::kSoftmax) continue;
    sums.mass[at] = own.mass, sums.total[at] = own.total, sums.high[at] = own.high;
  }
}

// A warp an example; a lane takes every 32nd range.
__global__ void __launch_bounds__(kThreads)
    AddRanges(FanInBatch batch, FanInLoss loss, Ranges ranges, RangeSums sums, FanInLossOutputs out) {
  const int lane = Lane();
  const int64_t example = int64_t{blockIdx.x} * kWarps + Warp();
  if (example >= batch.size) return;
  const int64_t first = example / batch.width * ranges.count * batch.width + example % batch.width;
  double total = 0, mass = 0, exponentials = 0;
  float high = kNoTerm;
  for (int64_t r = lane; r < ranges.count; r += 32) {
    const int64_t at = first + r * batch.width;
    total += sums.loss[at];
    if (loss != FanInLoss::kSoftmax) continue;
    mass += sums.mass[at];
    if (!(sums.high[at] <= high)) high = sums.high[at];
  }
  total = WarpSum(total);
  if (loss == FanInLoss::kSoftmax) {
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(kAll, high, distance);
      if (!(other <= high)) high = other;
    }
    for (int64_t r = lane; r < ranges.count; r += 32) {
      const int64_t at = first + r * batch.width;
      if (sums.high[at] == kNoTerm) continue;  // exp(-inf) of every class
      exponentials += sums.total[at] * exp(static_cast<double>(sums.high[at]) - high);
    }
    mass = WarpSum(mass);
    const double lse = high + log(WarpSum(exponentials));
    if (lane == 0) out.lse[example] = static_cast<float>(lse), out.mass[example] = static_cast<float>(mass);
    total =
        mass == 0 && total == 0 ? 0.0 : mass * lse - total;  // without labels 0, though all logits be -inf
  }
  if (lane == 0) out.loss[example] = static_cast<float>(total);
}

}  // namespace
}  // namespace fan_in_gpu

using namespace fan_in_gpu;

int64_t FanInLossWorkspaceCuda(int64_t classes, const FanInBatch& batch) {
  Arena arena(nullptr);
  arena.Take<Verdict>(1);
  RangeSums(Ranges(classes), batch, &arena);
  return arena.bytes();
}

template <typename T, typename Id>
int FanInLossForwardCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                         FanInLoss loss, const FanInPositivesCuda& positives, const FanInLossOutputs& out,
                         void* workspace, GpuStream stream, int64_t* bad, LateReport* late) {
  *bad = -1;
  if (batch.size == 0) return 0;
  Arena arena(workspace);
  Verdict* verdict = arena.Take<Verdict>(1);
  const Ranges ranges(layer.classes);
  const RangeSums sums(ranges, batch, &arena);
  const int error = ClearVerdict(verdict, stream);
  if (error != 0) return error;
  if (ranges.count > 0) {
    LARGEOUT_RETURN_IF_ERROR(Launch(ForwardRanges<T, Id>, Grid(Blocks(ranges.count, kWarps), batch), kThreads,
                                    0, stream, layer, batch, blocks, loss, positives,
                                    loss == FanInLoss::kSquaredHinge ? out.active : nullptr, ranges, sums,
                                    verdict));
  }
  LARGEOUT_RETURN_IF_ERROR(
      Launch(AddRanges, Blocks(batch.size, kWarps), kThreads, 0, stream, batch, loss, ranges, sums, out));
  return EndWithVerdict(verdict, layer.inputs, stream, late, bad);
}

#define LARGEOUT_FORWARD(T, Id)                                                                           \
  template int FanInLossForwardCuda<T, Id>(const FanInLayer<T, Id>&, const FanInBatch&, const float*,     \
                                           FanInLoss, const FanInPositivesCuda&, const FanInLossOutputs&, \
                                           void*, GpuStream, int64_t*, LateReport*);
LARGEOUT_FORWARD(float, uint16_t)
LARGEOUT_FORWARD(float, uint32_t)
LARGEOUT_FORWARD(bfloat16, uint16_t)
LARGEOUT_FORWARD(bfloat16, uint32_t)
#undef LARGEOUT_FORWARD

}  // namespace largeout
