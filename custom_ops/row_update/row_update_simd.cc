// The loops of the row update. Rows are far apart in memory: the time goes into waiting for them, so rows and
// slots a few indices ahead are always on their way.
#include "common/simd_random.h"
#include "row_update/row_rounding.h"
#include "row_update/row_update_kernels.h"
#include "row_update/row_update_rules.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

// Stores the values of a step as they are; `Store` rounds them to nearest.
struct Nearest {
  explicit Nearest(const RowUpdateTask&) {}
  inline __attribute__((always_inline)) uint32_t OfRow(int64_t) const { return 0; }
  inline __attribute__((always_inline)) VF Round(VF w, VU, VU) const { return w; }
};

struct Stochastic {
  explicit Stochastic(const RowUpdateTask& task) : rounding(task.rounding) {}
  inline __attribute__((always_inline)) uint32_t OfRow(int64_t row) const { return rounding.OfRow(row); }
  // of_row: OfRow of each lane's row.
  inline __attribute__((always_inline)) VF Round(VF w, VU of_row, VU columns) const {
    return RoundStochastically(w, RandomBits(of_row, columns));
  }
  RowRounding rounding;
};

template <typename RuleT, typename RoundT, typename T, typename G>
LARGEOUT_INLINE void UpdateElements(const RuleT& rule, const RoundT& round, int64_t row, T* w,
                                    float* const* slots, const G* g, int64_t dim) {
  const VU of_row = VU{} + round.OfRow(row), lanes = LaneNumbers();
  VF s[kMaxSlots] = {};
  int64_t j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    for (int k = 0; k < RuleT::kSlots; ++k) s[k] = Load(slots[k] + j);
    const VF next = rule.Step(Load(g + j), Load(w + j), s);
    Store(w + j, round.Round(next, of_row, lanes + static_cast<uint32_t>(j)));
    for (int k = 0; k < RuleT::kSlots; ++k) Store(slots[k] + j, s[k]);
  }
  if (j < dim) {
    const int rest = static_cast<int>(dim - j);
    for (int k = 0; k < RuleT::kSlots; ++k) s[k] = LoadPart(slots[k] + j, rest);
    const VF next = rule.Step(LoadPart(g + j, rest), LoadPart(w + j, rest), s);
    StorePart(w + j, round.Round(next, of_row, lanes + static_cast<uint32_t>(j)), rest);
    for (int k = 0; k < RuleT::kSlots; ++k) StorePart(slots[k] + j, s[k], rest);
  }
}

