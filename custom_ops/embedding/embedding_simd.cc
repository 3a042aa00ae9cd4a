// The hot loops of lookup and weights' gradient (the table's: embedding_grad_simd.cc). A row is a random access to DRAM (about 44 ns when waited for), so rows are prefetched some
// ids ahead, across the borders of bags, and a bag's sum stays in registers: rows of up to 8 vectors are read once.
#include "common/simd.h"
#include "embedding/embedding_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

constexpr int kMaxVectors = 8;
// Bytes of rows asked for ahead of their use. 8 KiB was best of 1 to 8 on rows of 256 and 1216 bytes in 2.5 and 1.2 GB tables:
// more than the line fill buffers hold, which keeps them full over the rows that a cache has.
constexpr int64_t kAheadBytes = 8192;

LARGEOUT_INLINE int64_t IdsAhead(int64_t row_bytes) {
  const int64_t ids = kAheadBytes / (row_bytes < 64 ? 64 : row_bytes);
  return ids < 1 ? 1 : (ids > 32 ? 32 : ids);
}

template <typename T, typename Id>
LARGEOUT_INLINE const T* Row(const LookupArgs<T, Id>& a, int64_t p) {
  const Id id = a.bags.ids[p];
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(a.rows) ? a.table + static_cast<int64_t>(id) * a.stride : nullptr;
}

template <typename Id>
bool AnyBad(const Id* ids, int64_t n, int64_t rows) {
  uint64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    bad |= static_cast<uint64_t>(static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows));
  }
  return bad != 0;
}

template <typename T, typename Id>
struct Lookup {
  using Args = LookupArgs<T, Id>;

  // The end of the task's positions, and the distance of its prefetches.
  struct Ahead {
    int64_t ids, end, bytes;
    explicit Ahead(const Args& a, int64_t last_bag)
        : ids(IdsAhead(a.dim * sizeof(T))), end(a.bags.begin(last_bag)), bytes(a.dim * sizeof(T)) {}
    LARGEOUT_INLINE void Fetch(const Args& a, const Ahead& s, int64_t p) {
      if (p + s.ids >= s.end) return;
      const T* row = Row(a, p + s.ids);
      if (row != nullptr) PrefetchRow(row, s.bytes);
    }
  };

  static void Copy(const Args& a, int64_t begin, int64_t end, T* out) {
    const Ahead ahead(a, end);
    for (int64_t p = begin; p < end; ++p) {
      Ahead::Fetch(a, ahead, p);
      const T* row = Row(a, p);
      if (row != nullptr) {
        std::memcpy(out + p * a.dim, row, ahead.bytes);
      } else {
        std::memset(out + p * a.dim, 0, ahead.bytes);
      }
    }
  }

  // Columns [column, column + N * kLanes) of the sum over positions [begin, end), divided by D.
  template <int N, bool kFetch>
  LARGEOUT_INLINE void Piece(const Args& a, const Ahead& ahead, int64_t begin, int64_t end, int64_t column, float scale,
                             T* out) {
    VF sum[N];
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[v] = Zero();
    for (int64_t p = begin; p < end; ++p) {
      if (kFetch) Ahead::Fetch(a, ahead, p);
      const T* row = Row(a, p);
      if (row == nullptr) continue;
      const VF w = Set(a.bags.weights != nullptr ? a.bags.weights[p] : 1.f);
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) sum[v] = Fma(w, Load(row + column + v * kLanes), sum[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) Store(out + column + v * kLanes, Divide(sum[v], scale));
  }

  LARGEOUT_INLINE void Tail(const Args& a, int64_t begin, int64_t end, int64_t column, float scale, T* out) {
    const int n = static_cast<int>(a.dim - column);
    VF sum = Zero();
    for (int64_t p = begin; p < end; ++p) {
      const T* row = Row(a, p);
      if (row == nullptr) continue;
      sum = Fma(Set(a.bags.weights != nullptr ? a.bags.weights[p] : 1.f), LoadPart(row + column, n), sum);
    }
    StorePart(out + column, Divide(sum, scale), n);
  }

  LARGEOUT_INLINE VF Divide(VF sum, float scale) {
    return scale == 1.f ? sum : (scale == 0.f ? Zero() : sum / Set(scale));
  }

  // Rows of N vectors, and less than one more.
  template <int N>
  static void Narrow(const Args& a, int64_t first, int64_t last, T* out) {
    const Ahead ahead(a, last);
    const bool tail = a.dim % kLanes != 0;
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = a.bags.begin(b), end = a.bags.begin(b + 1);
      const float scale = Denominator(a.bags, a.combiner, a.rows, begin, end);
      Piece<N, true>(a, ahead, begin, end, 0, scale, out + b * a.dim);
      if (tail) Tail(a, begin, end, N * kLanes, scale, out + b * a.dim);
    }
  }

