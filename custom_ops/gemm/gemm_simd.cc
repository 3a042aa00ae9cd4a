// The products in float32, at every level.
#include "gemm/gemm_tiles.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

struct Floats {
  LARGEOUT_INLINE VF Add(VF s, VF b, VF sum) { return Fma(s, b, sum); }
};

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

template <typename T>
static void PackTransposed(const T* x, int64_t ld, int64_t n, int64_t depth, float* panels) {
  PackTransposedWords(n, depth, panels, [&](int64_t row, int64_t first, int count) {
    const T* from = x + row * ld + first;
    return count == kLanes ? Load(from) : LoadPart(from, count);
  });
}

static void Left(const float* x, int64_t ld, int64_t m, int64_t depth, float* words, int64_t words_ld) {
  if (depth == 0) return;  // x may be null
  for (int64_t i = 0; i < m; ++i) std::memcpy(words + i * words_ld, x + i * ld, depth * sizeof(float));
}

}  // namespace

extern const GemmKernels kGemmFloat = {kWidth,
                                       1,
                                       false,
                                       &Pack<float>,
                                       &Pack<bfloat16>,
                                       &PackTransposed<float>,
                                       &PackTransposed<bfloat16>,
                                       &Left,
                                       nullptr,
                                       &Multiply<Floats>};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
