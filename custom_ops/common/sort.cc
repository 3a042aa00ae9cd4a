#include "common/sort.h"

#include <algorithm>
#include <memory>

#include "common/parallel.h"

namespace largeout {
namespace {

// Fewer are not worth a thread: what one has written the others read from a slower cache.
constexpr int64_t kIdsPerChunk = 65536;
constexpr int64_t kSmall = 256;  // fewer are sorted by comparison

// An id with its value. Both in one word where the ids fit in 32 bits, as they nearly always do: half the
// traffic.
struct Packed {
  uint64_t bits;
  static Packed Make(uint64_t id, int32_t value) { return {id << 32 | static_cast<uint32_t>(value)}; }
  uint64_t id() const { return bits >> 32; }
  int32_t value() const { return static_cast<int32_t>(bits); }
};
struct Wide {
  uint64_t key;
  int32_t carried;
  static Wide Make(uint64_t id, int32_t value) { return {id, value}; }
  uint64_t id() const { return key; }
  int32_t value() const { return carried; }
};

// Contiguous chunks of the input, one task each: counting sort is stable and independent of who runs which chunk.
struct Chunks {
  int64_t n, count;
  Parallel* parallel;
  int64_t begin(int64_t c) const { return n * c / count; }
  // task(c, first, last) for each chunk.
  template <typename Task>
  void Run(const Task& task) const {
    if (count == 1) return task(0, int64_t{0}, n);
    parallel->For(count, 1000000, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) task(c, begin(c), begin(c + 1));
    });
  }
};

Chunks Split(int64_t n, Parallel* parallel) {
  const int64_t threads = parallel == nullptr ? 1 : parallel->threads();
  return {n, std::max<int64_t>(1, std::min(threads, n / kIdsPerChunk)), parallel};
}

// up(i) for the first half of [begin, end), ascending, and down(i) for the rest, descending, in turns. Adding
// to a counter waits for the sum before, and equal ids come often, after the first pass side by side: so each
// half has its own counters.
template <typename Up, typename Down>
void FromBothEnds(int64_t begin, int64_t end, const Up& up, const Down& down) {
  for (; end - begin > 1; ++begin) {
    up(begin);
    down(--end);
  }
  if (begin < end) up(begin);
}

// One stable pass by the digit (id >> shift) & mask into `out`, of get(i) for those i in [0, n) for which
// keep(i).
template <typename Item, typename Keep, typename Get>
void CountingPass(const Chunks& chunks, int shift, uint64_t mask, const Keep& keep, const Get& get,
                  Item* out) {
  const int64_t digits = static_cast<int64_t>(mask) + 1;
  // Of each chunk and digit: the place of the next item from the front, and from the back.
  std::vector<int32_t> places(chunks.count * 2 * digits);
  const auto each = [=](int64_t begin, int64_t end, int32_t* front, const auto& up, const auto& down) {
    int32_t* const back = front + digits;
    FromBothEnds(
        begin, end,
        [=](int64_t i) {
          if (keep(i)) up(get(i), &front[get(i).id() >> shift & mask]);
        },
        [=](int64_t i) {
          if (keep(i)) down(get(i), &back[get(i).id() >> shift & mask]);
        });
  };
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    const auto count = [](const Item&, int32_t* here) { ++*here; };
    each(begin, end, &places[c * 2 * digits], count, count);
  });
  int32_t sum = 0;
  for (int64_t d = 0; d < digits; ++d) {
    for (int64_t c = 0; c < chunks.count; ++c) {
      int32_t &front = places[c * 2 * digits + d], &back = places[(c * 2 + 1) * digits + d];
      const int32_t first = sum;
      sum += front + back;
      front = first, back = sum - 1;
    }
  }
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    each(
        begin, end, &places[c * 2 * digits],
        [out](const Item& item, int32_t* place) { out[(*place)++] = item; },
        [out](const Item& item, int32_t* place) { out[(*place)--] = item; });
  });
}

