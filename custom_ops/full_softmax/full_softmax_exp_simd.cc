// The loops over a block of logits: their maximum, the sum of their exponentials, and the gradient.
#include <math.h>

#include "common/simd_math.h"
#include "full_softmax/full_softmax_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

LARGEOUT_INLINE VI LaneNumbers() {
  VI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane;
}

// Calls body(at, n) for every vector of a row of n elements, n being kLanes, or less for the last.
template <typename Body>
LARGEOUT_INLINE void EachVector(int64_t n, const Body& body) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) body(j, kLanes);
  if (j < n) body(j, static_cast<int>(n - j));
}

LARGEOUT_INLINE VF LoadN(const float* p, int n) { return n == kLanes ? Load(p) : LoadPart(p, n); }
LARGEOUT_INLINE void StoreN(float* p, VF v, int n) { n == kLanes ? Store(p, v) : StorePart(p, v, n); }

static void Terms(float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first,
                  bool skip, float* keep, float* high, float* total, float* sum, float* picked) {
  const VI lane = LaneNumbers();
  for (int64_t i = 0; i < m; ++i) {
    float* row = logits + i * ld;
    const int64_t at = static_cast<int64_t>(target[i]) - first;
    const bool here = target[i] >= 0 && at >= 0 && at < n;
    if (here && skip) row[at] = -INFINITY;
    if (here) picked[i] = row[at];
    VF top = Set(-INFINITY), all = Zero();
    EachVector(n, [&](int64_t j, int part) {
      const VF x = LoadN(row + j, part);  // zeros beyond the row
      all += x;
      top = Max(top, part == kLanes ? x : Where(lane < part, x, Set(-INFINITY)));
    });
    const float h = MaxLanes(top), shift = h == -INFINITY ? 0.f : h;
    const VF s = Set(shift);
    VF exps = Zero();
    EachVector(n, [&](int64_t j, int part) {
      const VF e = Exp(LoadN(row + j, part) - s);
      if (keep != nullptr) Stream(keep + i * ld + j, e);
      exps += part == kLanes ? e : Where(lane < part, e, Zero());
    });
    high[i] = h, total[i] = SumLanes(exps), sum[i] = SumLanes(all);
  }
  if (keep != nullptr) EndStream();
}

static void Gradient(float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first,
                     bool skip, const float* lse, const float* of_p, const float* of_target,
                     const float* of_all) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = logits + i * ld;
    const int64_t at = static_cast<int64_t>(target[i]) - first;
    const bool here = target[i] >= 0 && at >= 0 && at < n;
    // Without any class (all -inf) every p is 0.
    const VF shift = Set(lse[i] == -INFINITY ? 0.f : lse[i]), a = Set(of_p[i]), c = Set(of_all[i]);
    EachVector(n, [&](int64_t j, int part) {
      // A logit above the sum of all is one by rounding alone: exp is for arguments up to 0.
      const VF x = LoadN(row + j, part) - shift;
      StoreN(row + j, Fma(a, Exp(x > Zero() ? Zero() : x), c), part);
    });
    if (here) row[at] = skip ? 0.f : row[at] + of_target[i];
  }
}

static void GradientOfExps(const float* exps, float* out, int64_t ld, int64_t m, int64_t n,
                           const int32_t* target, int32_t first, bool skip, const float* high,
                           const float* lse, const float* of_p, const float* of_target, const float* of_all) {
  for (int64_t begin = 0; begin < m; begin += kLanes) {
    const int tokens = static_cast<int>(m - begin < kLanes ? m - begin : kLanes);
    const VF of = LoadN(of_p + begin, tokens), total = LoadN(lse + begin, tokens);
    const VF above = LoadN(high + begin, tokens) - Where(total == Set(-INFINITY), Zero(), total);
    const VF scale = of * Exp(above > Zero() ? Zero() : above);
    for (int lane = 0; lane < tokens; ++lane) {
      const int64_t i = begin + lane;
      const float* row = exps + i * ld;
      float* to = out + i * ld;
      const VF a = Set(scale[lane]), c = Set(of_all[i]);
      EachVector(n, [&](int64_t j, int part) { StoreN(to + j, Fma(a, LoadN(row + j, part), c), part); });
      const int64_t at = static_cast<int64_t>(target[i]) - first;
      if (target[i] >= 0 && at >= 0 && at < n) to[at] = skip ? 0.f : to[at] + of_target[i];
    }
  }
}

static void AddColumns(const float* x, int64_t ld, int64_t m, int64_t n, float* sums) {
  for (int64_t i = 0; i < m; i += 4) {
    const int64_t last = m - i < 4 ? m - i : 4;
    EachVector(n, [&](int64_t j, int part) {
      VF sum = LoadN(sums + j, part);
      for (int64_t r = 0; r < last; ++r) sum += LoadN(x + (i + r) * ld + j, part);
      StoreN(sums + j, sum, part);
    });
  }
}

}  // namespace

extern const SoftmaxExpKernels kSoftmaxExp = {&Terms, &Gradient, &GradientOfExps, &AddColumns};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