// Sum of squares over 16 running sums whatever the vector width, which are then halved four times: every
// level gives the same bits.
template <typename G>
LARGEOUT_INLINE float SumOfSquares(const G* g, int64_t dim) {
  constexpr int kSums = 16, kVectors = kSums / kLanes;
  VF sums[kVectors] = {};
  int64_t j = 0;
  for (; j + kSums <= dim; j += kSums) {
    for (int k = 0; k < kVectors; ++k) {
      const VF x = Load(g + j + k * kLanes);
      sums[k] += x * x;
    }
  }
  for (int k = 0; k < kVectors; ++k) {
    const int rest = static_cast<int>(dim - j) - k * kLanes;
    if (rest <= 0) break;
    const VF x = rest >= kLanes ? Load(g + j + k * kLanes) : LoadPart(g + j + k * kLanes, rest);
    sums[k] += x * x;
  }
  for (int width = kVectors / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
#if defined(__AVX512F__)
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256((__m512)sums[0]), _mm512_extractf32x8_ps((__m512)sums[0], 1));
#elif defined(__AVX2__)
  const __m256 eight = (__m256)sums[0];
#endif
#if defined(__AVX2__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  const VF four = sums[0];
  return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

template <typename RuleT, typename RoundT, typename T, typename G>
LARGEOUT_INLINE void UpdateRow(RuleT& rule, const RoundT& round, const RowUpdateTask& task, int64_t row,
                               const G* g) {
  T* w = static_cast<T*>(task.table) + row * task.strides.table;
  if constexpr (__is_same(RuleT, RowWiseAdagrad)) {
    float& sum = task.slots[0][row * task.strides.slot];
    sum += SumOfSquares(g, task.dim) / static_cast<float>(task.dim);
    rule.root = Sqrt(Set(sum + rule.epsilon));
    UpdateElements(rule, round, row, w, task.slots, g, task.dim);
  } else {
    float* slots[kMaxSlots] = {};
    for (int k = 0; k < RuleT::kSlots; ++k) slots[k] = task.slots[k] + row * task.strides.slot;
    UpdateElements(rule, round, row, w, slots, g, task.dim);
  }
}

template <typename G>
LARGEOUT_INLINE void Accumulate(float* sum, const G* g, int64_t dim, bool first) {
  int64_t j = 0;
  for (; j + kLanes <= dim; j += kLanes) Store(sum + j, first ? Load(g + j) : Load(sum + j) + Load(g + j));
  for (; j < dim; ++j) sum[j] = first ? ToFloat(g[j]) : sum[j] + ToFloat(g[j]);
}

// Rows of up to half a vector: as many as fit make one vector, since a rule costs as much for one lane as for
// all. (With a length that the compiler does not know its loops over a row's few elements take longer than
// that.)
template <int kDim, typename RuleT, typename RoundT, typename T, typename G>
LARGEOUT_INLINE void UpdateNarrow(const RuleT& rule, const RoundT& round, const RowUpdateTask& task,
                                  int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 64;
  T* table = static_cast<T*>(task.table);
  const G* values = static_cast<const G*>(task.values);
  const RowStrides strides = task.strides;
  constexpr int kAtOnce = kLanes / kDim;
  const int64_t known = end < task.known ? task.known : end;
  const VU columns = LaneNumbers() % kDim;
  for (int64_t i = begin; i < end; i += kAtOnce) {
    const int count = end - i < kAtOnce ? static_cast<int>(end - i) : kAtOnce;
    float w[kLanes] = {}, g[kLanes] = {}, s[kMaxSlots][kLanes] = {};
    VU of_row = {};
    for (int r = 0, lane = 0; r < count; ++r, lane += kDim) {
      const int64_t row = task.rows[i + r];
      if (i + r + kAhead < known) {
        const int64_t next = task.rows[i + r + kAhead];
        Prefetch(table + next * strides.table);
        for (int k = 0; k < RuleT::kSlots; ++k) Prefetch(task.slots[k] + next * strides.slot);
      }
      for (int j = 0; j < kDim; ++j) w[lane + j] = ToFloat(table[row * strides.table + j]);
      const uint32_t bits = round.OfRow(row);
      for (int j = 0; j < kDim; ++j) of_row[lane + j] = bits;
      for (int k = 0; k < RuleT::kSlots; ++k) {
        for (int j = 0; j < kDim; ++j) s[k][lane + j] = task.slots[k][row * strides.slot + j];
      }
      if (task.starts == nullptr) {
        for (int j = 0; j < kDim; ++j) g[lane + j] = ToFloat(values[(i + r) * kDim + j]);
      } else {
        const int64_t start = task.starts[i + r], stop = task.starts[i + r + 1];
        for (int j = 0; j < kDim; ++j) g[lane + j] = ToFloat(values[int64_t{task.order[start]} * kDim + j]);
        for (int64_t p = start + 1; p < stop; ++p) {
          for (int j = 0; j < kDim; ++j) g[lane + j] += ToFloat(values[int64_t{task.order[p]} * kDim + j]);
        }
      }
    }
    VF slots[kMaxSlots] = {};
    for (int k = 0; k < RuleT::kSlots; ++k) slots[k] = Load(s[k]);
    Store(w, round.Round(rule.Step(Load(g), Load(w), slots), of_row, columns));
    for (int k = 0; k < RuleT::kSlots; ++k) Store(s[k], slots[k]);
    for (int r = 0, lane = 0; r < count; ++r, lane += kDim) {
      const int64_t row = task.rows[i + r];
      for (int j = 0; j < kDim; ++j) FromFloat(w[lane + j], table + row * strides.table + j);
      for (int k = 0; k < RuleT::kSlots; ++k) {
        for (int j = 0; j < kDim; ++j) task.slots[k][row * strides.slot + j] = s[k][lane + j];
      }
    }
  }
}

template <typename RuleT, typename RoundT, typename T, typename G>
void UpdateRows(const RowUpdateTask& task, int64_t begin, int64_t end, float* scratch) {
  RuleT rule(task.hyper);
  const RoundT round(task);
  const int64_t dim = task.dim;
  if constexpr (!__is_same(RuleT, RowWiseAdagrad)) {
    if (dim == 1) return UpdateNarrow<1, RuleT, RoundT, T, G>(rule, round, task, begin, end);
    if (dim == 2) return UpdateNarrow<2, RuleT, RoundT, T, G>(rule, round, task, begin, end);
    if constexpr (kLanes > 4) {
      if (dim == 4) return UpdateNarrow<4, RuleT, RoundT, T, G>(rule, round, task, begin, end);
    }
    if constexpr (kLanes > 8) {
      if (dim == 8) return UpdateNarrow<8, RuleT, RoundT, T, G>(rule, round, task, begin, end);
    }
  }
  const int64_t table_bytes = dim * static_cast<int64_t>(sizeof(T)),
                slot_bytes = dim * static_cast<int64_t>(sizeof(float));
  // A few kilobytes on their way keep the memory busy and stay in the first-level cache.
  constexpr int64_t kBytesAhead = 4096;
  const int64_t ahead = kBytesAhead / (table_bytes + RuleT::kSlots * slot_bytes) + 2;
  // Of a longer row its beginning: the processor goes on by itself, and whole ones would push out of the
  // caches what is read now (rows of 16,384, as dense weights have them: 1.2 times the time).
  const auto first_of = [](int64_t bytes) { return bytes > kBytesAhead ? 1024 : bytes; };
  const int64_t first_of_table = first_of(table_bytes), first_of_slot = first_of(slot_bytes);
  const RowStrides strides = task.strides;
  const T* table = static_cast<const T*>(task.table);
  const G* values = static_cast<const G*>(task.values);
  const auto prefetch = [&](int64_t i) __attribute__((always_inline)) {
    const int64_t row = task.rows[i];
    PrefetchRow(table + row * strides.table, first_of_table);
    for (int k = 0; k < RuleT::kSlots; ++k) PrefetchRow(task.slots[k] + row * strides.slot, first_of_slot);
    if constexpr (__is_same(RuleT, RowWiseAdagrad)) Prefetch(task.slots[0] + row * strides.slot);
    if (task.order != nullptr)
      PrefetchRow(values + task.order[task.starts[i]] * dim, first_of(dim * static_cast<int64_t>(sizeof(G))));
  };
  const int64_t known = end < task.known ? task.known : end;
  for (int64_t i = begin; i < end && i < begin + ahead; ++i) prefetch(i);
  for (int64_t i = begin; i < end; ++i) {
    if (i + ahead < known) prefetch(i + ahead);
    const int64_t row = task.rows[i];
    int64_t value = i;
    if (task.starts != nullptr) {
      const int64_t start = task.starts[i], stop = task.starts[i + 1];
      if (stop - start > 1) {
        for (int64_t p = start; p < stop; ++p) Accumulate(scratch, values + task.order[p] * dim, dim, p == start);
        UpdateRow<RuleT, RoundT, T>(rule, round, task, row, static_cast<const float*>(scratch));
        continue;
      }
      value = task.order[start];
    }
    UpdateRow<RuleT, RoundT, T>(rule, round, task, row, values + value * dim);
  }
}

#define LARGEOUT_STORED(RuleT, RoundT, T) \
  {UpdateRows<RuleT, RoundT, T, float>, UpdateRows<RuleT, RoundT, T, bfloat16>}
#define LARGEOUT_TYPES(RuleT)                       \
  {                                                 \
      LARGEOUT_STORED(RuleT, Nearest, float),       \
      LARGEOUT_STORED(RuleT, Nearest, bfloat16),    \
      LARGEOUT_STORED(RuleT, Stochastic, bfloat16), \
  }

}  // namespace

extern const RowUpdateKernels kRowUpdateKernels = {{
    LARGEOUT_TYPES(Sgd),
    LARGEOUT_TYPES(Momentum),
    LARGEOUT_TYPES(Nesterov),
    LARGEOUT_TYPES(Adagrad),
    LARGEOUT_TYPES(RowWiseAdagrad),
    LARGEOUT_TYPES(LazyAdam),
    LARGEOUT_TYPES(Ftrl),
}};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
