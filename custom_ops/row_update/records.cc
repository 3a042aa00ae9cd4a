#include "row_update/records.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/bfloat16.h"

namespace largeout {

template <typename T, typename G, typename Id>
int64_t RecordUpdate(UpdateRule rule, float* records, int64_t rows, int64_t words, int64_t dim,
                     const Id* indices, int64_t n, const G* values, const float* hyper, Parallel* parallel) {
  if (n == 0) return -1;
  if (rows == 0) return 0;
  const RecordLayout layout = {dim, sizeof(T)};
  float* slots[kMaxSlots] = {};
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) {
    slots[k] = records + layout.SlotAt(rule, k);
  }
  T* table = reinterpret_cast<T*>(records + RecordLayout::kMarkWords);
  const RowStrides strides = {words * static_cast<int64_t>(sizeof(float) / sizeof(T)), words};
  return RowUpdate(rule, table, rows, dim, slots, strides, indices, n, values, hyper, parallel);
}

namespace {

constexpr int64_t kLine = 64;

// Starts loading `bytes` > 0 bytes, from the cache line where they begin to the one where they end.
inline void PrefetchBytes(const char* p, int64_t bytes) {
  const char* end = p + bytes;
  for (p -= reinterpret_cast<uintptr_t>(p) % kLine; p < end; p += kLine) __builtin_prefetch(p, 0, 3);
}

}  // namespace

template <typename Id>
int64_t GatherRecords(const RecordLayout& layout, const float* records, int64_t rows, int64_t words,
                      const Id* indices, int64_t n, void* out, bool* written, Parallel* parallel) {
  for (int64_t i = 0; i < n; ++i) {
    if (indices[i] < 0 || indices[i] >= rows) return i;
  }
  if (n == 0) return -1;
  constexpr int64_t kMarkBytes = RecordLayout::kMarkWords * sizeof(float);
  const int64_t stride = words * static_cast<int64_t>(sizeof(float)), row_bytes = layout.RowBytes();
  // A few kilobytes on their way keep the memory busy and stay in the first-level cache.
  constexpr int64_t kBytesAhead = 4096;
  const int64_t read = kMarkBytes + row_bytes, ahead = kBytesAhead / (read + kLine) + 2;
  const char* from = reinterpret_cast<const char*>(records);
  // About one cache line in 40 cycles where rows are far apart, and a miss of the TLB.
  parallel->For(n, 100 + read, [=](int64_t begin, int64_t end) {
    char* to = static_cast<char*>(out) + begin * row_bytes;
    for (int64_t i = begin; i < std::min(end, begin + ahead); ++i)
      PrefetchBytes(from + indices[i] * stride, read);
    for (int64_t i = begin; i < end; ++i, to += row_bytes) {
      if (i + ahead < end) PrefetchBytes(from + indices[i + ahead] * stride, read);
      const char* record = from + indices[i] * stride;
      uint32_t mark;
      std::memcpy(&mark, record, sizeof(mark));
      written[i] = mark != 0;
      if (row_bytes > 0) std::memcpy(to, record + kMarkBytes, row_bytes);
    }
  });
  return -1;
}

template <typename Id>
bool AllWritten(const float* records, int64_t rows, int64_t words, const Id* ids, int64_t n, Parallel* parallel) {
  std::atomic<bool> all{true};
  parallel->For(n, 20, [&](int64_t begin, int64_t end) {
    bool written = true;
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows)) continue;
      uint32_t mark;
      std::memcpy(&mark, records + static_cast<int64_t>(ids[i]) * words, sizeof(mark));
      written &= mark != 0;
    }
    if (!written) all = false;
  });
  return all;
}

#define INSTANTIATE(T, G, Id)                                                                                \
  template int64_t RecordUpdate<T, G, Id>(UpdateRule, float*, int64_t, int64_t, int64_t, const Id*, int64_t, \
                                          const G*, const float*, Parallel*);
INSTANTIATE(float, float, int32_t)
INSTANTIATE(float, float, int64_t)
INSTANTIATE(float, bfloat16, int32_t)
INSTANTIATE(float, bfloat16, int64_t)
INSTANTIATE(bfloat16, float, int32_t)
INSTANTIATE(bfloat16, float, int64_t)
INSTANTIATE(bfloat16, bfloat16, int32_t)
INSTANTIATE(bfloat16, bfloat16, int64_t)
#undef INSTANTIATE

template bool AllWritten<int32_t>(const float*, int64_t, int64_t, const int32_t*, int64_t, Parallel*);
template bool AllWritten<int64_t>(const float*, int64_t, int64_t, const int64_t*, int64_t, Parallel*);
template int64_t GatherRecords<int32_t>(const RecordLayout&, const float*, int64_t, int64_t, const int32_t*,
                                        int64_t, void*, bool*, Parallel*);
template int64_t GatherRecords<int64_t>(const RecordLayout&, const float*, int64_t, int64_t, const int64_t*,
                                        int64_t, void*, bool*, Parallel*);

}  // namespace largeout
