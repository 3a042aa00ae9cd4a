// The hot loops of gemm.h, one table per type of the products and instruction-set level (isa.h).
#ifndef LARGEOUT_GEMM_GEMM_KERNELS_H_
#define LARGEOUT_GEMM_GEMM_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/isa.h"

namespace largeout {

// gemm_simd.cc in float32, gemm_bfloat16_simd.cc in bfloat16. Depth comes in *words* of 32 bits: one float,
// or two neighbours in bfloat16. A *panel* is `width` columns of a matrix, packed: words of the depth x width
// of them, aligned to 64 bytes, with zeros beyond the matrix.
struct GemmKernels {
  int64_t width;     // columns of a panel, 8 .. 32
  int64_t per_word;  // 1 or 2
  bool plain;        // by instructions that every machine has, and slow: for tests
  int64_t Words(int64_t depth) const { return (depth + per_word - 1) / per_word; }
  // Panels of the matrix x [depth, n] (row stride ld): panel j has the columns j * width ...
  void (*pack)(const float* x, int64_t ld, int64_t depth, int64_t n, float* panels);
  void (*pack_bfloat16)(const bfloat16* x, int64_t ld, int64_t depth, int64_t n, float* panels);
  // Panels of the transposed matrix: x is [n, depth].
  void (*pack_transposed)(const float* x, int64_t ld, int64_t n, int64_t depth, float* panels);
  void (*pack_transposed_bfloat16)(const bfloat16* x, int64_t ld, int64_t n, int64_t depth, float* panels);
  // The left matrix x [m, depth] as words [m, words of the depth]; and as words [words of the depth, m] where
  // x is [depth, m] (null where a word is a float: x itself is that).
  void (*left)(const float* x, int64_t ld, int64_t m, int64_t depth, float* words, int64_t words_ld);
  void (*left_transposed)(const float* x, int64_t ld, int64_t depth, int64_t m, float* words,
                          int64_t words_ld);
  // c[i * ld + j] (+)= addend[j] + sum over k of a[i * a_row + k * a_k] * B[k, j], for i < m, j < n, k <
  // depth, which counts words. `addend` may be null: zeros. `add`: to what c holds; otherwise c is not read.
  void (*multiply)(int64_t m, int64_t n, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                   const float* panels, const float* addend, float* c, int64_t ld, bool add);
};

LARGEOUT_DECLARE_LEVELS(GemmKernels, kGemmFloat)
LARGEOUT_DECLARE_LEVELS(GemmKernels, kGemmBfloat16)

}  // namespace largeout

#endif  // LARGEOUT_GEMM_GEMM_KERNELS_H_
