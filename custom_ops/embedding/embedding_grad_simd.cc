// The hot loop of the table's gradient: every row is the sum of its occurrences, kept in registers.
#include "common/simd.h"
#include "embedding/embedding_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

template <typename T>
struct Grad {
  // The sum of the N * kLanes columns from `grad` over occurrences [begin, end). The occurrences of one row are anywhere in
  // grad: they are prefetched too, over the row's last one into the next row, up to `limit`.
  template <int N>
  LARGEOUT_INLINE void Piece(const SumRowsArgs& a, const T* grad, int64_t begin, int64_t end, int64_t limit, T* out) {
    constexpr int64_t kAhead = 8;
    VF sum[N];
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[v] = Zero();
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < limit) PrefetchRow(grad + a.source[i + kAhead] * a.dim, N * kLanes * sizeof(T));
      const T* row = grad + a.source[i] * a.dim;
      const VF f = Set(a.factor != nullptr ? a.factor[i] : 1.f);
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) sum[v] = Fma(f, Load(row + v * kLanes), sum[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) Store(out + v * kLanes, sum[v]);
  }

  LARGEOUT_INLINE void Tail(const SumRowsArgs& a, const T* grad, int64_t begin, int64_t end, int n, T* out) {
    VF sum = Zero();
    for (int64_t i = begin; i < end; ++i) {
      sum = Fma(Set(a.factor != nullptr ? a.factor[i] : 1.f), LoadPart(grad + a.source[i] * a.dim, n), sum);
    }
    StorePart(out, sum, n);
  }

  static void SumRows(const SumRowsArgs& a, const T* grad, int64_t first, int64_t last, T* out) {
    const int64_t limit = a.starts[last < a.known ? a.known : last];
    for (int64_t g = first; g < last; ++g) {
      const int64_t begin = a.starts[g], end = a.starts[g + 1];
      if (end - begin > a.most) continue;
      T* row = out + (g - first) * a.dim;
      int64_t c = a.first_column;
      for (; c + 8 * kLanes <= a.last_column; c += 8 * kLanes) Piece<8>(a, grad + c, begin, end, limit, row + c);
      if (c + 4 * kLanes <= a.last_column) {
        Piece<4>(a, grad + c, begin, end, limit, row + c);
        c += 4 * kLanes;
      }
      if (c + 2 * kLanes <= a.last_column) {
        Piece<2>(a, grad + c, begin, end, limit, row + c);
        c += 2 * kLanes;
      }
      if (c + kLanes <= a.last_column) {
        Piece<1>(a, grad + c, begin, end, limit, row + c);
        c += kLanes;
      }
      if (c < a.last_column) Tail(a, grad + c, begin, end, static_cast<int>(a.last_column - c), row + c);
    }
  }
};

}  // namespace

extern const EmbeddingGradKernels kEmbeddingGradKernels = {Grad<float>::SumRows, Grad<bfloat16>::SumRows};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
