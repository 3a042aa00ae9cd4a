// Losses of tiles of logits, lane by lane, and their gradients.
#include <math.h>

#include "common/simd_math.h"
#include "fan_in/fan_in_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

LARGEOUT_INLINE bool Any(VI mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
#endif
}

LARGEOUT_INLINE VI LaneIds() {
  VI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane;
}

// max(0, x); NaN stays NaN.
LARGEOUT_INLINE VF Positive(VF x) { return Zero() > x ? Zero() : x; }

LARGEOUT_INLINE VF Minus(VF x) { return (VF)((VU)x | 0x80000000u); }  // -|x|

void Hinge(const float* tile, int64_t n, int width, int lanes, float* sum, uint8_t* active) {
  for (int64_t i = 0; i < n; ++i) active[i] = 0;
  for (int v = 0; v < width; v += kLanes) {
    VF total = Load(sum + v);
    const VI used = LaneIds() + v < lanes;
    for (int64_t i = 0; i < n; ++i) {
      const VF slack = Positive(Set(1.f) + Load(tile + i * width + v));
      total = Fma(slack, slack, total);
      active[i] |= Any((slack != Zero()) & used);
    }
    Store(sum + v, total);
  }
}

void Entropy(const float* tile, int64_t n, int width, float* sum) {
  for (int v = 0; v < width; v += kLanes) {
    VF total = Load(sum + v);
    for (int64_t i = 0; i < n; ++i) {
      const VF z = Load(tile + i * width + v);
      total += Positive(z) + Log1p(Exp(Minus(z)));
    }
    Store(sum + v, total);
  }
}

void Softmax(const float* tile, int64_t n, int width, float* high, float* total) {
  for (int v = 0; v < width; v += kLanes) {
    VF top = Load(high + v);
    for (int64_t i = 0; i < n; ++i) top = Max(top, Load(tile + i * width + v));
    // -inf so far and in this tile: a sum of exp(-inf) = 0, not of exp(-inf + inf).
    const VF shift = top == Set(-INFINITY) ? Zero() : top;
    VF sum = Zero();
    for (int64_t i = 0; i < n; ++i) sum += Exp(Load(tile + i * width + v) - shift);
    Store(high + v, top);
    Store(total + v, sum);
  }
}

void HingeGrad(float* tile, int64_t n, int width, const float* scale) {
  for (int v = 0; v < width; v += kLanes) {
    const VF s = Load(scale + v) * Set(2.f);
    for (float* z = tile + v; z < tile + n * width; z += width) Store(z, Positive(Set(1.f) + Load(z)) * s);
  }
}

void EntropyGrad(float* tile, int64_t n, int width, const float* scale) {
  for (int v = 0; v < width; v += kLanes) {
    const VF s = Load(scale + v);
    for (float* at = tile + v; at < tile + n * width; at += width) {
      const VF z = Load(at), e = Exp(Minus(z));
      Store(at, (z < Zero() ? e : Set(1.f)) / (Set(1.f) + e) * s);
    }
  }
}

void SoftmaxGrad(float* tile, int64_t n, int width, const float* scale, const float* lse) {
  for (int v = 0; v < width; v += kLanes) {
    const VF s = Load(scale + v), shift = Load(lse + v);
    for (float* z = tile + v; z < tile + n * width; z += width) {
      const VF log_prob = Load(z) - shift;
      Store(z, Exp(log_prob > Zero() ? Zero() : log_prob) * s);  // above zero by rounding alone
    }
  }
}

uint32_t Nonzero(const float* tile, int64_t n, int width) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < n; ++i) {
    VI any = {};
    for (int v = 0; v < width; v += kLanes) any |= Load(tile + i * width + v) != Zero();
    bits |= static_cast<uint32_t>(Any(any)) << i;
  }
  return bits;
}

void Above(const float* tile, int64_t n, int width, const float* bound, uint32_t* bits) {
  for (int64_t i = 0; i < n; ++i) bits[i] = 0;
  for (int v = 0; v < width; v += kLanes) {
    const VF least = Load(bound + v);
    for (int64_t i = 0; i < n; ++i) {
      const VI above = ~(VI)(Load(tile + i * width + v) <= least);
      if (!Any(above)) continue;
      for (int l = 0; l < kLanes; ++l) bits[i] |= static_cast<uint32_t>(above[l] & 1) << (v + l);
    }
  }
}

}  // namespace

extern const FanInLossKernels kFanInLoss = {&Hinge,       &Entropy,     &Softmax, &HingeGrad,
                                            &EntropyGrad, &SoftmaxGrad, &Nonzero, &Above};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
