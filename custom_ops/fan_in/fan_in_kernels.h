// The hot loops of fan_in, one table a concept and instruction-set level (see common/isa.h). Internal to the
// family.
//
// A *tile* is [n, width]: logits of a few classes for the examples of one block, or the gradients of these
// logits.
#ifndef LARGEOUT_FAN_IN_FAN_IN_KERNELS_H_
#define LARGEOUT_FAN_IN_FAN_IN_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/isa.h"
#include "fan_in/fan_in.h"

namespace largeout {

constexpr int kFanInMaxWidth = 32;

// Classes to compute: rows list[0 .. count) of weights and indices; list = null: rows 0 .. count.
struct FanInRows {
  const int32_t* list;
  int64_t count;
};

// fan_in_simd.cc
template <typename T, typename Id>
struct FanInKernels {
  // tile[i] = bias + weights . inputs of row i. inputs: a block, [inputs, width]. bias may be null.
  void (*logits)(const T* weights, const Id* indices, const float* bias, int64_t fan_in, FanInRows rows,
                 const float* inputs, int width, float* tile);
  // With g = tile[i], the gradient of the logits of row i: d_weights[row, k] = g . input of connection k,
  // d_bias[row] = sum of g, d_inputs [inputs, width] += weight * g. d_bias and one of d_weights and d_inputs
  // may be null; weights are read for d_inputs alone. 16 examples without gradient cost nothing.
  void (*backward)(const T* weights, const Id* indices, int64_t fan_in, FanInRows rows, const float* inputs,
                   int width, const float* tile, float* d_weights, float* d_bias, float* d_inputs);
  // The largest index of n, as an unsigned number; 0 of none.
  uint32_t (*max_index)(const Id* indices, int64_t n);
};

// fan_in_loss_simd.cc: what the classes that are no label of an example add to its loss. Where a class is a
// label, the tile holds -inf (a term of 0), and the caller adds the term of the label.
struct FanInLossKernels {
  // sum[lane] += max(0, 1 + z)^2; active[i] = whether row i has such a term in a lane below `lanes`.
  void (*hinge)(const float* tile, int64_t n, int width, int lanes, float* sum, uint8_t* active);
  // sum[lane] += softplus(z).
  void (*entropy)(const float* tile, int64_t n, int width, float* sum);
  // high[lane]: the maximum so far (start with -inf); total[lane]: the sum over this tile of exp(z - high).
  void (*softmax)(const float* tile, int64_t n, int width, float* high, float* total);
  // Gradients of these terms in place of the logits, times scale[lane]: 2 max(0, 1 + z), sigmoid(z), exp(z -
  // lse[lane]).
  void (*hinge_grad)(float* tile, int64_t n, int width, const float* scale);
  void (*entropy_grad)(float* tile, int64_t n, int width, const float* scale);
  void (*softmax_grad)(float* tile, int64_t n, int width, const float* scale, const float* lse);
  // Bit i: row i < n <= 32 has a value other than zero.
  uint32_t (*nonzero)(const float* tile, int64_t n, int width);
  // Bit l of bits[i]: in row i, the logit of example l < 32 is not <= bound[l] (NaN is not).
  void (*above)(const float* tile, int64_t n, int width, const float* bound, uint32_t* bits);
};

// fan_in_update_simd.cc: n weights (or biases) and their slots. element: the number of the first one, by
// which bfloat16 is rounded stochastically.
template <typename T>
using FanInUpdate = void (*)(T* weights, float* const* slots, const float* gradient, int64_t n,
                             const float* hyper, uint64_t key, uint64_t element);
struct FanInUpdateKernels {
  FanInUpdate<float> of_float[kFanInRules];
  FanInUpdate<bfloat16> of_bfloat16[kFanInRules];
};

using FanInFloatId16 = FanInKernels<float, uint16_t>;
using FanInFloatId32 = FanInKernels<float, uint32_t>;
using FanInBfloat16Id16 = FanInKernels<bfloat16, uint16_t>;
using FanInBfloat16Id32 = FanInKernels<bfloat16, uint32_t>;
LARGEOUT_DECLARE_LEVELS(FanInFloatId16, kFanInFloatId16)
LARGEOUT_DECLARE_LEVELS(FanInFloatId32, kFanInFloatId32)
LARGEOUT_DECLARE_LEVELS(FanInBfloat16Id16, kFanInBfloat16Id16)
LARGEOUT_DECLARE_LEVELS(FanInBfloat16Id32, kFanInBfloat16Id32)
LARGEOUT_DECLARE_LEVELS(FanInLossKernels, kFanInLoss)
LARGEOUT_DECLARE_LEVELS(FanInUpdateKernels, kFanInUpdate)

// The kernels of a layer's types at the level in use.
template <typename T, typename Id>
const FanInKernels<T, Id>& SelectFanIn();
template <>
inline const FanInFloatId16& SelectFanIn() {
  return LARGEOUT_SELECT(kFanInFloatId16);
}
template <>
inline const FanInFloatId32& SelectFanIn() {
  return LARGEOUT_SELECT(kFanInFloatId32);
}
template <>
inline const FanInBfloat16Id16& SelectFanIn() {
  return LARGEOUT_SELECT(kFanInBfloat16Id16);
}
template <>
inline const FanInBfloat16Id32& SelectFanIn() {
  return LARGEOUT_SELECT(kFanInBfloat16Id32);
}

// Candidates are int32; read as indices, a negative one is beyond all inputs.
inline const uint32_t* AsIndices(const int32_t* candidates) {
  return reinterpret_cast<const uint32_t*>(candidates);
}

inline FanInUpdate<float> SelectUpdate(FanInRule rule, float*) {
  return LARGEOUT_SELECT(kFanInUpdate).of_float[static_cast<int>(rule)];
}
inline FanInUpdate<bfloat16> SelectUpdate(FanInRule rule, bfloat16*) {
  return LARGEOUT_SELECT(kFanInUpdate).of_bfloat16[static_cast<int>(rule)];
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_KERNELS_H_