  // Rows of less than a vector: one of their lines is asked for ahead, and then read by parts.
  static void Thin(const Args& a, int64_t first, int64_t last, T* out) {
    const Ahead ahead(a, last);
    const int n = static_cast<int>(a.dim);
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = a.bags.begin(b), end = a.bags.begin(b + 1);
      const float scale = Denominator(a.bags, a.combiner, a.rows, begin, end);
      VF sum = Zero();
      for (int64_t p = begin; p < end; ++p) {
        Ahead::Fetch(a, ahead, p);
        const T* row = Row(a, p);
        if (row == nullptr) continue;
        const VF w = Set(a.bags.weights != nullptr ? a.bags.weights[p] : 1.f);
        sum = Fma(w, n == 1 ? Set(ToFloat(*row)) : LoadPart(row, n), sum);
      }
      StorePart(out + b * a.dim, Divide(sum, scale), n);
    }
  }

  // Any other dim: pieces of 8 vectors, then of one, then the tail. The first one brings the bag's rows into the cache.
  static void Any(const Args& a, int64_t first, int64_t last, T* out) {
    const Ahead ahead(a, last);
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = a.bags.begin(b), end = a.bags.begin(b + 1);
      const float scale = Denominator(a.bags, a.combiner, a.rows, begin, end);
      T* row = out + b * a.dim;
      int64_t column = 0;
      if (a.dim >= kMaxVectors * kLanes) {
        Piece<kMaxVectors, true>(a, ahead, begin, end, 0, scale, row);
        column = kMaxVectors * kLanes;
      }
      for (; column + kMaxVectors * kLanes <= a.dim; column += kMaxVectors * kLanes) {
        Piece<kMaxVectors, false>(a, ahead, begin, end, column, scale, row);
      }
      if (column + 4 * kLanes <= a.dim) {
        Piece<4, false>(a, ahead, begin, end, column, scale, row);
        column += 4 * kLanes;
      }
      for (; column + kLanes <= a.dim; column += kLanes) Piece<1, false>(a, ahead, begin, end, column, scale, row);
      if (column < a.dim) Tail(a, begin, end, column, scale, row);
    }
  }

  static void Combine(const Args& a, int64_t begin, int64_t end, T* out) {
    if (a.dim == 0) return;
    switch (a.dim / kLanes) {
      case 0: return Thin(a, begin, end, out);
      case 1: return Narrow<1>(a, begin, end, out);
      case 2: return Narrow<2>(a, begin, end, out);
      case 3: return Narrow<3>(a, begin, end, out);
      case 4: return Narrow<4>(a, begin, end, out);
      case 5: return Narrow<5>(a, begin, end, out);
      case 6: return Narrow<6>(a, begin, end, out);
      case 7: return Narrow<7>(a, begin, end, out);
      case 8: return Narrow<8>(a, begin, end, out);
      default: return Any(a, begin, end, out);
    }
  }

  LARGEOUT_INLINE float Dot(const T* x, const T* y, int64_t dim) {
    VF even = Zero(), odd = Zero();
    int64_t c = 0;
    for (; c + 2 * kLanes <= dim; c += 2 * kLanes) {
      even = Fma(Load(x + c), Load(y + c), even);
      odd = Fma(Load(x + c + kLanes), Load(y + c + kLanes), odd);
    }
    if (c + kLanes <= dim) {
      even = Fma(Load(x + c), Load(y + c), even);
      c += kLanes;
    }
    if (c < dim) {
      const int n = static_cast<int>(dim - c);
      odd = Fma(LoadPart(x + c, n), LoadPart(y + c, n), odd);
    }
    return SumLanes(even + odd);
  }

  // grad . out[b] is the weighted mean of the dots, so out[b] itself is not needed.
  static void WeightsGrad(const Args& a, int64_t first, int64_t last, const T* grad, float* weights_grad) {
    const Ahead ahead(a, last);
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = a.bags.begin(b), end = a.bags.begin(b + 1);
      const float* weights = a.bags.weights;
      float total = 0.f;
      for (int64_t p = begin; p < end; ++p) {
        Ahead::Fetch(a, ahead, p);
        const T* row = Row(a, p);
        weights_grad[p] = row == nullptr ? 0.f : Dot(row, grad + b * a.dim, a.dim);
        if (row != nullptr) total += (weights != nullptr ? weights[p] : 1.f) * weights_grad[p];
      }
      if (a.combiner == Combiner::kSum) continue;
      const float scale = Denominator(a.bags, a.combiner, a.rows, begin, end);
      const float mean = a.combiner == Combiner::kMean ? total / scale : total / scale / scale;
      for (int64_t p = begin; p < end; ++p) {
        if (scale == 0.f) {
          weights_grad[p] = 0.f;
        } else if (Row(a, p) != nullptr) {
          const float w = a.combiner == Combiner::kMean ? 1.f : (weights != nullptr ? weights[p] : 1.f);
          weights_grad[p] = (weights_grad[p] - w * mean) / scale;
        }
      }
    }
  }
};

template <typename T, typename Id>
constexpr LookupKernels<T, Id> kLookup = {Lookup<T, Id>::Copy, Lookup<T, Id>::Combine, Lookup<T, Id>::WeightsGrad};

}  // namespace

extern const EmbeddingKernels kEmbeddingKernels = {
    {AnyBad<int32_t>},
    {AnyBad<int64_t>},
    kLookup<float, int32_t>,
    kLookup<float, int64_t>,
    kLookup<bfloat16, int32_t>,
    kLookup<bfloat16, int64_t>,
};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
