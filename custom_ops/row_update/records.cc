#include "row_update/records.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/bfloat16.h"
#include "common/sort.h"
#include "row_update/records_kernels.h"

namespace largeout {

uint32_t RecordMark(const float* record, int64_t words, int64_t row) {
  return LARGEOUT_SELECT(kRecordKernels).mark(record, words, row);
}

template <typename T, typename G, typename Id>
int RecordsCpu::Update(UpdateRule rule, float* records, int64_t rows, int64_t words, int64_t dim,
                       const Id* indices, int64_t n, const G* values, const StepNumbers& numbers,
                       BadIndex* bad) {
  *bad = {};
  if (rows == 0 && n > 0) *bad = {0, indices[0]};
  if (rows == 0 || n == 0) return 0;
  const RecordLayout layout = {dim, sizeof(T)};
  float* slots[kMaxSlots] = {};
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) {
    slots[k] = records + layout.SlotAt(rule, k);
  }
  T* table = reinterpret_cast<T*>(records + RecordLayout::kMarkWords);
  const RowStrides strides = {words * static_cast<int64_t>(sizeof(float) / sizeof(T)), words, words};
  bad->position =
      UpdateStridedRows(rule, table, rows, dim, slots, strides, indices, n, values, numbers, call_.parallel);
  if (bad->position >= 0) bad->index = indices[bad->position];
  return 0;
}

namespace {

constexpr int64_t kLine = 64;

// Starts loading `bytes` > 0 bytes, from the cache line where they begin to the one where they end.
inline void PrefetchBytes(const char* p, int64_t bytes) {
  const char* end = p + bytes;
  for (p -= reinterpret_cast<uintptr_t>(p) % kLine; p < end; p += kLine) __builtin_prefetch(p, 0, 3);
}

template <typename Id>
BadIndex FirstOutside(const Id* indices, int64_t n, int64_t rows) {
  for (int64_t i = 0; i < n; ++i) {
    if (indices[i] < 0 || indices[i] >= rows) return {i, indices[i]};
  }
  return {};
}

// The least of the positions that several threads find; -1 where none does.
class FirstFound {
 public:
  void Found(int64_t position) {
    int64_t known = first_;
    while (position < known && !first_.compare_exchange_weak(known, position)) {
    }
  }
  int64_t Get() const { return first_ == INT64_MAX ? -1 : first_.load(); }

 private:
  std::atomic<int64_t> first_{INT64_MAX};
};

inline uint32_t MarkAt(const float* record) {
  uint32_t mark;
  std::memcpy(&mark, record, sizeof(mark));
  return mark;
}

// Compares records with their marks, each once where there are bits to note it.
class Checker {
 public:
  Checker(const float* records, int64_t words, uint64_t* checked)
      : records_(records), words_(words), checked_(checked), kernels_(LARGEOUT_SELECT(kRecordKernels)) {}

  void Prefetch(int64_t row) const {
    if (checked_ != nullptr) __builtin_prefetch(checked_ + row / 64, 0, 3);
  }

  // Whether record `row`, which has the mark `mark`, is as it was written.
  bool IsWhole(int64_t row, uint32_t mark) const {
    if (mark == 0) return true;
    const uint64_t bit = uint64_t{1} << row % 64;
    if (checked_ != nullptr && (__atomic_load_n(checked_ + row / 64, __ATOMIC_RELAXED) & bit) != 0) return true;
    if (mark != kPlainMark && mark != kernels_.mark(records_ + row * words_, words_, row)) return false;
    if (checked_ != nullptr) __atomic_fetch_or(checked_ + row / 64, bit, __ATOMIC_RELAXED);
    return true;
  }

 private:
  const float* records_;
  const int64_t words_;
  uint64_t* const checked_;
  const RecordKernels& kernels_;
};

}  // namespace

template <typename Id>
int RecordsCpu::Write(float* records, int64_t rows, int64_t words, const Id* indices, int64_t n,
                      const float* contents, BadIndex* bad) {
  *bad = FirstOutside(indices, n, rows);
  if (bad->position >= 0 || n == 0) return 0;
  const int64_t behind = words - RecordLayout::kMarkWords;
  const RecordKernels& kernels = LARGEOUT_SELECT(kRecordKernels);
  const auto write = [=, &kernels](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* record = records + indices[i] * words;
      if (behind > 0) {
        std::memcpy(record + RecordLayout::kMarkWords, contents + i * behind, behind * sizeof(float));
      }
      const uint32_t mark = kernels.mark(record, words, indices[i]);
      std::memcpy(record, &mark, sizeof(mark));
    }
  };
  if (StrictlyIncreasing(indices, n)) {
    call_.parallel->For(n, 100 + 8 * words, write);
  } else {
    write(0, n);  // the same row may come twice
  }
  return 0;
}

