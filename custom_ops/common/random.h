// Random bits that are functions of a key and a counter: the same on every device and for any number of
// threads. keras_largeout/ops/random_bits.py has the same in NumPy. Functions are static: each instruction-set
// level keeps its own copy (cmake/check_isa_symbols.cmake).
#ifndef LARGEOUT_COMMON_RANDOM_H_
#define LARGEOUT_COMMON_RANDOM_H_

#include <cstdint>

#include "common/host_device.h"

namespace largeout {

constexpr uint64_t kGamma64 = 0x9e3779b97f4a7c15ull;
constexpr uint32_t kGamma32 = 0x9e3779b9u;

// The finalizer of SplitMix64, a bijection.
static LARGEOUT_HOST_DEVICE inline uint64_t Mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The key of one call, from (seed, step).
static LARGEOUT_HOST_DEVICE inline uint64_t RandomKey(int64_t seed, int64_t step) {
  return Mix64(Mix64(static_cast<uint64_t>(seed) + kGamma64) + static_cast<uint64_t>(step));
}

// The part of a counter that many elements share, a row for instance, in a key of 32 bits: with it vectors of
// elements need 32-bit arithmetic only.
static LARGEOUT_HOST_DEVICE inline uint32_t FoldKey(uint64_t key, uint64_t shared) {
  return static_cast<uint32_t>(Mix64(key + kGamma64 * shared));
}

// 32 random bits for element `low` of those that share a folded key.
static LARGEOUT_HOST_DEVICE inline uint32_t RandomBits(uint32_t folded, uint32_t low) {
  uint32_t x = low * kGamma32 + folded;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// The bfloat16 of the bits of a float32, rounded up with the probability of what is cut off: right in the
// mean. NaN stays NaN.
static LARGEOUT_HOST_DEVICE inline uint16_t RoundStochastically(uint32_t float_bits, uint32_t random) {
  if ((float_bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((float_bits + (random & 0xffffu)) >> 16);
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_RANDOM_H_
