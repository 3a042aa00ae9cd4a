#include "common/sort.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "common/parallel.h"

namespace largeout {
namespace {

constexpr int64_t kIdsPerChunk = 8192;  // fewer are not worth a thread
constexpr int64_t kSmall = 512;         // fewer are sorted by comparison

// An id with its position. Both in one word where the ids fit in 32 bits, as they nearly always do: half the traffic.
struct Packed {
  uint64_t bits;
  static Packed Make(uint64_t id, int64_t position) { return {id << 32 | static_cast<uint64_t>(position)}; }
  uint64_t id() const { return bits >> 32; }
  int32_t position() const { return static_cast<int32_t>(bits); }
};
struct Wide {
  uint64_t key;
  int32_t where;
  static Wide Make(uint64_t id, int64_t position) { return {id, static_cast<int32_t>(position)}; }
  uint64_t id() const { return key; }
  int32_t position() const { return where; }
};

// Contiguous chunks of the input, one task each: counting sort is stable and independent of who runs which chunk.
struct Chunks {
  int64_t n, count;
  Parallel* parallel;
  int64_t begin(int64_t c) const { return n * c / count; }
  void Run(const std::function<void(int64_t chunk, int64_t begin, int64_t end)>& task) const {
    if (count == 1) return task(0, 0, n);
    parallel->For(count, 1000000, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) task(c, begin(c), begin(c + 1));
    });
  }
};

Chunks Split(int64_t n, Parallel* parallel) {
  const int64_t threads = parallel == nullptr ? 1 : parallel->threads();
  return {n, std::max<int64_t>(1, std::min(threads, n / kIdsPerChunk)), parallel};
}

// One stable pass by the digit (id >> shift) & mask. each(begin, end, emit) calls emit(item) for the valid items of an
// input range, in order; they land in `out`.
template <typename Item, typename Each>
void CountingPass(const Chunks& chunks, int shift, uint64_t mask, const Each& each, Item* out) {
  const int64_t digits = static_cast<int64_t>(mask) + 1;
  std::vector<int32_t> offsets(chunks.count * digits);
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int32_t* count = &offsets[c * digits];
    each(begin, end, [=](const Item& item) { ++count[(item.id() >> shift) & mask]; });
  });
  int32_t sum = 0;
  for (int64_t d = 0; d < digits; ++d) {
    for (int64_t c = 0; c < chunks.count; ++c) {
      int32_t& offset = offsets[c * digits + d];
      const int32_t here = offset;
      offset = sum;
      sum += here;
    }
  }
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int32_t* offset = &offsets[c * digits];
    each(begin, end, [=](const Item& item) { out[offset[(item.id() >> shift) & mask]++] = item; });
  });
}

// Sorted items -> groups.
template <typename Item>
void Extract(const Chunks& chunks, const Item* items, Groups* groups) {
  std::vector<int64_t> heads(chunks.count + 1);
  const auto head = [items](int64_t i) { return i == 0 || items[i].id() != items[i - 1].id(); };
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += head(i);
    heads[c + 1] = count;
  });
  for (int64_t c = 0; c < chunks.count; ++c) heads[c + 1] += heads[c];
  groups->unique.resize(heads[chunks.count]);
  groups->starts.resize(heads[chunks.count] + 1);
  groups->order.resize(chunks.n);
  groups->starts.back() = chunks.n;
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int64_t g = heads[c];
    for (int64_t i = begin; i < end; ++i) {
      groups->order[i] = items[i].position();
      if (!head(i)) continue;
      groups->unique[g] = static_cast<int64_t>(items[i].id());
      groups->starts[g++] = i;
    }
  });
}

template <typename Item, typename Id>
void Group(const Chunks& chunks, const Id* ids, int64_t valid, uint64_t used, Groups* groups) {
  const auto from_ids = [ids](int64_t begin, int64_t end, const auto& emit) {
    for (int64_t i = begin; i < end; ++i) {
      if (ids[i] >= 0) emit(Item::Make(static_cast<uint64_t>(ids[i]), i));
    }
  };
  std::unique_ptr<Item[]> a(new Item[valid]), b;
  const Chunks sorted = Split(valid, chunks.parallel);
  if (valid < kSmall) {
    Item* end = a.get();
    from_ids(0, chunks.n, [&end](const Item& item) { *end++ = item; });
    std::sort(a.get(), end, [](const Item& x, const Item& y) {
      return x.id() != y.id() ? x.id() < y.id() : x.position() < y.position();
    });
    return Extract(sorted, a.get(), groups);
  }
  // Wider digits mean fewer passes but more counters: 12 bits when there are items enough to fill them.
  int bits = 1;
  while (bits < 64 && (used >> bits) != 0) ++bits;
  int widest = 8;
  while (widest < 12 && (valid >> (widest + 2)) != 0) ++widest;
  const int passes = (bits + widest - 1) / widest, digit = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit) - 1;
  CountingPass<Item>(chunks, 0, mask, from_ids, a.get());
  if (passes > 1) b.reset(new Item[valid]);
  for (int pass = 1; pass < passes; ++pass) {
    const Item* source = a.get();
    CountingPass<Item>(
        sorted, pass * digit, mask,
        [source](int64_t begin, int64_t end, const auto& emit) {
          for (int64_t i = begin; i < end; ++i) emit(source[i]);
        },
        b.get());
    a.swap(b);
  }
  Extract(sorted, a.get(), groups);
}

}  // namespace

template <typename Id>
void GroupIds(const Id* ids, int64_t n, Groups* groups, Parallel* parallel) {
  const Chunks chunks = Split(n, parallel);
  std::vector<int64_t> valid(chunks.count);
  std::vector<uint64_t> used(chunks.count);
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int64_t count = 0;
    uint64_t bits = 0;
    for (int64_t i = begin; i < end; ++i) {
      const bool is_valid = ids[i] >= 0;
      count += is_valid;
      bits |= is_valid ? static_cast<uint64_t>(ids[i]) : 0;
    }
    valid[c] = count;
    used[c] = bits;
  });
  for (int64_t c = 1; c < chunks.count; ++c) valid[0] += valid[c], used[0] |= used[c];
  if ((used[0] >> 32) == 0) {
    Group<Packed>(chunks, ids, valid[0], used[0], groups);
  } else {
    Group<Wide>(chunks, ids, valid[0], used[0], groups);
  }
}

template <typename Id>
bool StrictlyIncreasing(const Id* ids, int64_t n) {
  Id last = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] <= last) return false;
    last = ids[i];
  }
  return true;
}

template void GroupIds<int32_t>(const int32_t*, int64_t, Groups*, Parallel*);
template void GroupIds<int64_t>(const int64_t*, int64_t, Groups*, Parallel*);
template bool StrictlyIncreasing<int32_t>(const int32_t*, int64_t);
template bool StrictlyIncreasing<int64_t>(const int64_t*, int64_t);

}  // namespace largeout
