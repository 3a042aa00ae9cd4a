// The terms of labels: the few (class, example) pairs that the vector loops leave to scalar code, and CUDA
// kernels to branches. Internal to the family.
#ifndef LARGEOUT_FAN_IN_FAN_IN_LOSS_TERMS_H_
#define LARGEOUT_FAN_IN_FAN_IN_LOSS_TERMS_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "fan_in/fan_in.h"
#include "fan_in/fan_in_random.h"

namespace largeout {

// The labels of a block in ascending rows, from `row` on.
class PositiveCursor {
 public:
  PositiveCursor(const FanInPositives& positives, int64_t block, int64_t row)
      : at_(positives.sorted.data() + positives.block_start[block]),
        end_(positives.sorted.data() + positives.block_start[block + 1]) {
    at_ = std::lower_bound(at_, end_, row, [](const FanInPositive& p, int64_t r) { return p.row < r; });
  }
  // The labels of rows below `row` that were not handed out yet: [first, last).
  void Until(int64_t row, const FanInPositive** first, const FanInPositive** last) {
    *first = at_;
    while (at_ != end_ && at_->row < row) ++at_;
    *last = at_;
  }

 private:
  const FanInPositive *at_, *end_;
};

// The term of a label of logit z and weight 1, and its gradient.
LARGEOUT_HOST_DEVICE inline double PositiveTerm(FanInLoss loss, double z) {
  if (loss == FanInLoss::kBinaryCrossentropy) return (z < 0 ? -z : 0.0) + std::log1p(std::exp(-std::fabs(z)));
  const double slack = 1.0 - z;
  return slack < 0 ? 0.0 : slack * slack;
}
LARGEOUT_HOST_DEVICE inline double PositiveGradient(FanInLoss loss, double z) {
  if (loss == FanInLoss::kBinaryCrossentropy) return -1.0 / (1.0 + std::exp(z));
  const double slack = 1.0 - z;
  return slack < 0 ? 0.0 : -2.0 * slack;
}

constexpr float kNoTerm = -std::numeric_limits<float>::infinity();  // a logit whose term as a non-label is 0

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_LOSS_TERMS_H_
