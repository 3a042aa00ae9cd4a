// The hot loops of tree_softmax, one table a concept and instruction-set level (see common/isa.h). Internal to the family.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_KERNELS_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/isa.h"

namespace largeout {

// tree_softmax_dot_simd.cc
template <typename T>
struct TreeDotKernels {
  // out[i * ld + j] = dot(hidden row tokens[i], row j of `rows`) + bias[j], for i < m, j < n; bias may be null. tokens may be
  // null: row i.
  void (*dots)(const float* hidden, const int32_t* tokens, int64_t m, const T* rows, int64_t n, int64_t dim,
               const float* bias, float* out, int64_t ld);
  // Starts loading rows [0, n).
  void (*prefetch)(const T* rows, int64_t n, int64_t dim);
};

// tree_softmax_sum_simd.cc: C[i] (+)= sum over k of a[i * a_row + k * a_k] * B[k], for i < m, k < depth, over `dim`
// columns. `add`: to what C holds; otherwise C is not read. Rows of B and C are given by pointers.
template <typename B, typename C>
using TreeSum = void (*)(int64_t m, int64_t depth, int64_t dim, const float* a, int64_t a_row, int64_t a_k,
                         const B* const* b, C* const* c, bool add);
struct TreeSumKernels {
  TreeSum<float, float> from_float;
  TreeSum<bfloat16, float> from_bfloat16;
  TreeSum<float, bfloat16> to_bfloat16;  // depth <= kTreeSumDepth, add = false
};
constexpr int64_t kTreeSumDepth = 64;

// tree_softmax_exp_simd.cc
struct TreeExpKernels {
  // Rows of logits [m, n] (row stride ld) become probabilities in place; lse[i]; ce[i] = lse[i] - logit of target[i].
  void (*softmax)(float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first, float* lse,
                  float* ce);
  // One block of columns of a softmax whose rows do not fit: high[i], total[i] become max and sum of exp(logit - max) so far
  // (start with -inf and 0); picked[i] the logit of target[i] - first where this block holds it.
  void (*online)(const float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first, float* high,
                 float* total, float* picked);
  // exp(logit - lse[i]) in place.
  void (*normalize)(float* logits, int64_t ld, int64_t m, int64_t n, const float* lse);
  // out[i * ld_out + j] = (probs[i * ld + j] - (j == target[i] - first)) * scale[i]. out may be probs.
  void (*gradient)(const float* probs, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first,
                   const float* scale, float* out, int64_t ld_out);
  // out[j] (+)= sum over i < m of in[i * ld + j].
  void (*column_sums)(const float* in, int64_t ld, int64_t m, int64_t n, float* out, bool add);
  void (*to_floats)(const bfloat16* in, int64_t n, float* out);
  void (*from_floats)(const float* in, int64_t n, bfloat16* out);
};

LARGEOUT_DECLARE_LEVELS(TreeDotKernels<float>, kTreeDotFloat)
LARGEOUT_DECLARE_LEVELS(TreeDotKernels<bfloat16>, kTreeDotBfloat16)
LARGEOUT_DECLARE_LEVELS(TreeSumKernels, kTreeSum)
LARGEOUT_DECLARE_LEVELS(TreeExpKernels, kTreeExp)

// The kernels of a table's type at the level in use.
template <typename T>
struct TreeKernels;
template <>
struct TreeKernels<float> {
  const TreeDotKernels<float>& dot = LARGEOUT_SELECT(kTreeDotFloat);
  const TreeExpKernels& exp = LARGEOUT_SELECT(kTreeExp);
  const TreeSumKernels& sum = LARGEOUT_SELECT(kTreeSum);
  TreeSum<float, float> rows_to_hidden = sum.from_float;
  TreeSum<float, float> hidden_to_rows = sum.from_float;
};
template <>
struct TreeKernels<bfloat16> {
  const TreeDotKernels<bfloat16>& dot = LARGEOUT_SELECT(kTreeDotBfloat16);
  const TreeExpKernels& exp = LARGEOUT_SELECT(kTreeExp);
  const TreeSumKernels& sum = LARGEOUT_SELECT(kTreeSum);
  TreeSum<bfloat16, float> rows_to_hidden = sum.from_bfloat16;
  TreeSum<float, bfloat16> hidden_to_rows = sum.to_bfloat16;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_KERNELS_H_
