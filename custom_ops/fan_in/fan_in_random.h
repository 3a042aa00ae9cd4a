// The random numbers of fan_in: functions of a key and a counter, the same on every device and for any number
// of threads. keras_largeout/ops/fan_in/random.py has the same in NumPy.
#ifndef LARGEOUT_FAN_IN_FAN_IN_RANDOM_H_
#define LARGEOUT_FAN_IN_FAN_IN_RANDOM_H_

#include <cstdint>

#include "common/host_device.h"

#define LARGEOUT_ANYWHERE LARGEOUT_HOST_DEVICE inline

namespace largeout {

constexpr uint64_t kFanInGamma = 0x9e3779b97f4a7c15ull;

// The finaliser of SplitMix64, a bijection.
static LARGEOUT_ANYWHERE uint64_t FanInMix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The key of one call, from (seed, step).
static LARGEOUT_ANYWHERE uint64_t FanInKey(int64_t seed, int64_t step) {
  return FanInMix64(FanInMix64(static_cast<uint64_t>(seed) + kFanInGamma) + static_cast<uint64_t>(step));
}

// 32 random bits for `element`. The upper half of an element's number is folded into the key, so that vectors
// of elements need 32-bit arithmetic only.
static LARGEOUT_ANYWHERE uint32_t FanInFold(uint64_t key, uint32_t high) {
  return static_cast<uint32_t>(FanInMix64(key + kFanInGamma * high));
}
static LARGEOUT_ANYWHERE uint32_t FanInBits(uint32_t folded, uint32_t low) {
  uint32_t x = low * 0x9e3779b9u + folded;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
static LARGEOUT_ANYWHERE uint32_t FanInBits(uint64_t key, uint64_t element) {
  return FanInBits(FanInFold(key, static_cast<uint32_t>(element >> 32)), static_cast<uint32_t>(element));
}

// The numbers of class `item`: Below(n, limit) is in [0, limit), limit < 2^31.
struct FanInStream {
  LARGEOUT_ANYWHERE FanInStream(uint64_t key, int64_t item)
      : state(FanInMix64(key + kFanInGamma * (static_cast<uint64_t>(item) + 1))) {}
  LARGEOUT_ANYWHERE int64_t Below(int64_t n, int64_t limit) const {
    const uint64_t bits = FanInMix64(state + kFanInGamma * (static_cast<uint64_t>(n) + 1)) >> 32;
    return static_cast<int64_t>((bits * static_cast<uint64_t>(limit)) >> 32);
  }
  uint64_t state;
};

// The order in which connections are pruned: |weight|, among equal ones at random. 63 bits.
static LARGEOUT_ANYWHERE uint64_t FanInPruneKey(uint32_t float_bits, uint64_t key, uint64_t element) {
  return (static_cast<uint64_t>(float_bits & 0x7fffffffu) << 32) | FanInBits(key, element);
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_RANDOM_H_
