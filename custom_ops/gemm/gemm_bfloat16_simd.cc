// The products in bfloat16, summed in float32 (AVX512-BF16: 64 flops per instruction, where float32 has 32).
// A word has two neighbours of the depth, the first in its lower half; where the depth is odd, the last upper
// half is 0. What comes as float32 is rounded to nearest even; the instructions take and give 0 for numbers
// below 2^-126.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 10
#pragma GCC target("avx512bf16")
#define LARGEOUT_BFLOAT16_PRODUCTS 1
#endif
#include "gemm/gemm_tiles.h"

namespace largeout {
namespace LARGEOUT_ISA {

namespace {

#if LARGEOUT_BFLOAT16_PRODUCTS
constexpr bool kPlain = false;

struct Pairs {
  LARGEOUT_INLINE VF Add(VF s, VF b, VF sum) {
    return (VF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)s, (__m512bh)b);
  }
};

// kLanes numbers in the lower halves of words.
LARGEOUT_INLINE __m512i Halves(const float* p, int n) {
  const __m512 x = (__m512)(n >= kLanes ? Load(p) : n > 0 ? LoadPart(p, n) : Zero());
  return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
}
LARGEOUT_INLINE __m512i Halves(const bfloat16* p, int n) {
  const __mmask16 mask = n >= kLanes ? 0xffff : n > 0 ? (__mmask16)((1u << n) - 1u) : 0;
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
}
LARGEOUT_INLINE VF Join(__m512i low, __m512i high) {
  return (VF)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// The first n of 2 kLanes numbers that follow each other, as kLanes words.
LARGEOUT_INLINE VF Words(const float* p, int n) {
  const auto at = [&](int from) {
    return (__m512)(n >= from + kLanes ? Load(p + from) : n > from ? LoadPart(p + from, n - from) : Zero());
  };
  return (VF)_mm512_cvtne2ps_pbh(at(kLanes), at(0));
}
LARGEOUT_INLINE VF Words(const bfloat16* p, int n) {
  const __mmask32 mask = n >= 2 * kLanes ? 0xffffffffu : (1u << n) - 1u;
  return (VF)_mm512_maskz_loadu_epi16(mask, p);
}

#else
constexpr bool kPlain = true;

struct Pairs {
  LARGEOUT_INLINE VF Low(VF x) { return (VF)((VU)x << 16); }
  LARGEOUT_INLINE VF High(VF x) { return (VF)((VU)x >> 16 << 16); }
  LARGEOUT_INLINE VF Add(VF s, VF b, VF sum) { return Fma(High(s), High(b), Fma(Low(s), Low(b), sum)); }
};

LARGEOUT_INLINE uint32_t Bits(float x) {
  bfloat16 rounded;
  FromFloat(x, &rounded);
  return rounded.bits;
}
LARGEOUT_INLINE uint32_t Bits(bfloat16 x) { return x.bits; }

template <typename T>
LARGEOUT_INLINE VU Halves(const T* p, int n) {
  VU halves = {};
  for (int i = 0; i < kLanes && i < n; ++i) halves[i] = Bits(p[i]);
  return halves;
}
LARGEOUT_INLINE VF Join(VU low, VU high) { return (VF)(low | high << 16); }

template <typename T>
LARGEOUT_INLINE VF Words(const T* p, int n) {
  VU words = {};
  for (int i = 0; i < 2 * kLanes && i < n; ++i) words[i / 2] |= Bits(p[i]) << (i % 2 * 16);
  return (VF)words;
}

#endif

template <typename T>
static void Pack(const T* x, int64_t ld, int64_t depth, int64_t n, float* panels) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t j = 0; j < n; j += kWidth) {
    float* out = panels + j * pairs;
    for (int64_t k = 0; k < depth; k += 2, out += kWidth) {
#pragma GCC unroll 2
      for (int w = 0; w < kVectors; ++w) {
        const T* from = x + k * ld + j + w * kLanes;
        const int left = static_cast<int>(n - j - w * kLanes < kLanes ? n - j - w * kLanes : kLanes);
        Store(out + w * kLanes, Join(Halves(from, left), Halves(from + ld, k + 1 < depth ? left : 0)));
      }
    }
  }
}

template <typename T>
static void PackTransposed(const T* x, int64_t ld, int64_t n, int64_t depth, float* panels) {
  PackTransposedWords(n, (depth + 1) / 2, panels, [&](int64_t row, int64_t first, int) {
    const int64_t left = depth - 2 * first;
    return Words(x + row * ld + 2 * first, static_cast<int>(left < 2 * kLanes ? left : 2 * kLanes));
  });
}

static void Left(const float* x, int64_t ld, int64_t m, int64_t depth, float* words, int64_t words_ld) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < depth; k += 2 * kLanes) {
      const int left = static_cast<int>(depth - k < 2 * kLanes ? depth - k : 2 * kLanes);
      const VF some = Words(x + i * ld + k, left);
      float* out = words + i * words_ld + k / 2;
      if (left == 2 * kLanes) {
        Store(out, some);
      } else {
        StorePart(out, some, (left + 1) / 2);
      }
    }
  }
}

static void LeftTransposed(const float* x, int64_t ld, int64_t depth, int64_t m, float* words,
                           int64_t words_ld) {
  for (int64_t k = 0; k < depth; k += 2) {
    const float* from = x + k * ld;
    for (int64_t j = 0; j < m; j += kLanes) {
      const int left = static_cast<int>(m - j < kLanes ? m - j : kLanes);
      const VF some = Join(Halves(from + j, left), Halves(from + ld + j, k + 1 < depth ? left : 0));
      float* out = words + k / 2 * words_ld + j;
      if (left == kLanes) {
        Store(out, some);
      } else {
        StorePart(out, some, left);
      }
    }
  }
}

}  // namespace

extern const GemmKernels kGemmBfloat16 = {kWidth,
                                          2,
                                          kPlain,
                                          &Pack<float>,
                                          &Pack<bfloat16>,
                                          &PackTransposed<float>,
                                          &PackTransposed<bfloat16>,
                                          &Left,
                                          &LeftTransposed,
                                          &Multiply<Pairs>};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
