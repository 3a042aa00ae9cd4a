// The arithmetic of positions, one id at a time, for the CPU and the GPU. Internal.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_POSITION_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_POSITION_H_

#include "common/host_device.h"
#include "exchange/exchange.h"

namespace largeout {

// x / d and x % d of 64-bit numbers by one multiplication: a division costs several times as much.
struct Divisor {
  uint64_t d, inverse;
  explicit Divisor(int64_t divisor) : d(static_cast<uint64_t>(divisor)), inverse(~uint64_t{0} / d) {}
  LARGEOUT_HOST_DEVICE uint64_t Divide(uint64_t x, uint64_t* remainder) const {
    // inverse is at most 1 below 2^64 / d, so the quotient is at most 1 too small.
    uint64_t quotient = static_cast<uint64_t>((static_cast<unsigned __int128>(x) * inverse) >> 64);
    *remainder = x - quotient * d;
    if (*remainder >= d) *remainder -= d, ++quotient;
    return quotient;
  }
};

// The position of a row in [0, rows), were it not hot.
class ColdPosition {
 public:
  explicit ColdPosition(const PlacementView& placement)
      : placement_(placement),
        divisor_(placement.kind == PlacementKind::kModulo ? placement.shards : Max1(placement.rows)) {}

  LARGEOUT_HOST_DEVICE int64_t operator()(int64_t row) const {
    uint64_t rest;
    switch (placement_.kind) {
      case PlacementKind::kModulo: {
        const uint64_t local = divisor_.Divide(static_cast<uint64_t>(row), &rest);
        return placement_.offsets[rest] + static_cast<int64_t>(local);
      }
      case PlacementKind::kPermutation:
        divisor_.Divide(static_cast<uint64_t>(row) * placement_.multiplier + placement_.addend, &rest);
        return placement_.num_hot + static_cast<int64_t>(rest);
      case PlacementKind::kExplicit:
        return placement_.position_of[row];
      default:
        return placement_.num_hot + row;
    }
  }

 private:
  static int64_t Max1(int64_t x) { return x < 1 ? 1 : x; }
  PlacementView placement_;
  Divisor divisor_;
};

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_POSITION_H_
