// Matrix products on packed panels: for the full softmax, and for wide nodes of trees in bfloat16.
#ifndef LARGEOUT_GEMM_GEMM_H_
#define LARGEOUT_GEMM_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "common/tasks.h"
#include "gemm/gemm_kernels.h"

namespace largeout {

// The products in bfloat16, or null where the machine has none (or the level in use is lower).
const GemmKernels* Bfloat16Products();
// For tests: where the machine has none, those of plain instructions take their place.
void UsePlainBfloat16Products(bool use);

// In bfloat16 where that is asked for and the machine has it.
inline const GemmKernels& Products(bool in_bfloat16) {
  const GemmKernels* halves = in_bfloat16 ? Bfloat16Products() : nullptr;
  return halves != nullptr ? *halves : LARGEOUT_SELECT(kGemmFloat);
}

// GemmKernels::pack and pack_transposed, by the type of the matrix.
inline void Pack(const GemmKernels& gemm, const float* x, int64_t ld, int64_t depth, int64_t n,
                 float* panels) {
  gemm.pack(x, ld, depth, n, panels);
}
inline void Pack(const GemmKernels& gemm, const bfloat16* x, int64_t ld, int64_t depth, int64_t n,
                 float* panels) {
  gemm.pack_bfloat16(x, ld, depth, n, panels);
}
inline void PackTransposed(const GemmKernels& gemm, const float* x, int64_t ld, int64_t n, int64_t depth,
                           float* panels) {
  gemm.pack_transposed(x, ld, n, depth, panels);
}
inline void PackTransposed(const GemmKernels& gemm, const bfloat16* x, int64_t ld, int64_t n, int64_t depth,
                           float* panels) {
  gemm.pack_transposed_bfloat16(x, ld, n, depth, panels);
}

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// An odd number of cache lines: rows are then in different sets of the cache, whatever their number of
// elements.
inline int64_t OddLines(int64_t floats) { return (std::max<int64_t>(floats, 1) + 15) / 16 / 2 * 32 + 16; }

// At least n floats, which share a cache line with nothing else.
inline float* Aligned(Buffer<float>* buffer, int64_t n) {
  float* data = buffer->Get(n + 16);
  return data + (64 - reinterpret_cast<uintptr_t>(data) % 64) % 64 / sizeof(float);
}

struct LeftMatrix {
  const float* data;
  int64_t row, k;  // strides
};

// The matrix g [m, width], whose rows are ld apart.
inline LeftMatrix LeftOf(const GemmKernels& gemm, const float* g, int64_t ld, int64_t m, int64_t width,
                         Buffer<float>* memory) {
  if (gemm.per_word == 1) return {g, ld, 1};
  const int64_t words_ld = OddLines(gemm.Words(width));
  float* words = Aligned(memory, m * words_ld);
  gemm.left(g, ld, m, width, words, words_ld);
  return {words, words_ld, 1};
}

// The same, transposed.
inline LeftMatrix TransposedOf(const GemmKernels& gemm, const float* g, int64_t ld, int64_t m, int64_t width,
                               Buffer<float>* memory) {
  if (gemm.per_word == 1) return {g, 1, ld};
  float* words = Aligned(memory, gemm.Words(m) * ld);
  gemm.left_transposed(g, ld, m, width, words, ld);
  return {words, 1, ld};
}

}  // namespace largeout

#endif  // LARGEOUT_GEMM_GEMM_H_
