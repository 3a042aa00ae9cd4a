// Weighted sums of rows: C[i] (+)= sum over k of a[i, k] * B[k]. Serves both gradients (B: table rows, or hidden rows).
// A tile holds kOuts output rows x up to kVectors vectors of columns in registers while k runs.
#include "common/simd.h"
#include "tree_softmax/tree_softmax_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kOuts = 4, kVectors = 6;  // 24 accumulators + 6 + 1 of 32 registers
#else
constexpr int kOuts = 3, kVectors = 4;  // 12 accumulators + 3 + 1 of 16 registers
#endif
// From this many outputs on, B's columns are copied to one dense block in L1 first: rows a power of two apart would fall
// into few cache sets, and bfloat16 is converted once.
constexpr int64_t kPackOuts = 16;

template <typename B>
LARGEOUT_INLINE VF LoadAt(const B* p, bool part, int tail) {
  return part ? LoadPart(p, tail) : Load(p);
}

template <int R, int W, bool kPart, typename B, typename C>
static void Tile(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const B* const* b, int64_t b_at, C* const* c,
                 int64_t c_at, bool add, int tail) {
  VF acc[R][W] = {};
  if (add) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 6
      for (int w = 0; w < W; ++w) acc[r][w] = LoadAt(c[r] + c_at + w * kLanes, kPart && w == W - 1, tail);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const B* row = b[k] + b_at;
    VF s[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) s[r] = Set(a[r * a_row + k * a_k]);
#pragma GCC unroll 6
    for (int w = 0; w < W; ++w) {
      const VF v = LoadAt(row + w * kLanes, kPart && w == W - 1, tail);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r][w] = Fma(s[r], v, acc[r][w]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 6
    for (int w = 0; w < W; ++w) {
      C* out = c[r] + c_at + w * kLanes;
      if (kPart && w == W - 1) {
        StorePart(out, acc[r][w], tail);
      } else {
        Store(out, acc[r][w]);
      }
    }
  }
}

template <int W, bool kPart, typename B, typename C>
static void Outs(int64_t m, int64_t depth, const float* a, int64_t a_row, int64_t a_k, const B* const* b, int64_t b_at,
                 C* const* c, int64_t c_at, bool add, int tail) {
  int64_t i = 0;
  for (; i + kOuts <= m; i += kOuts)
    Tile<kOuts, W, kPart>(depth, a + i * a_row, a_row, a_k, b, b_at, c + i, c_at, add, tail);
  if constexpr (kOuts > 3) {
    if (m - i == 3) Tile<3, W, kPart>(depth, a + i * a_row, a_row, a_k, b, b_at, c + i, c_at, add, tail);
  }
  if (m - i == 2) Tile<2, W, kPart>(depth, a + i * a_row, a_row, a_k, b, b_at, c + i, c_at, add, tail);
  if (m - i == 1) Tile<1, W, kPart>(depth, a + i * a_row, a_row, a_k, b, b_at, c + i, c_at, add, tail);
}

template <typename B, typename C, typename... Args>
LARGEOUT_INLINE void Columns(int width, int tail, Args... args) {
  const bool part = tail != 0;
#define LARGEOUT_WIDTH(W)                                                       \
  case W:                                                                       \
    if constexpr (W <= kVectors) {                                              \
      part ? Outs<W, true, B, C>(args..., tail) : Outs<W, false, B, C>(args..., tail); \
    }                                                                           \
    break
  switch (width) {
    LARGEOUT_WIDTH(1);
    LARGEOUT_WIDTH(2);
    LARGEOUT_WIDTH(3);
    LARGEOUT_WIDTH(4);
    LARGEOUT_WIDTH(5);
    LARGEOUT_WIDTH(6);
  }
#undef LARGEOUT_WIDTH
}

template <typename B, typename C>
static void Sum(int64_t m, int64_t depth, int64_t dim, const float* a, int64_t a_row, int64_t a_k, const B* const* b,
                C* const* c, bool add) {
  alignas(64) float packed[kTreeSumDepth * kVectors * kLanes];
  const float* packed_rows[kTreeSumDepth];
  const int64_t vectors = (dim + kLanes - 1) / kLanes;
  const int64_t chunks = (vectors + kVectors - 1) / kVectors;
  int64_t first = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int width = static_cast<int>(vectors / chunks + (chunk < vectors % chunks));
    const int64_t at = first * kLanes;
    const int tail = chunk == chunks - 1 ? static_cast<int>(dim % kLanes) : 0;
    first += width;
    // depth 0 still writes zeros.
    for (int64_t k = 0; k == 0 || k < depth; k += kTreeSumDepth) {
      const int64_t count = depth - k < kTreeSumDepth ? depth - k : kTreeSumDepth;
      const bool more = add || k > 0;
      if (m >= kPackOuts) {
        for (int64_t i = 0; i < count; ++i) {
          float* to = packed + i * width * kLanes;
          for (int w = 0; w < width; ++w) {
            Store(to + w * kLanes, LoadAt(b[k + i] + at + w * kLanes, tail != 0 && w == width - 1, tail));
          }
          packed_rows[i] = to;
        }
        Columns<float, C>(width, tail, m, count, a + k * a_k, a_row, a_k, packed_rows, int64_t{0}, c, at, more);
      } else {
        Columns<B, C>(width, tail, m, count, a + k * a_k, a_row, a_k, b + k, at, c, at, more);
      }
    }
  }
}

}  // namespace

extern const TreeSumKernels kTreeSum = {&Sum<float, float>, &Sum<bfloat16, float>, &Sum<float, bfloat16>};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
