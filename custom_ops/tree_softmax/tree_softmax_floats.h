// Hidden vectors in float32, as the kernels of a CPU take them. Internal.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_FLOATS_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_FLOATS_H_

#include <type_traits>

#include "tree_softmax/tree_softmax.h"

namespace largeout {

// bfloat16 <-> float32, vectorised.
void ToFloats(const bfloat16* in, int64_t n, float* out, Parallel* parallel);
void FromFloats(const float* in, int64_t n, bfloat16* out, Parallel* parallel);

// Vectors as float32: themselves, or a copy.
inline int Floats(const float* in, int64_t, const CpuCall&, const float** out) {
  *out = in;
  return 0;
}
inline int Floats(const bfloat16* in, int64_t n, const CpuCall& call, const float** out) {
  float* copy = call.scratch->Take<float>(n);
  if (copy == nullptr) return kNoMemory;
  ToFloats(in, n, copy, call.parallel);
  *out = copy;
  return 0;
}

// The table beside hidden vectors of type H.
template <typename H, typename T>
TreeTable<T> TableFor(TreeTable<T> table) {
  table.in_bfloat16 = std::is_same_v<H, bfloat16>;
  return table;
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_FLOATS_H_
