// Products of classes with the inputs they are connected to, and their gradients.
//
// Gathers from the caches bound both. The processor's own reordering keeps enough of them under way, and
// requesting inputs early costs more than it brings; the gradients of the inputs, which are read and written,
// are requested two rows ahead.
#include "common/simd.h"
#include "fan_in/fan_in_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

constexpr int kHalf = 16;  // examples that are skipped together where they have no gradient
constexpr int64_t kAhead = 2;

LARGEOUT_INLINE int64_t RowOf(const FanInRows& rows, int64_t i) {
  return rows.list != nullptr ? rows.list[i] : i;
}

template <int NV, typename T, typename Id>
LARGEOUT_INLINE void Logits(const T* weights, const Id* indices, const float* bias, int64_t fan_in,
                            const FanInRows& rows, const float* inputs, float* tile) {
  constexpr int kWidth = NV * kLanes;
  // Two sums a logit: in one chain of multiply-adds each waits for the one before, and rounding adds up.
  // Where there are no registers for two, one half of the connections comes after the other.
  constexpr int kSums = NV <= 4 ? 2 : 1;
  constexpr int kPasses = 2 / kSums;
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = RowOf(rows, i);
    const T* weight = weights + row * fan_in;
    const Id* index = indices + row * fan_in;
    int64_t k = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      VF sums[kSums][NV];
      for (int v = 0; v < NV; ++v) {
        sums[0][v] = bias != nullptr && pass == 0 ? Set(bias[row]) : Zero();
        for (int s = 1; s < kSums; ++s) sums[s][v] = Zero();
      }
      const int64_t stop = pass + 1 < kPasses ? fan_in / kPasses : fan_in;
      for (; k + kSums <= stop; k += kSums) {
        for (int s = 0; s < kSums; ++s) {
          const VF w = Set(ToFloat(weight[k + s]));
          const float* input = inputs + static_cast<int64_t>(index[k + s]) * kWidth;
          for (int v = 0; v < NV; ++v) sums[s][v] = Fma(w, Load(input + v * kLanes), sums[s][v]);
        }
      }
      for (; k < stop; ++k) {
        const VF w = Set(ToFloat(weight[k]));
        const float* input = inputs + static_cast<int64_t>(index[k]) * kWidth;
        for (int v = 0; v < NV; ++v) sums[0][v] = Fma(w, Load(input + v * kLanes), sums[0][v]);
      }
      for (int v = 0; v < NV; ++v) {
        VF sum = sums[0][v];
        for (int s = 1; s < kSums; ++s) sum += sums[s][v];
        float* logit = tile + i * kWidth + v * kLanes;
        Store(logit, pass == 0 ? sum : sum + Load(logit));
      }
    }
  }
}

// Lane i of the result: the sum of the lanes of v[i].
LARGEOUT_INLINE VF SumEach(const VF* v) {
#if defined(__AVX512F__)
  __m512 quad[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 a = (__m512)v[4 * i], b = (__m512)v[4 * i + 1], c = (__m512)v[4 * i + 2],
                 d = (__m512)v[4 * i + 3];
    const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    quad[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                            _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  }
  const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x88),
                                   _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd));
  const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x88),
                                    _mm512_shuffle_f32x4(quad[2], quad[3], 0xdd));
  return (VF)_mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
#elif defined(__AVX2__)
  __m256 quad[2];
  for (int i = 0; i < 2; ++i) {
    quad[i] = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[4 * i], (__m256)v[4 * i + 1]),
                             _mm256_hadd_ps((__m256)v[4 * i + 2], (__m256)v[4 * i + 3]));
  }
  return (VF)_mm256_add_ps(_mm256_permute2f128_ps(quad[0], quad[1], 0x20),
                           _mm256_permute2f128_ps(quad[0], quad[1], 0x31));
#else
  VF sums;
  for (int i = 0; i < kLanes; ++i) sums[i] = SumLanes(v[i]);
  return sums;
#endif
}

// One row, for NV vectors of examples that begin at inputs, g and d_inputs; kWidth apart from one input to
// the next.
template <int NV, int kWidth, bool kWeights, bool kInputs, typename T, typename Id>
LARGEOUT_INLINE void BackwardRow(const T* weight, const Id* index, int64_t fan_in, const float* inputs,
                                 const float* gradient, float* d_weight, float* d_inputs) {
  VF g[NV];
  for (int v = 0; v < NV; ++v) g[v] = Load(gradient + v * kLanes);
  const auto product = [&](int64_t k) __attribute__((always_inline)) {
    const int64_t at = static_cast<int64_t>(index[k]) * kWidth;
    VF sum = Zero();
    if constexpr (kWeights) {
      sum = g[0] * Load(inputs + at);
      for (int v = 1; v < NV; ++v) sum = Fma(g[v], Load(inputs + at + v * kLanes), sum);
    }
    if constexpr (kInputs) {
      const VF w = Set(ToFloat(weight[k]));
      float* d = d_inputs + at;
      for (int v = 0; v < NV; ++v) Store(d + v * kLanes, Fma(w, g[v], Load(d + v * kLanes)));
    }
    return sum;
  };
  if constexpr (!kWeights) {
    for (int64_t k = 0; k < fan_in; ++k) product(k);
    return;
  }
  VF products[kLanes];
  int64_t k = 0;
  for (; k + kLanes <= fan_in; k += kLanes) {
    for (int j = 0; j < kLanes; ++j) products[j] = product(k + j);
    Store(d_weight + k, SumEach(products));
  }
  if (k < fan_in) {
    const int count = static_cast<int>(fan_in - k);
    for (int j = 0; j < kLanes; ++j) products[j] = Zero();
    for (int j = 0; j < count; ++j) products[j] = product(k + j);
    StorePart(d_weight + k, SumEach(products), count);
  }
}

