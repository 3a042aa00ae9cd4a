// Hashing: categories, strings or integers of any number, as ids of a table of fixed size.
//
// It is for CPUs alone: strings never reach a GPU. So there is no CUDA code, and the ops are registered for
// DEVICE_CPU only.
//
// The hash is XXH64 (Yann Collet, the specification of xxHash, version 0.1.1): the numbers of any library of that
// name. What is hashed of a value:
//   a string: its bytes as they are, valid UTF-8 or not, zeros among them
//   an integer: its decimal digits, with a minus sign if it is negative: 7 and "7" are one category
//
// Ids of categories, with hashes j = 0 .. k - 1 of num_bins bins each:
//   one column:                 h_j = XXH64(value, seeds[j])
//   a cross of p > 1 columns:   h_j = XXH64(d_0 .. d_{p-1}, seeds[j]), d_q = XXH64(value of column q, 0),
//                               8 bytes each, the lowest first
//   ids[i, j] = j * num_bins + first + h_j mod (num_bins - first), unsigned; first is 0, or 1 if bin 0 means padding
//
// Speed: bytes = 24 for a short string (it is in its header) and 8 k for its ids; flops: about 20 multiplications
// and rotations of 64 bits for each hash of up to 16 bytes, which wait for each other (30 to 50 cycles); those of
// different values overlap.
#ifndef LARGEOUT_HASHING_HASHING_H_
#define LARGEOUT_HASHING_HASHING_H_

#include <cstdint>

#include "common/scratch.h"

namespace largeout {

struct Bytes {
  const char* data;
  int64_t size;
};

enum class CategoryKind { kStrings, kInt32, kInt64, kUint64 };

// The values of one feature. Owns nothing.
struct CategoryColumn {
  CategoryKind kind;
  const void* data;  // of integers: the array
  // Of strings: where the bytes of values [begin, begin + n) are.
  void (*view)(const void* data, int64_t begin, int64_t n, Bytes* out);
};

struct CategoryRules {
  const uint64_t* seeds;  // [k]
  int64_t k;
  int64_t num_bins;  // above `first`; k * num_bins < 2^63
  int64_t first;     // 0 or 1
};

// Methods return 0.
class HashingCpu {
 public:
  using Call = CpuCall;
  explicit HashingCpu(const CpuCall& call) : call_(call) {}

  // hashes[i] = XXH64 of value i.
  int Hash(const CategoryColumn& column, int64_t n, uint64_t seed, uint64_t* hashes);

  // ids [n, k] of the values, or of the cross of `p` columns.
  int Categories(const CategoryColumn* columns, int64_t p, int64_t n, const CategoryRules& rules,
                 int64_t* ids);

 private:
  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_HASHING_HASHING_H_
