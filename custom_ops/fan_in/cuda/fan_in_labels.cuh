// Private to the .cu files of fan_in: the labels that a warp meets on its way through the classes.
#ifndef LARGEOUT_FAN_IN_FAN_IN_LABELS_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_LABELS_CUH_

#include "fan_in/cuda/fan_in_row.cuh"
#include "fan_in/fan_in_loss_terms.h"

namespace largeout {
namespace fan_in_gpu {

template <typename X>
int ToGpu(const std::vector<X>& from, const GpuCall& call, const X** to) {
  X* copy = call.scratch->Take<X>(static_cast<int64_t>(from.size()));
  *to = copy;
  return copy == nullptr ? kNoMemory
                         : CopyToDeviceCuda(from.data(), from.size() * sizeof(X), copy, call.stream);
}

// FanInPositives, which are sorted on the host, in device memory.
struct PositivesOnGpu {
  const FanInPositive* sorted = nullptr;
  const int64_t* block_start = nullptr;  // [blocks + 1]; null: there are no labels
};

inline int ToGpu(const FanInPositives& from, const GpuCall& call, PositivesOnGpu* to) {
  LARGEOUT_RETURN_IF_ERROR(ToGpu(from.sorted, call, &to->sorted));
  return ToGpu(from.block_start, call, &to->block_start);
}

// FanInGradients in device memory.
struct GradientsOnGpu {
  const float* logits = nullptr;  // [size, classes]; null: of a loss
  FanInLoss loss = FanInLoss::kSquaredHinge;
  PositivesOnGpu positives;
  const float *grad_loss = nullptr, *lse = nullptr, *mass = nullptr;
  const uint8_t* active = nullptr;
};

inline int ToGpu(const FanInGradients& from, const GpuCall& call, GradientsOnGpu* to) {
  *to = {from.logits, from.loss, {}, from.grad_loss, from.lse, from.mass, from.active};
  return from.positives == nullptr ? 0 : ToGpu(*from.positives, call, &to->positives);
}

// The place of a cursor: a label, and its row.
struct LabelPlace {
  int64_t at, row;  // kNoLabel: there are no more
};
constexpr int64_t kNoLabel = int64_t{1} << 62;

// The labels of a block from row `row` on. The same for all lanes of a warp.
class LabelCursor {
 public:
  __device__ LabelCursor(const PositivesOnGpu& positives, int64_t block, int64_t row)
      : positives_(positives), block_(block) {
    if (positives.block_start == nullptr) return;
    place_.at = positives.block_start[block];
    int64_t after = positives.block_start[block + 1];
    while (place_.at < after) {
      const int64_t middle = (place_.at + after) / 2;
      if (positives.sorted[middle].row < row) {
        place_.at = middle + 1;
      } else {
        after = middle;
      }
    }
    ReadRow();
  }
  // Goes on where another one, of the same block, was.
  __device__ LabelCursor(const PositivesOnGpu& positives, int64_t block, const LabelPlace& place)
      : positives_(positives), block_(block), place_(place) {}

  __device__ const LabelPlace& Place() const { return place_; }
  // Whether `row` is a label of `example`, and its weight. Rows must ascend from call to call.
  __device__ bool Find(int64_t row, int64_t example, float* weight) {
    bool found = false;
    while (place_.row <= row) {
      const FanInPositive& label = positives_.sorted[place_.at];
      if (place_.row == row && label.example == example) *weight = label.weight, found = true;
      ++place_.at;
      ReadRow();
    }
    return found;
  }

 private:
  __device__ void ReadRow() {
    const bool any = place_.at < positives_.block_start[block_ + 1];
    place_.row = any ? positives_.sorted[place_.at].row : kNoLabel;
  }

  const PositivesOnGpu& positives_;
  const int64_t block_;
  LabelPlace place_{0, kNoLabel};
};

// max(0, x); NaN stays NaN.
__device__ __forceinline__ float Positive(float x) { return 0.f > x ? 0.f : x; }

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_LABELS_CUH_
