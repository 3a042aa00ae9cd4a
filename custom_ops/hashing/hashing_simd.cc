// XXH64 of many short values. A hash is one chain of multiplications that wait for each other: those of
// several values overlap. With AVX-512, eight values of less than 32 bytes are hashed side by side: 330
// million strings of 8 to 20 bytes per second and core of a Zen 4, where one after the other there were 100.
// (Beyond it the strings have to be found: 24 bytes of each are read.)
#include "common/simd.h"
#include "hashing/hashing_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87ull, kPrime2 = 0xc2b2ae3d27d4eb4full,
                   kPrime3 = 0x165667b19e3779f9ull, kPrime4 = 0x85ebca77c2b2ae63ull,
                   kPrime5 = 0x27d4eb2f165667c5ull;

LARGEOUT_INLINE uint64_t Rotated(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

LARGEOUT_INLINE uint64_t Word(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}
LARGEOUT_INLINE uint64_t HalfWord(const char* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap32(word);
#endif
  return word;
}

LARGEOUT_INLINE uint64_t Round(uint64_t lane, uint64_t input) {
  return Rotated(lane + input * kPrime2, 31) * kPrime1;
}

LARGEOUT_INLINE uint64_t Merged(uint64_t hash, uint64_t lane) {
  return (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
}

LARGEOUT_INLINE uint64_t Hashed(Bytes value, uint64_t seed) {
  const char *p = value.data, *const end = p + value.size;
  uint64_t hash;
  if (__builtin_expect(value.size >= 32, 0)) {
    uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
    for (; end - p >= 32; p += 32) {
      a = Round(a, Word(p));
      b = Round(b, Word(p + 8));
      c = Round(c, Word(p + 16));
      d = Round(d, Word(p + 24));
    }
    hash = Rotated(a, 1) + Rotated(b, 7) + Rotated(c, 12) + Rotated(d, 18);
    hash = Merged(Merged(Merged(Merged(hash, a), b), c), d);
  } else {
    hash = seed + kPrime5;
  }
  hash += static_cast<uint64_t>(value.size);
  for (; end - p >= 8; p += 8) hash = Rotated(hash ^ Round(0, Word(p)), 27) * kPrime1 + kPrime4;
  if (end - p >= 4) {
    hash = Rotated(hash ^ (HalfWord(p) * kPrime1), 23) * kPrime2 + kPrime3;
    p += 4;
  }
  for (; p < end; ++p) hash = Rotated(hash ^ (static_cast<uint8_t>(*p) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

#if defined(__AVX512F__)
typedef uint64_t V8 __attribute__((vector_size(64)));

LARGEOUT_INLINE V8 Rotated(V8 x, int by) { return (x << by) | (x >> (64 - by)); }
LARGEOUT_INLINE __m512i Pair(const Bytes& a, const Bytes& b) {
  const auto of = [](const Bytes& v) __attribute__((always_inline)) {
    return _mm256_maskz_loadu_epi8((1u << v.size) - 1u, v.data);
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(of(a)), of(b), 1);
}

// Eight values side by side, if each has less than 32 bytes; otherwise nothing is written. The words of each
// value become lanes, and what a value does not have is masked.
LARGEOUT_INLINE bool Hashed8(const Bytes* values, uint64_t seed, V8* hashes) {
  const __m512i odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
  const V8 size =
      (V8)_mm512_permutex2var_epi64(_mm512_loadu_si512(values), odd, _mm512_loadu_si512(values + 4));
  const auto any_from = [size](uint64_t least) __attribute__((always_inline)) {
    return _mm512_cmpge_epu64_mask((__m512i)size, _mm512_set1_epi64(static_cast<int64_t>(least))) != 0;
  };
  if (any_from(32)) return false;
  const __m512i a = Pair(values[0], values[2]), b = Pair(values[1], values[3]),
                c = Pair(values[4], values[6]), d = Pair(values[5], values[7]);
  const __m512i ab = _mm512_unpacklo_epi64(a, b), cd = _mm512_unpacklo_epi64(c, d);
  const __m512i ab_high = _mm512_unpackhi_epi64(a, b), cd_high = _mm512_unpackhi_epi64(c, d);
  const V8 words[4] = {
      (V8)_mm512_shuffle_i64x2(ab, cd, 0x88), (V8)_mm512_shuffle_i64x2(ab_high, cd_high, 0x88),
      (V8)_mm512_shuffle_i64x2(ab, cd, 0xdd), (V8)_mm512_shuffle_i64x2(ab_high, cd_high, 0xdd)};
  V8 hash = size + (seed + kPrime5), rest = words[0];
#pragma GCC unroll 3
  for (uint64_t w = 0; w < 3; ++w) {
    if (!any_from(8 * w + 8)) break;
    const V8 next = Rotated(hash ^ (Rotated(words[w] * kPrime2, 31) * kPrime1), 27) * kPrime1 + kPrime4;
    const auto has = size >= 8 * w + 8;
    hash = has ? next : hash;
    rest = has ? words[w + 1] : rest;
  }
  const auto has_half = (size & 4) != 0;
  const V8 half = Rotated(hash ^ ((rest & 0xffffffffu) * kPrime1), 23) * kPrime2 + kPrime3;
  hash = has_half ? half : hash;
  rest = has_half ? rest >> 32 : rest;
  const V8 bytes = size & 3;
#pragma GCC unroll 3
  for (uint64_t k = 0; k < 3; ++k) {
    const auto has = bytes > k;
    if (_mm512_test_epi64_mask((__m512i)has, (__m512i)has) == 0) break;
    hash = has ? Rotated(hash ^ ((rest & 0xffu) * kPrime5), 11) * kPrime1 : hash;
    rest >>= 8;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  *hashes = hash ^ (hash >> 32);
  return true;
}

LARGEOUT_INLINE V8 Remainder(V8 hash, const Bins& bins) {
  const auto product = [](V8 x, V8 y) __attribute__((always_inline)) {  // of their lower halves
    return (V8)_mm512_mul_epu32((__m512i)x, (__m512i)y);
  };
  const V8 m = bins.m - V8{}, m_high = m >> 32, high = hash >> 32;
  const V8 middle = product(high, m) + (product(hash, m) >> 32);
  const V8 carry = product(hash, m_high) + (middle & 0xffffffffu);
  const V8 q = product(high, m_high) + (middle >> 32) + (carry >> 32);
  const V8 rest = hash - q * bins.bins;
  return rest >= bins.bins ? rest - bins.bins : rest;
}

LARGEOUT_INLINE void StoreLanes(V8 x, int64_t stride, uint64_t* out) {
  if (stride == 1) {
    std::memcpy(out, &x, sizeof(x));
  } else {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) out[k * stride] = x[k];
  }
}
#endif

LARGEOUT_INLINE uint64_t Remainder(uint64_t hash, const Bins& bins) {
  const uint64_t q = static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * bins.m) >> 64);
  const uint64_t rest = hash - q * bins.bins;
  // Not by a branch, which would be guessed wrong half of the time.
  return rest - (bins.bins & (0 - static_cast<uint64_t>(rest >= bins.bins)));
}

// out[i * stride] = finish(XXH64 of values[i]).
template <typename Finish>
LARGEOUT_INLINE void ForHashes(const Bytes* values, int64_t n, uint64_t seed, int64_t stride,
                               const Finish& finish, uint64_t* out) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 8 <= n; i += 8) {
    V8 hashes;
    if (Hashed8(values + i, seed, &hashes)) {
      StoreLanes(finish(hashes), stride, out + i * stride);
    } else {
      for (int k = 0; k < 8; ++k) out[(i + k) * stride] = finish(Hashed(values[i + k], seed));
    }
  }
#endif
  for (; i < n; ++i) out[i * stride] = finish(Hashed(values[i], seed));
}

void Hash(const Bytes* values, int64_t n, uint64_t seed, int64_t stride, uint64_t* hashes) {
  ForHashes(values, n, seed, stride, [](auto hash) __attribute__((always_inline)) { return hash; }, hashes);
}

void Bin(const Bytes* values, int64_t n, uint64_t seed, const Bins& bins, int64_t stride, int64_t* ids) {
  const Bins b = bins;
  const auto finish = [&b](auto hash) __attribute__((always_inline)) {
    return Remainder(hash, b) + static_cast<uint64_t>(b.first);
  };
  ForHashes(values, n, seed, stride, finish, reinterpret_cast<uint64_t*>(ids));
}

}  // namespace

extern const HashingKernels kHashingKernels = {Hash, Bin};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
