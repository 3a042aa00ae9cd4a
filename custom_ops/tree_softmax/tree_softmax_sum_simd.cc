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
// From this many outputs on, B's columns are copied to one dense block in L1 first where that pays: bfloat16 is then
// converted once, and rows a multiple of this many bytes apart would share few cache sets.
constexpr int64_t kPackOuts = 16;
constexpr uintptr_t kAlias = 1024;

template <typename B>
static bool WorthPacking(int64_t m, int64_t depth, const B* const* b) {
  if (m < kPackOuts || depth < 2) return false;
  if (sizeof(B) < sizeof(float)) return true;
  uintptr_t apart = 0;
  for (int64_t k = 1; k < depth; ++k) apart |= reinterpret_cast<uintptr_t>(b[k]) ^ reinterpret_cast<uintptr_t>(b[0]);
  return apart % kAlias == 0;
}

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
      const VF v = InRegister(LoadAt(row + w * kLanes, kPart && w == W - 1, tail));
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

// Few rows of B and many outputs (the row gradients of a node that few tokens pass): B stays in L1, and each output is
// written from end to end, as memory likes it.
template <int K, typename B, typename C>
static void Stream(int64_t m, int64_t dim, const float* a, int64_t a_row, int64_t a_k, const B* const* b, C* const* c) {
  const int64_t full = dim / kLanes * kLanes;
  const int tail = static_cast<int>(dim - full);
  for (int64_t i = 0; i < m; ++i) {
    VF s[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) s[k] = Set(a[i * a_row + k * a_k]);
    C* out = c[i];
    for (int64_t j = 0; j < full; j += kLanes) {
      VF sum = s[0] * Load(b[0] + j);
#pragma GCC unroll 4
      for (int k = 1; k < K; ++k) sum = Fma(s[k], Load(b[k] + j), sum);
      Store(out + j, sum);
    }
    if (tail == 0) continue;
    VF sum = s[0] * LoadPart(b[0] + full, tail);
#pragma GCC unroll 4
    for (int k = 1; k < K; ++k) sum = Fma(s[k], LoadPart(b[k] + full, tail), sum);
    StorePart(out + full, sum, tail);
  }
}

template <typename B, typename C>
static void Sum(int64_t m, int64_t depth, int64_t dim, const float* a, int64_t a_row, int64_t a_k, const B* const* b,
                C* const* c, bool add) {
  if (!add && depth <= 4 && m > depth) {
    switch (depth) {
      case 1:
        return Stream<1>(m, dim, a, a_row, a_k, b, c);
      case 2:
        return Stream<2>(m, dim, a, a_row, a_k, b, c);
      case 3:
        return Stream<3>(m, dim, a, a_row, a_k, b, c);
      case 4:
        return Stream<4>(m, dim, a, a_row, a_k, b, c);
    }
  }
  alignas(64) float packed[kTreeSumDepth * kVectors * kLanes];
  const float* packed_rows[kTreeSumDepth];
  const int64_t vectors = (dim + kLanes - 1) / kLanes;
  const int64_t chunks = (vectors + kVectors - 1) / kVectors;
  const bool pack = WorthPacking(m, depth, b);
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
      if (pack) {
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
