// Matrix products on packed panels. A register tile holds kOuts rows x one panel of columns while the depth
// runs: per step one panel row is loaded, and kOuts numbers are broadcast.
#include "common/simd.h"
#include "full_softmax/full_softmax_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

constexpr int kVectors = 2;
constexpr int kWidth = kVectors * kLanes;
#if defined(__AVX512F__)
constexpr int kOuts = 14;  // 28 accumulators + 2 of 32 registers; broadcasts are operands
#else
constexpr int kOuts = 6;  // 12 accumulators + 2 + 1 of 16 registers
#endif

template <int R, bool kHalf>
LARGEOUT_INLINE void Tile(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* panel,
                          float* c, int64_t ld, bool add, int columns) {
  constexpr int W = kHalf ? 1 : kVectors;
  VF acc[R][W] = {};
  for (int64_t k = 0; k < depth; ++k) {
    VF b[W];
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w) b[w] = InRegister(Load(panel + k * kWidth + w * kLanes));
    const float* at = a + k * a_k;
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const VF s = Set(at[r * a_row]);
#pragma GCC unroll 2
      for (int w = 0; w < W; ++w) acc[r][w] = Fma(s, b[w], acc[r][w]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w) {
      float* out = c + r * ld + w * kLanes;
      const int n = columns - w * kLanes;
      if (n >= kLanes) {
        Store(out, add ? Load(out) + acc[r][w] : acc[r][w]);
      } else if (n > 0) {
        StorePart(out, add ? LoadPart(out, n) + acc[r][w] : acc[r][w], n);
      }
    }
  }
}

template <int R>
static void Rows(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* panel, float* c,
                 int64_t ld, bool add, int columns) {
  if (columns > kLanes) {
    Tile<R, false>(depth, a, a_row, a_k, panel, c, ld, add, columns);
  } else {
    Tile<R, true>(depth, a, a_row, a_k, panel, c, ld, add, columns);
  }
}

static void Multiply(int64_t m, int64_t n, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                     const float* panels, float* c, int64_t ld, bool add) {
  for (int64_t j = 0; j < n; j += kWidth) {
    const int columns = static_cast<int>(n - j < kWidth ? n - j : kWidth);
    const float* panel = panels + j * depth;
    const auto at = [&](int64_t i) { return a + i * a_row; };
    float* out = c + j;
    int64_t i = 0;
    for (; i + kOuts <= m; i += kOuts)
      Rows<kOuts>(depth, at(i), a_row, a_k, panel, out + i * ld, ld, add, columns);
    if constexpr (kOuts > 8) {
      if (i + 8 <= m) Rows<8>(depth, at(i), a_row, a_k, panel, out + i * ld, ld, add, columns), i += 8;
    }
    if (i + 4 <= m) Rows<4>(depth, at(i), a_row, a_k, panel, out + i * ld, ld, add, columns), i += 4;
    if (i + 2 <= m) Rows<2>(depth, at(i), a_row, a_k, panel, out + i * ld, ld, add, columns), i += 2;
    if (i < m) Rows<1>(depth, at(i), a_row, a_k, panel, out + i * ld, ld, add, columns);
  }
}

template <typename T>
static void Pack(const T* x, int64_t ld, int64_t depth, int64_t n, float* panels) {
  for (int64_t j = 0; j < n; j += kWidth) {
    float* out = panels + j * depth;
    for (int64_t k = 0; k < depth; ++k, out += kWidth) {
#pragma GCC unroll 2
      for (int w = 0; w < kVectors; ++w) {
        const T* from = x + k * ld + j + w * kLanes;
        const int64_t left = n - j - w * kLanes;
        Store(out + w * kLanes, left >= kLanes ? Load(from)
                                : left > 0     ? LoadPart(from, static_cast<int>(left))
                                               : Zero());
      }
    }
  }
}

// Blocks of kLanes x kLanes: rows are read as vectors, and written column by column into lines that stay in
// L1.
template <typename T>
static void PackTransposed(const T* x, int64_t ld, int64_t n, int64_t depth, float* panels) {
  for (int64_t j = 0; j < n; j += kWidth) {
    float* out = panels + j * depth;
    for (int64_t first = 0; first < depth; first += kLanes) {
      const int part = static_cast<int>(depth - first < kLanes ? depth - first : kLanes);
      for (int64_t i = 0; i < kWidth; ++i) {
        float values[kLanes];
        const T* from = x + (j + i) * ld + first;
        Store(values, j + i >= n ? Zero() : part == kLanes ? Load(from) : LoadPart(from, part));
        float* to = out + first * kWidth + i;
        for (int k = 0; k < part; ++k) to[k * kWidth] = values[k];
      }
    }
  }
}

}  // namespace

extern const SoftmaxGemmKernels kSoftmaxGemm = {
    kWidth, &Pack<float>, &Pack<bfloat16>, &PackTransposed<float>, &PackTransposed<bfloat16>, &Multiply};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
