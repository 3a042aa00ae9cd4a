// Softmax rows, their gradient, and conversions.
#include <math.h>

#include "common/simd_math.h"
#include "tree_softmax/tree_softmax_kernels.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

LARGEOUT_INLINE VF LoadRest(const float* p, int n, float fill) {
  VI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return Where(lane < n, LoadPart(p, n), Set(fill));
}

LARGEOUT_INLINE float HighLane(VF v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  return MaxLanes(v);
#endif
}

LARGEOUT_INLINE float RowMax(const float* x, int64_t n) {
  const float lowest = -INFINITY;
  VF high = Set(lowest);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) high = Max(high, Load(x + j));
  if (j < n) high = Max(high, LoadRest(x + j, static_cast<int>(n - j), lowest));
  return HighLane(high);
}

// Sum of exp(x - high); the terms go to `out` where it is not null.
LARGEOUT_INLINE float ExpSum(const float* x, int64_t n, float high, float* out) {
  VF sum0 = Zero(), sum1 = Zero();
  const VF h = Set(high);
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    const VF e0 = Exp(Load(x + j) - h), e1 = Exp(Load(x + j + kLanes) - h);
    if (out != nullptr) Store(out + j, e0), Store(out + j + kLanes, e1);
    sum0 += e0, sum1 += e1;
  }
  for (; j + kLanes <= n; j += kLanes) {
    const VF e = Exp(Load(x + j) - h);
    if (out != nullptr) Store(out + j, e);
    sum0 += e;
  }
  if (j < n) {
    const int part = static_cast<int>(n - j);
    const VF e = Exp(LoadRest(x + j, part, -INFINITY) - h);
    // A row of -inf gives NaN in every lane; the lanes beyond the row must not add to it.
    VI lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    if (out != nullptr) StorePart(out + j, e, part);
    sum1 += Where(lane < part, e, Zero());
  }
  return SumLanes(sum0 + sum1);
}

static void Softmax(float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first, float* lse,
                    float* ce) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = logits + i * ld;
    const float high = RowMax(row, n);
    const float picked = row[target[i] - first];
    const float sum = ExpSum(row, n, high, row);
    const float log_sum = logf(sum);
    const VF scale = Set(1.f / sum);
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) Store(row + j, Load(row + j) * scale);
    const int part = static_cast<int>(n - j);
    if (part > 0) StorePart(row + j, LoadPart(row + j, part) * scale, part);
    lse[i] = high + log_sum;
    ce[i] = (high - picked) + log_sum;  // not lse - picked: exact where one logit stands far above the others
  }
}

static void Online(const float* logits, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first, float* high,
                   float* total, float* picked) {
  for (int64_t i = 0; i < m; ++i) {
    const float* row = logits + i * ld;
    const float block = RowMax(row, n);
    const float top = block > high[i] ? block : high[i];
    // -inf so far, in this block too: a sum of exp(-inf) = 0, not of exp(-inf + inf).
    const float shift = top == -INFINITY ? 0.f : top;
    total[i] = total[i] * expf(high[i] - shift) + ExpSum(row, n, shift, nullptr);
    high[i] = top;
    const int64_t j = static_cast<int64_t>(target[i]) - first;
    if (j >= 0 && j < n) picked[i] = row[j];
  }
}

static void Normalize(float* logits, int64_t ld, int64_t m, int64_t n, const float* lse) {
  for (int64_t i = 0; i < m; ++i) ExpSum(logits + i * ld, n, lse[i], logits + i * ld);
}

static void Gradient(const float* probs, int64_t ld, int64_t m, int64_t n, const int32_t* target, int32_t first,
                     const float* scale, float* out, int64_t ld_out) {
  for (int64_t i = 0; i < m; ++i) {
    const float* row = probs + i * ld;
    float* to = out + i * ld_out;
    const int64_t at = static_cast<int64_t>(target[i]) - first;
    const bool here = at >= 0 && at < n;
    const float hit = here ? (row[at] - 1.f) * scale[i] : 0.f;
    const VF s = Set(scale[i]);
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) Store(to + j, Load(row + j) * s);
    const int part = static_cast<int>(n - j);
    if (part > 0) StorePart(to + j, LoadPart(row + j, part) * s, part);
    if (here) to[at] = hit;
  }
}

static void ColumnSums(const float* in, int64_t ld, int64_t m, int64_t n, float* out, bool add) {
  for (int64_t j = 0; j < n; j += kLanes) {
    const int part = static_cast<int>(n - j < kLanes ? n - j : kLanes);
    if (part == kLanes) {
      VF sum = add ? Load(out + j) : Zero();
      for (int64_t i = 0; i < m; ++i) sum += Load(in + i * ld + j);
      Store(out + j, sum);
    } else {
      VF sum = add ? LoadPart(out + j, part) : Zero();
      for (int64_t i = 0; i < m; ++i) sum += LoadPart(in + i * ld + j, part);
      StorePart(out + j, sum, part);
    }
  }
}

template <typename From, typename To>
static void Convert(const From* in, int64_t n, To* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(in + i));
  const int part = static_cast<int>(n - i);
  if (part > 0) StorePart(out + i, LoadPart(in + i, part), part);
}

}  // namespace

extern const TreeExpKernels kTreeExp = {&Softmax,    &Online,      &Normalize,
                                        &Gradient,   &ColumnSums,  &Convert<bfloat16, float>,
                                        &Convert<float, bfloat16>};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
