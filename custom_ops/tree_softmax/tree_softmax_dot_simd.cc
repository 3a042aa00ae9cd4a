// Logits: dots of hidden rows with table rows, both contiguous in dim. Register tiles of kTokens x kRows accumulators read
// both sides where they are (nothing is packed); the lanes are added up once, at the end of a tile.
#include "common/simd.h"
#include "tree_softmax/tree_softmax_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kRows = 8;  // 3 x 8 accumulators + 3 + 1 of 32 registers
#else
constexpr int kRows = 4;  // 3 x 4 accumulators + 3 + 1 of 16 registers
#endif
constexpr int kTokens = 3;

// out[j] = sum of the lanes of acc[j], + bias[j].
template <int N>
LARGEOUT_INLINE void SumRows(const VF* acc, const float* bias, float* out) {
#if defined(__AVX512F__)
  if constexpr (N == 8) {
    __m512 quarter[2];  // per half: 4 rows, each folded to the 4 lanes of one quarter
    for (int i = 0; i < 2; ++i) {
      const __m512 a = (__m512)acc[4 * i], b = (__m512)acc[4 * i + 1];
      const __m512 c = (__m512)acc[4 * i + 2], d = (__m512)acc[4 * i + 3];
      const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
      quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    const __m512 pairs = _mm512_add_ps(_mm512_unpacklo_ps(quarter[0], quarter[1]),
                                       _mm512_unpackhi_ps(quarter[0], quarter[1]));
    const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4e));
    const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    __m256 result = _mm512_castps512_ps256(_mm512_permutexvar_ps(pick, sums));
    if (bias != nullptr) result = _mm256_add_ps(result, _mm256_loadu_ps(bias));
    _mm256_storeu_ps(out, result);
    return;
  }
#elif defined(__AVX2__)
  if constexpr (N == 4) {
    const __m256 ab = _mm256_hadd_ps((__m256)acc[0], (__m256)acc[1]);
    const __m256 cd = _mm256_hadd_ps((__m256)acc[2], (__m256)acc[3]);
    const __m256 all = _mm256_hadd_ps(ab, cd);
    __m128 result = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    if (bias != nullptr) result = _mm_add_ps(result, _mm_loadu_ps(bias));
    _mm_storeu_ps(out, result);
    return;
  }
#endif
  for (int j = 0; j < N; ++j) out[j] = SumLanes(acc[j]) + (bias != nullptr ? bias[j] : 0.f);
}

template <int M, int N, typename T>
static void Tile(const float* const* h, const T* w, int64_t dim, const float* bias, float* out, int64_t ld) {
  VF acc[M][N] = {};
  const int64_t full = dim / kLanes * kLanes;
  for (int64_t k = 0; k < full; k += kLanes) {
    VF hv[M];
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) hv[i] = Load(h[i] + k);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      const VF wv = InRegister(Load(w + j * dim + k));
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i) acc[i][j] = Fma(hv[i], wv, acc[i][j]);
    }
  }
  if (full < dim) {
    const int part = static_cast<int>(dim - full);
    VF hv[M];
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) hv[i] = LoadPart(h[i] + full, part);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      const VF wv = LoadPart(w + j * dim + full, part);
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i) acc[i][j] = Fma(hv[i], wv, acc[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) SumRows<N>(acc[i], bias, out + i * ld);
}

// N rows of the table against all m tokens: the rows stay in L1, the tokens stream.
template <int N, typename T>
static void Panel(const float* hidden, const int32_t* tokens, int64_t m, const T* w, int64_t dim, const float* bias,
                  float* out, int64_t ld) {
  const float* h[kTokens];
  for (int64_t i = 0; i < m; i += kTokens) {
    const int64_t count = m - i < kTokens ? m - i : kTokens;
    for (int64_t t = 0; t < count; ++t) h[t] = hidden + (tokens != nullptr ? tokens[i + t] : i + t) * dim;
    if (count == 3) {
      Tile<3, N>(h, w, dim, bias, out + i * ld, ld);
    } else if (count == 2) {
      Tile<2, N>(h, w, dim, bias, out + i * ld, ld);
    } else {
      Tile<1, N>(h, w, dim, bias, out + i * ld, ld);
    }
  }
}

template <typename T>
static void Dots(const float* hidden, const int32_t* tokens, int64_t m, const T* rows, int64_t n, int64_t dim,
                 const float* bias, float* out, int64_t ld) {
  int64_t j = 0;
  const auto bias_at = [&](int64_t at) { return bias != nullptr ? bias + at : nullptr; };
  for (; j + kRows <= n; j += kRows) Panel<kRows>(hidden, tokens, m, rows + j * dim, dim, bias_at(j), out + j, ld);
  if constexpr (kRows > 4) {
    if (j + 4 <= n) {
      Panel<4>(hidden, tokens, m, rows + j * dim, dim, bias_at(j), out + j, ld);
      j += 4;
    }
  }
  if (j + 2 <= n) {
    Panel<2>(hidden, tokens, m, rows + j * dim, dim, bias_at(j), out + j, ld);
    j += 2;
  }
  if (j < n) Panel<1>(hidden, tokens, m, rows + j * dim, dim, bias_at(j), out + j, ld);
}

template <typename T>
static void PrefetchRows(const T* rows, int64_t n, int64_t dim) {
  PrefetchRow(rows, n * dim * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

extern const TreeDotKernels<float> kTreeDotFloat = {&Dots<float>, &PrefetchRows<float>};
extern const TreeDotKernels<bfloat16> kTreeDotBfloat16 = {&Dots<bfloat16>, &PrefetchRows<bfloat16>};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
