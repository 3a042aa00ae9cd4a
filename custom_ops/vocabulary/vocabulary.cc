#include "vocabulary/vocabulary.h"

#include <algorithm>

#include "common/arena.h"
#include "vocabulary/vocabulary_hash.h"
#include "vocabulary/vocabulary_kernels.h"

namespace largeout {
namespace {

// Ids of a task: cut by the batch alone, so that the missing ids have one order whatever the threads.
constexpr int64_t kTask = 1024;
constexpr int64_t kCyclesPerId = 100;
constexpr int64_t kAhead = 16;

// The slots of the hash table in which n ids are made unique.
int64_t TableSize(int64_t n) {
  int64_t size = 16;
  while (size < 2 * n) size *= 2;
  return size;
}

// Scratch memory of a step with n ids.
struct Work {
  Work(void* base, int64_t n) {
    const int64_t tasks = (n + kTask - 1) / kTask;
    Arena arena(base);
    missing = arena.Take<int32_t>(tasks * kTask);
    num_missing = arena.Take<int64_t>(tasks);
    which = arena.Take<int32_t>(n);
    ids = arena.Take<int64_t>(n);
    hashes = arena.Take<uint64_t>(n);
    counts = arena.Take<int32_t>(n);
    slots = arena.Take<int64_t>(n);
    table = arena.Take<int32_t>(TableSize(n));
    bytes = arena.bytes();
  }

  int32_t* missing;      // positions in the batch: those of task t from t * kTask on
  int64_t* num_missing;  // of each task
  int32_t* which;        // of a missing position: which of `ids` it is
  // The missing ids, each once.
  int64_t* ids;
  uint64_t* hashes;
  int32_t* counts;
  int64_t* slots;
  int32_t* table;  // indices into ids, by their hashes; -1 where there is none
  int64_t bytes;
};

// Moves the missing positions of all tasks together, but for those of kEmptyKey. Returns how many they are.
int64_t GatherMissing(const int64_t* ids, int64_t n, Work* work) {
  int64_t count = 0;
  for (int64_t task = 0; task * kTask < n; ++task) {
    const int32_t* positions = work->missing + task * kTask;
    for (int64_t k = 0; k < work->num_missing[task]; ++k) {
      const int32_t position = positions[k];
      work->missing[count] = position;
      count += ids[position] != kEmptyKey;
    }
  }
  return count;
}

// Makes the ids at the missing positions unique, in the order of their first occurrences. Returns how many
// there are.
int64_t Deduplicate(const int64_t* ids, int64_t missing, Work* work) {
  const int64_t size = TableSize(missing);
  const uint64_t mask = static_cast<uint64_t>(size - 1);
  std::fill(work->table, work->table + size, -1);
  int64_t count = 0;
  uint64_t coming[kAhead];
  const auto start = [&](int64_t k) {
    const uint64_t h = MixBits(static_cast<uint64_t>(ids[work->missing[k]]));
    __builtin_prefetch(&work->table[h & mask], 1);
    coming[k % kAhead] = h;
  };
  for (int64_t k = 0; k < std::min(kAhead, missing); ++k) start(k);
  for (int64_t k = 0; k < missing; ++k) {
    const int64_t id = ids[work->missing[k]];
    const uint64_t h = coming[k % kAhead];
    if (k + kAhead < missing) start(k + kAhead);
    uint64_t at = h & mask;
    while (work->table[at] >= 0 && work->ids[work->table[at]] != id) at = (at + 1) & mask;
    int32_t& entry = work->table[at];
    if (entry < 0) {
      entry = static_cast<int32_t>(count);
      work->ids[count] = id, work->hashes[count] = h, work->counts[count] = 0;
      ++count;
    }
    ++work->counts[entry];
    work->which[k] = entry;
  }
  return count;
}

void HalveSketch(const VocabularyView& v, int64_t admit_after, Parallel* parallel) {
  const int64_t limit = 4 * admit_after * v.blocks;
  int times = 0;
  for (; v.blocks > 0 && v.clock[1] >= limit; ++times) v.clock[1] /= 2;
  if (times == 0) return;
  const int shift = std::min(times, 8);
  parallel->For(v.blocks * kCountersPerBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) v.sketch[i] = static_cast<uint8_t>(v.sketch[i] >> shift);
  });
}

int64_t Plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

}  // namespace

int VocabularyCpu::Find(const int64_t* keys, int64_t capacity, const int64_t* ids, int64_t n, int64_t* rows) {
  const VocabularyKernels& kernels = LARGEOUT_SELECT(kVocabularyKernels);
  call_.parallel->For(n, kCyclesPerId, [&](int64_t begin, int64_t end) {
    kernels.find(keys, capacity / kSlotsPerBucket, ids, begin, end, rows);
  });
  return 0;
}

int VocabularyCpu::Update(const VocabularyView& v, const VocabularyRules& rules, const int64_t* ids,
                          int64_t n, int64_t* rows, int64_t* replaced, int64_t* num_replaced) {
  const VocabularyKernels& kernels = LARGEOUT_SELECT(kVocabularyKernels);
  const int evict = static_cast<int>(rules.evict);
  void* memory = call_.scratch->Allocate(Work(nullptr, n).bytes);
  if (memory == nullptr) return kNoMemory;
  Work work(memory, n);
  const int64_t step = v.clock[0] = Plus(v.clock[0], 1);
  const int64_t tasks = (n + kTask - 1) / kTask;
  const bool shared = call_.parallel->threads() > 1 && tasks > 1;
  call_.parallel->For(tasks, kTask * kCyclesPerId, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      work.num_missing[task] =
          kernels.touch[evict](v, step, shared, ids, task * kTask, std::min(n, (task + 1) * kTask), rows,
                               work.missing + task * kTask);
    }
  });
  const int64_t num_missing = GatherMissing(ids, n, &work);
  const MissingIds missing = {work.ids, work.hashes, work.counts, Deduplicate(ids, num_missing, &work)};
  *num_replaced = kernels.place[evict](v, step, rules.admit_after, missing, work.slots, replaced);
  for (int64_t k = 0; k < num_missing; ++k) rows[work.missing[k]] = work.slots[work.which[k]];
  if (rules.admit_after > 1) v.clock[1] = Plus(v.clock[1], num_missing);
  HalveSketch(v, rules.admit_after, call_.parallel);
  return 0;
}

}  // namespace largeout