LARGEOUT_INLINE bool AnyNonzero(const float* x) {
  VI any = Load(x) != Zero();
  for (int i = kLanes; i < kHalf; i += kLanes) any |= Load(x + i) != Zero();
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)any, (__m512i)any) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)any, (__m256i)any) == 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= any[i];
  return all != 0;
#endif
}

template <int kWidth, bool kWeights, bool kInputs, typename T, typename Id>
LARGEOUT_INLINE void Backward(const T* weights, const Id* indices, int64_t fan_in, const FanInRows& rows,
                              const float* inputs, const float* tile, float* d_weights, float* d_bias,
                              float* d_inputs) {
  constexpr int kHalfVectors = kHalf / kLanes;
  for (int64_t i = 0; i < rows.count; ++i) {
    if constexpr (kInputs) {
      if (i + kAhead < rows.count) {
        const Id* ahead = indices + RowOf(rows, i + kAhead) * fan_in;
        for (int64_t k = 0; k < fan_in; ++k)
          PrefetchRow(d_inputs + static_cast<int64_t>(ahead[k]) * kWidth, kWidth * 4);
      }
    }
    const int64_t row = RowOf(rows, i);
    const T* weight = weights + row * fan_in;
    const Id* index = indices + row * fan_in;
    const float* g = tile + i * kWidth;
    float* out = kWeights ? d_weights + row * fan_in : nullptr;
    if (kWidth == 2 * kHalf && !AnyNonzero(g)) {
      BackwardRow<kHalfVectors, kWidth, kWeights, kInputs>(weight, index, fan_in, inputs + kHalf, g + kHalf,
                                                           out, d_inputs + kHalf);
    } else if (kWidth == 2 * kHalf && AnyNonzero(g + kHalf)) {
      BackwardRow<kWidth / kLanes, kWidth, kWeights, kInputs>(weight, index, fan_in, inputs, g, out,
                                                              d_inputs);
    } else {
      BackwardRow<kHalfVectors, kWidth, kWeights, kInputs>(weight, index, fan_in, inputs, g, out, d_inputs);
    }
    if (d_bias != nullptr) {
      VF sum = Load(g);
      for (int v = kLanes; v < kWidth; v += kLanes) sum += Load(g + v);
      d_bias[row] = SumLanes(sum);
    }
  }
}

template <typename T, typename Id>
void AnyLogits(const T* weights, const Id* indices, const float* bias, int64_t fan_in, FanInRows rows,
               const float* inputs, int width, float* tile) {
  if (width == kHalf) return Logits<kHalf / kLanes>(weights, indices, bias, fan_in, rows, inputs, tile);
  Logits<2 * kHalf / kLanes>(weights, indices, bias, fan_in, rows, inputs, tile);
}

template <int kWidth, typename T, typename Id>
LARGEOUT_INLINE void WidthBackward(const T* weights, const Id* indices, int64_t fan_in, const FanInRows& rows,
                                   const float* inputs, const float* tile, float* d_weights, float* d_bias,
                                   float* d_inputs) {
  if (d_inputs == nullptr) {
    Backward<kWidth, true, false>(weights, indices, fan_in, rows, inputs, tile, d_weights, d_bias, d_inputs);
  } else if (d_weights == nullptr) {
    Backward<kWidth, false, true>(weights, indices, fan_in, rows, inputs, tile, d_weights, d_bias, d_inputs);
  } else {
    Backward<kWidth, true, true>(weights, indices, fan_in, rows, inputs, tile, d_weights, d_bias, d_inputs);
  }
}

template <typename T, typename Id>
void AnyBackward(const T* weights, const Id* indices, int64_t fan_in, FanInRows rows, const float* inputs,
                 int width, const float* tile, float* d_weights, float* d_bias, float* d_inputs) {
  if (width == kHalf) {
    WidthBackward<kHalf>(weights, indices, fan_in, rows, inputs, tile, d_weights, d_bias, d_inputs);
  } else {
    WidthBackward<2 * kHalf>(weights, indices, fan_in, rows, inputs, tile, d_weights, d_bias, d_inputs);
  }
}

template <typename Id>
uint32_t MaxIndex(const Id* indices, int64_t n) {
  uint32_t high = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t index = static_cast<uint32_t>(indices[i]);
    high = index > high ? index : high;
  }
  return high;
}

}  // namespace

extern const FanInFloatId16 kFanInFloatId16 = {&AnyLogits<float, uint16_t>, &AnyBackward<float, uint16_t>,
                                               &MaxIndex<uint16_t>};
extern const FanInFloatId32 kFanInFloatId32 = {&AnyLogits<float, uint32_t>, &AnyBackward<float, uint32_t>,
                                               &MaxIndex<uint32_t>};
extern const FanInBfloat16Id16 kFanInBfloat16Id16 = {&AnyLogits<bfloat16, uint16_t>,
                                                     &AnyBackward<bfloat16, uint16_t>, &MaxIndex<uint16_t>};
extern const FanInBfloat16Id32 kFanInBfloat16Id32 = {&AnyLogits<bfloat16, uint32_t>,
                                                     &AnyBackward<bfloat16, uint32_t>, &MaxIndex<uint32_t>};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
