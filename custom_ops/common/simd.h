// One vector type a level: VF is kLanes floats (16 on v4, 8 on v3, 4 elsewhere), through the compiler's
// vector extension. Include it in x_simd.cc files only (LARGEOUT_ISA is set there). Everything is float32
// arithmetic; bfloat16 is converted on load and rounded to nearest even on store.
#ifndef LARGEOUT_COMMON_SIMD_H_
#define LARGEOUT_COMMON_SIMD_H_

#ifndef LARGEOUT_ISA
#error "common/simd.h is for *_simd.cc files, which are compiled once per instruction-set level"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "common/bfloat16.h"

#define LARGEOUT_INLINE static inline __attribute__((always_inline))

namespace largeout {
namespace LARGEOUT_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VH __attribute__((vector_size(kLanes * 2)));

LARGEOUT_INLINE VF Zero() { return VF{}; }
LARGEOUT_INLINE VF Set(float x) {
  // Not VF{} + x: the compiler would have to add, for the sake of -0.
#if defined(__AVX512F__)
  return (VF)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (VF)_mm256_set1_ps(x);
#else
  return VF{x, x, x, x};
#endif
}

LARGEOUT_INLINE VF Load(const float* p) {
  VF v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
LARGEOUT_INLINE VF Load(const bfloat16* p) {
  VH h;
  std::memcpy(&h, p, sizeof(h));
  return (VF)(__builtin_convertvector(h, VU) << 16);
}
LARGEOUT_INLINE void Store(float* p, VF v) { std::memcpy(p, &v, sizeof(v)); }
LARGEOUT_INLINE void Store(bfloat16* p, VF v) {
  const VU bits = (VU)v;
  const VU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VU quiet = (bits >> 16) | 0x40u;
  const VU is_nan = (VU)((bits & 0x7fffffffu) > 0x7f800000u);
  const VH h = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), VH);
  std::memcpy(p, &h, sizeof(h));
}

// Past the caches, to a place that is aligned to a vector: for what is not read soon. Other threads see it
// after EndStream.
LARGEOUT_INLINE void Stream(float* p, VF v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__SSE2__)
  _mm_stream_ps(p, (__m128)v);
#else
  Store(p, v);
#endif
}

LARGEOUT_INLINE void EndStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The first n < kLanes elements; the rest of the vector is zero. Reads and writes nothing beyond them.
#if defined(__AVX512F__)
// By the narrowest load that holds them: what a mask hides is waited for all the same where it is in another line.
LARGEOUT_INLINE VF LoadPart(const float* p, int n) {
  const __mmask16 mask = (__mmask16)((1u << n) - 1u);
  if (n <= 4) return (VF)_mm512_zextps128_ps512(_mm_maskz_loadu_ps((__mmask8)mask, p));
  if (n <= 8) return (VF)_mm512_zextps256_ps512(_mm256_maskz_loadu_ps((__mmask8)mask, p));
  return (VF)_mm512_maskz_loadu_ps(mask, p);
}
LARGEOUT_INLINE void StorePart(float* p, VF v, int n) {
  const __mmask16 mask = (__mmask16)((1u << n) - 1u);
  // In its own register: GCC would fold part and store into one vextractf32x4, which faults on what a mask hides.
  if (n <= 4) {
    __m128 part = _mm512_castps512_ps128((__m512)v);
    __asm__("" : "+v"(part));
    _mm_mask_storeu_ps(p, (__mmask8)mask, part);
  } else if (n <= 8) {
    __m256 part = _mm512_castps512_ps256((__m512)v);
    __asm__("" : "+v"(part));
    _mm256_mask_storeu_ps(p, (__mmask8)mask, part);
  } else {
    _mm512_mask_storeu_ps(p, mask, (__m512)v);
  }
}
#else
LARGEOUT_INLINE VF LoadPart(const float* p, int n) {
  VF v = {};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
LARGEOUT_INLINE void StorePart(float* p, VF v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}
#endif
LARGEOUT_INLINE VF LoadPart(const bfloat16* p, int n) {
  bfloat16 full[kLanes] = {};
  std::memcpy(full, p, n * sizeof(bfloat16));
  return Load(full);
}
LARGEOUT_INLINE void StorePart(bfloat16* p, VF v, int n) {
  bfloat16 full[kLanes];
  Store(full, v);
  std::memcpy(p, full, n * sizeof(bfloat16));
}

// Keeps a loaded vector in its register: the compiler would otherwise fold the load into each instruction
// that uses it, and a register tile then waits for the load ports.
LARGEOUT_INLINE VF InRegister(VF v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#elif defined(__SSE2__)
  __asm__("" : "+x"(v));
#endif
  return v;
}

// a * b + c in one rounding where the level has it.
LARGEOUT_INLINE VF Fma(VF a, VF b, VF c) {
#if defined(__AVX512F__)
  return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
LARGEOUT_INLINE VF Sqrt(VF a) {
#if defined(__AVX512F__)
  return (VF)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
  return (VF)_mm256_sqrt_ps((__m256)a);
#elif defined(__SSE2__)
  return (VF)_mm_sqrt_ps((__m128)a);
#else
  VF r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_sqrtf(a[i]);
  return r;
#endif
}
LARGEOUT_INLINE VF Max(VF a, VF b) { return a > b ? a : b; }
LARGEOUT_INLINE VF Min(VF a, VF b) { return a < b ? a : b; }
// Where mask (a comparison's result) is true a, else b.
LARGEOUT_INLINE VF Where(VI mask, VF a, VF b) { return (VF)((mask & (VI)a) | (~mask & (VI)b)); }

// low is a0 b0 a1 b1 ..., high goes on from there.
LARGEOUT_INLINE void Zip(VF a, VF b, VF* low, VF* high) {
#if defined(__AVX512F__)
  const __m512i to_low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i to_high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  *low = (VF)_mm512_permutex2var_ps((__m512)a, to_low, (__m512)b);
  *high = (VF)_mm512_permutex2var_ps((__m512)a, to_high, (__m512)b);
#elif defined(__AVX2__)
  const __m256 even = _mm256_unpacklo_ps((__m256)a, (__m256)b),
               odd = _mm256_unpackhi_ps((__m256)a, (__m256)b);
  *low = (VF)_mm256_permute2f128_ps(even, odd, 0x20);
  *high = (VF)_mm256_permute2f128_ps(even, odd, 0x31);
#else
  *low = VF{a[0], b[0], a[1], b[1]};
  *high = VF{a[2], b[2], a[3], b[3]};
#endif
}

// Of kLanes vectors: lane j of vector i becomes lane i of vector j.
LARGEOUT_INLINE void Transpose(VF* v) {
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    VF zipped[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) Zip(v[i], v[i + kLanes / 2], &zipped[2 * i], &zipped[2 * i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) v[i] = zipped[i];
  }
}

// Sum and maximum over the lanes, in a fixed order.
LARGEOUT_INLINE float SumLanes(VF v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s = 0.f;
  for (int i = 0; i < kLanes / 2; ++i) s += v[i] + v[i + kLanes / 2];
  return s;
#endif
}
LARGEOUT_INLINE float MaxLanes(VF v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

LARGEOUT_INLINE void Prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
LARGEOUT_INLINE void PrefetchToWrite(void* p) { __builtin_prefetch(p, 1, 3); }
// Starts loading the `bytes` bytes of a row.
LARGEOUT_INLINE void PrefetchRow(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i, 0, 3);
}

}  // namespace LARGEOUT_ISA
}  // namespace largeout

#endif  // LARGEOUT_COMMON_SIMD_H_
