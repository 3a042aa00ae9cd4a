// The products of full_softmax: in which type they are, and gradients of logits as their left side.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_H_

#include "full_softmax/full_softmax_blocks.h"

namespace largeout {

// In bfloat16 where that is asked for and the machine has it.
inline const SoftmaxGemmKernels& SoftmaxProducts(bool in_bfloat16) {
  const SoftmaxGemmKernels& halves = LARGEOUT_SELECT(kSoftmaxGemmBfloat16);
  const bool has = CurrentIsa() == Isa::kV4Bfloat16 && halves.per_word > 0;
  return in_bfloat16 && has ? halves : LARGEOUT_SELECT(kSoftmaxGemm);
}

struct LeftMatrix {
  const float* data;
  int64_t row, k;  // strides
};

// Gradients of logits g [m, width], whose rows are ld apart.
inline LeftMatrix LeftOf(const SoftmaxGemmKernels& gemm, const float* g, int64_t ld, int64_t m, int64_t width,
                         BlockScratch* scratch) {
  if (gemm.per_word == 1) return {g, ld, 1};
  const int64_t words_ld = OddLines(gemm.Words(width));
  float* words = Aligned(&scratch->words, m * words_ld);
  gemm.left(g, ld, m, width, words, words_ld);
  return {words, words_ld, 1};
}

// The same, transposed.
inline LeftMatrix TransposedOf(const SoftmaxGemmKernels& gemm, const float* g, int64_t ld, int64_t m,
                               int64_t width, BlockScratch* scratch) {
  if (gemm.per_word == 1) return {g, 1, ld};
  float* words = Aligned(&scratch->turned, gemm.Words(m) * ld);
  gemm.left_transposed(g, ld, m, width, words, ld);
  return {words, 1, ld};
}

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_PRODUCTS_H_