// Sorted items -> groups.
template <typename Item>
void Extract(const Chunks& chunks, const Item* items, Groups* groups) {
  std::vector<int64_t> heads(chunks.count + 1);
  // An id that is not that of the item before `begin`.
  const auto other = [items](int64_t begin) { return begin == 0 ? ~items[0].id() : items[begin - 1].id(); };
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int64_t count = begin < end && items[begin].id() != other(begin);
    for (int64_t i = begin + 1; i < end; ++i) count += items[i].id() != items[i - 1].id();
    heads[c + 1] = count;
  });
  for (int64_t c = 0; c < chunks.count; ++c) heads[c + 1] += heads[c];
  groups->unique.resize(heads[chunks.count]);
  groups->starts.resize(heads[chunks.count] + 1);
  groups->order.resize(chunks.n);
  groups->starts.back() = chunks.n;
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) {
    int32_t* const order = groups->order.data();
    int64_t *const unique = groups->unique.data(), *const starts = groups->starts.data();
    for (int64_t i = begin; i < end; ++i) order[i] = items[i].value();
    // Every item is written where the next head goes, and stays there if it is one: no branch is guessed
    // wrongly.
    uint64_t last = begin < end ? other(begin) : 0;
    for (int64_t i = begin, g = heads[c]; g < heads[c + 1]; ++i) {
      const uint64_t id = items[i].id();
      unique[g] = static_cast<int64_t>(id);
      starts[g] = i;
      g += id != last;
      last = id;
    }
  });
}

// The bits that some ids have, those that all have, and how many are valid.
struct Used {
  uint64_t any = 0, all = ~uint64_t{0};
  int64_t valid = 0;
};

template <typename Id>
Used Look(const Id* ids, int64_t n) {
  Used used;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t skipped = ids[i] < 0 ? ~uint64_t{0} : 0, id = static_cast<uint64_t>(ids[i]);
    used.any |= id & ~skipped, used.all &= id | skipped;
    used.valid += skipped == 0;
  }
  return used;
}

template <typename Item, typename Id>
void Group(const Id* ids, int64_t n, const int32_t* values, const Used& used, Parallel* parallel,
           Groups* groups) {
  const int64_t valid = used.valid;
  const std::unique_ptr<Item[]> a(new Item[valid]), b(new Item[valid]);
  const auto item = [ids, values](int64_t i) {
    return Item::Make(static_cast<uint64_t>(ids[i]), values != nullptr ? values[i] : static_cast<int32_t>(i));
  };
  const auto is_valid = [ids](int64_t i) { return ids[i] >= 0; };
  const auto always = [](int64_t) { return true; };
  const Chunks chunks = Split(n, parallel), sorted = Split(valid, parallel);
  const uint64_t varying = used.any & ~used.all;
  if (valid < kSmall || varying == 0) {
    Item* end = a.get();
    for (int64_t i = 0; i < n; ++i) {
      if (is_valid(i)) *end++ = item(i);
    }
    if (varying != 0)
      std::stable_sort(a.get(), end, [](const Item& x, const Item& y) { return x.id() < y.id(); });
    return Extract(sorted, a.get(), groups);
  }
  int low = 0, high = 64;
  while ((varying >> low & 1) == 0) ++low;
  while ((varying >> (high - 1) & 1) == 0) --high;
  // Wider digits mean fewer passes but more counters: 12 bits when there are items enough to fill them.
  int widest = 8;
  while (widest < 12 && (valid >> (widest + 2)) != 0) ++widest;
  const int passes = (high - low + widest - 1) / widest, digit = (high - low + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit) - 1;
  Item *items = a.get(), *spare = b.get();
  if (valid == n) {
    CountingPass(chunks, low, mask, always, item, items);
  } else {
    CountingPass(chunks, low, mask, is_valid, item, items);
  }
  for (int pass = 1; pass < passes; ++pass) {
    const auto next = [items](int64_t i) { return items[i]; };
    CountingPass(sorted, low + pass * digit, mask, always, next, spare);
    std::swap(items, spare);
  }
  Extract(sorted, items, groups);
}

}  // namespace

template <typename Id>
void GroupIds(const Id* ids, int64_t n, Groups* groups, Parallel* parallel, const int32_t* values) {
  const Chunks chunks = Split(n, parallel);
  std::vector<Used> parts(chunks.count);
  chunks.Run([&](int64_t c, int64_t begin, int64_t end) { parts[c] = Look(ids + begin, end - begin); });
  Used used;
  for (const Used& part : parts) used.any |= part.any, used.all &= part.all, used.valid += part.valid;
  if ((used.any >> 32) == 0) {
    Group<Packed>(ids, n, values, used, parallel, groups);
  } else {
    Group<Wide>(ids, n, values, used, parallel, groups);
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

template void GroupIds<int32_t>(const int32_t*, int64_t, Groups*, Parallel*, const int32_t*);
template void GroupIds<int64_t>(const int64_t*, int64_t, Groups*, Parallel*, const int32_t*);
template bool StrictlyIncreasing<int32_t>(const int32_t*, int64_t);
template bool StrictlyIncreasing<int64_t>(const int64_t*, int64_t);

}  // namespace largeout