template <typename Id>
int RecordsCpu::Gather(const RecordLayout& layout, const float* records, int64_t rows, int64_t words,
                       const Id* indices, int64_t n, void* out, bool* written, uint64_t* checked,
                       int64_t* damaged, BadIndex* bad) {
  *damaged = -1;
  *bad = FirstOutside(indices, n, rows);
  if (bad->position >= 0 || n == 0) return 0;
  constexpr int64_t kMarkBytes = RecordLayout::kMarkWords * sizeof(float);
  const int64_t row_bytes = layout.RowBytes();
  // A few kilobytes on their way keep the memory busy and stay in the first-level cache.
  constexpr int64_t kBytesAhead = 4096;
  const int64_t read = kMarkBytes + row_bytes, ahead = kBytesAhead / (read + kLine) + 2;
  const Checker checker(records, words, checked);
  FirstFound first;
  const auto prefetch = [=, &checker](int64_t i) {
    PrefetchBytes(reinterpret_cast<const char*>(records + indices[i] * words), read);
    if (row_bytes > 0) checker.Prefetch(indices[i]);
  };
  // About one cache line in 40 cycles where rows are far apart, and a miss of the TLB.
  call_.parallel->For(n, 100 + read, [=, &checker, &first](int64_t begin, int64_t end) {
    char* to = static_cast<char*>(out) + begin * row_bytes;
    for (int64_t i = begin; i < std::min(end, begin + ahead); ++i) prefetch(i);
    for (int64_t i = begin; i < end; ++i, to += row_bytes) {
      if (i + ahead < end) prefetch(i + ahead);
      const float* record = records + indices[i] * words;
      const uint32_t mark = MarkAt(record);
      written[i] = mark != 0;
      if (row_bytes == 0) continue;
      std::memcpy(to, record + RecordLayout::kMarkWords, row_bytes);
      if (!checker.IsWhole(indices[i], mark)) first.Found(i);
    }
  });
  *damaged = first.Get();
  return 0;
}

template <typename Id>
bool AllWritten(const float* records, int64_t rows, int64_t words, const Id* ids, int64_t n,
                uint64_t* checked, int64_t* damaged, Parallel* parallel) {
  const Checker checker(records, words, checked);
  std::atomic<bool> all{true};
  FirstFound first;
  parallel->For(n, 20, [&](int64_t begin, int64_t end) {
    bool written = true;
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows)) continue;
      const uint32_t mark = MarkAt(records + static_cast<int64_t>(ids[i]) * words);
      written &= mark != 0;
      if (!checker.IsWhole(ids[i], mark)) first.Found(i);
    }
    if (!written) all = false;
  });
  *damaged = first.Get();
  return all;
}

#define INSTANTIATE(T, G, Id)                                                                         \
  template int RecordsCpu::Update<T, G, Id>(UpdateRule, float*, int64_t, int64_t, int64_t, const Id*, \
                                            int64_t, const G*, const StepNumbers&, BadIndex*);
INSTANTIATE(float, float, int32_t)
INSTANTIATE(float, float, int64_t)
INSTANTIATE(float, bfloat16, int32_t)
INSTANTIATE(float, bfloat16, int64_t)
INSTANTIATE(bfloat16, float, int32_t)
INSTANTIATE(bfloat16, float, int64_t)
INSTANTIATE(bfloat16, bfloat16, int32_t)
INSTANTIATE(bfloat16, bfloat16, int64_t)
#undef INSTANTIATE

#define INSTANTIATE(Id)                                                                                      \
  template int RecordsCpu::Write<Id>(float*, int64_t, int64_t, const Id*, int64_t, const float*, BadIndex*); \
  template bool AllWritten<Id>(const float*, int64_t, int64_t, const Id*, int64_t, uint64_t*, int64_t*,      \
                               Parallel*);                                                                   \
  template int RecordsCpu::Gather<Id>(const RecordLayout&, const float*, int64_t, int64_t, const Id*,        \
                                      int64_t, void*, bool*, uint64_t*, int64_t*, BadIndex*);
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)
#undef INSTANTIATE

}  // namespace largeout
