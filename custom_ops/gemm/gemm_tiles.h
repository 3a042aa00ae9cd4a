// Matrix products on packed panels. A register tile holds kOuts rows x one panel of columns while the depth
// runs: per step one row of the panel is loaded, and kOuts words are broadcast. A word of 32 bits is what the
// product of the level takes at a time: one float, or two bfloat16 (then depth counts pairs).
//
// For *_simd.cc files, as common/simd.h is.
#ifndef LARGEOUT_GEMM_GEMM_TILES_H_
#define LARGEOUT_GEMM_GEMM_TILES_H_

#include <type_traits>

#include "common/simd.h"
#include "gemm/gemm_kernels.h"

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

template <class Product, int R, bool kHalf>
LARGEOUT_INLINE void Tile(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* panel,
                          const float* addend, float* c, int64_t ld, bool add, int columns) {
  constexpr int W = kHalf ? 1 : kVectors;
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) PrefetchToWrite(c + r * ld + w * kLanes);
  }
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
      for (int w = 0; w < W; ++w) acc[r][w] = Product::Add(s, b[w], acc[r][w]);
    }
  }
  if (addend != nullptr) {  // last, as it may be larger than all that is added up
    for (int w = 0; w < W; ++w) {
      const int n = columns - w * kLanes;
      const VF more = n >= kLanes ? Load(addend + w * kLanes)
                      : n > 0     ? LoadPart(addend + w * kLanes, n)
                                  : Zero();
      for (int r = 0; r < R; ++r) acc[r][w] += more;
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

template <class Product, int R>
static void Rows(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* panel,
                 const float* addend, float* c, int64_t ld, bool add, int columns) {
  if (columns > kLanes) {
    Tile<Product, R, false>(depth, a, a_row, a_k, panel, addend, c, ld, add, columns);
  } else {
    Tile<Product, R, true>(depth, a, a_row, a_k, panel, addend, c, ld, add, columns);
  }
}

// A tile of the transposed matrix, so that its numbers of a step are in one cache line.
constexpr int64_t kTileDepth = 256;
static_assert(kOuts <= 16, "");

template <class Product, int R>
static void AllColumns(int64_t n, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                       const float* panels, const float* addend, float* c, int64_t ld, bool add) {
  alignas(64) float tile[kTileDepth * 16];
  if (a_row == 1 && depth <= kTileDepth) {
    for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) tile[k * 16 + r] = a[k * a_k + r];
    }
    a = tile, a_k = 16;
  }
  for (int64_t j = 0; j < n; j += kWidth) {
    const int columns = static_cast<int>(n - j < kWidth ? n - j : kWidth);
    const float* from = addend != nullptr ? addend + j : nullptr;
    Rows<Product, R>(depth, a, a_row, a_k, panels + j * depth, from, c + j, ld, add, columns);
  }
}

template <class Product>
static void Multiply(int64_t m, int64_t n, int64_t depth, const float* a, int64_t a_row, int64_t a_k,
                     const float* panels, const float* addend, float* c, int64_t ld, bool add) {
  const auto rows = [&](auto count, int64_t i) {
    AllColumns<Product, decltype(count)::value>(n, depth, a + i * a_row, a_row, a_k, panels, addend,
                                                c + i * ld, ld, add);
  };
  int64_t i = 0;
  for (; i + kOuts <= m; i += kOuts) rows(std::integral_constant<int, kOuts>(), i);
  if constexpr (kOuts > 8) {
    if (i + 8 <= m) rows(std::integral_constant<int, 8>(), i), i += 8;
  }
  if (i + 4 <= m) rows(std::integral_constant<int, 4>(), i), i += 4;
  if (i + 2 <= m) rows(std::integral_constant<int, 2>(), i), i += 2;
  if (i < m) rows(std::integral_constant<int, 1>(), i);
}

// Words of the transposed matrix as panels. read(row, first, count): `count` words of a row, from word
// `first` on. Squares of kLanes x kLanes are transposed in registers.
template <typename Read>
LARGEOUT_INLINE void PackTransposedWords(int64_t n, int64_t depth, float* panels, const Read& read) {
  for (int64_t j = 0; j < n; j += kWidth) {
    float* out = panels + j * depth;
    for (int64_t first = 0; first < depth; first += kLanes) {
      const int part = static_cast<int>(depth - first < kLanes ? depth - first : kLanes);
      for (int w = 0; w < kVectors; ++w) {
        VF square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          const int64_t row = j + w * kLanes + i;
          square[i] = row >= n ? Zero() : read(row, first, part);
        }
        Transpose(square);
        float* to = out + first * kWidth + w * kLanes;
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k) {
          if (k < part) Store(to + k * kWidth, square[k]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace LARGEOUT_ISA
}  // namespace largeout

#endif  // LARGEOUT_GEMM_GEMM_TILES_H_
