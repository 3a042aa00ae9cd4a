// The random numbers of fan_in: functions of a key and a counter, the same on every device and for any number
// of threads. keras_largeout/ops/fan_in/random.py has the same in NumPy.
#ifndef LARGEOUT_FAN_IN_FAN_IN_RANDOM_H_
#define LARGEOUT_FAN_IN_FAN_IN_RANDOM_H_

#include <cstdint>

#include "common/random.h"

namespace largeout {

// 32 random bits for `element`.
static LARGEOUT_HOST_DEVICE inline uint32_t FanInBits(uint64_t key, uint64_t element) {
  return RandomBits(FoldKey(key, element >> 32), static_cast<uint32_t>(element));
}

// The numbers of class `item`: Below(n, limit) is in [0, limit), limit < 2^31.
struct FanInStream {
  LARGEOUT_HOST_DEVICE FanInStream(uint64_t key, int64_t item)
      : state(Mix64(key + kGamma64 * (static_cast<uint64_t>(item) + 1))) {}
  LARGEOUT_HOST_DEVICE int64_t Below(int64_t n, int64_t limit) const {
    const uint64_t bits = Mix64(state + kGamma64 * (static_cast<uint64_t>(n) + 1)) >> 32;
    return static_cast<int64_t>((bits * static_cast<uint64_t>(limit)) >> 32);
  }
  uint64_t state;
};

// The order in which connections are pruned: |weight|, among equal ones at random. 63 bits.
static LARGEOUT_HOST_DEVICE inline uint64_t FanInPruneKey(uint32_t float_bits, uint64_t key,
                                                          uint64_t element) {
  return (static_cast<uint64_t>(float_bits & 0x7fffffffu) << 32) | FanInBits(key, element);
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_RANDOM_H_
