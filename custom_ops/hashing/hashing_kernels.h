// Private to hashing: what hashing.cc hands to the loops of hashing_simd.cc.
#ifndef LARGEOUT_HASHING_HASHING_KERNELS_H_
#define LARGEOUT_HASHING_HASHING_KERNELS_H_

#include "common/isa.h"
#include "hashing/hashing.h"

namespace largeout {

// h mod bins without a division: with m = floor((2^64 - 1) / bins) and q the upper half of h * m, h / bins -
// q is below 2, so h - q * bins is the remainder or bins more.
struct Bins {
  uint64_t bins, m;
  int64_t first;  // added to the remainder
};

struct HashingKernels {
  // hashes[i * stride] = XXH64 of values[i].
  void (*hash)(const Bytes* values, int64_t n, uint64_t seed, int64_t stride, uint64_t* hashes);
  // ids[i * stride] = bins.first + XXH64 of values[i] mod bins.bins.
  void (*bin)(const Bytes* values, int64_t n, uint64_t seed, const Bins& bins, int64_t stride, int64_t* ids);
};

LARGEOUT_DECLARE_LEVELS(HashingKernels, kHashingKernels)

}  // namespace largeout

#endif  // LARGEOUT_HASHING_HASHING_KERNELS_H_
