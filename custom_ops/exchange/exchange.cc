#include "exchange/exchange.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "embedding/embedding.h"
#include "exchange/exchange_position.h"

namespace largeout {
namespace {

// Ids whose searches among the hot rows run side by side: each step of one waits for the step before.
constexpr int kSearches = 16;

// positions[i] = k where ids[i] is hot[k].
template <typename Id>
void PlaceHot(const int64_t* hot, int64_t num_hot, const Id* ids, int count, int64_t* positions) {
  int64_t base[kSearches] = {};
  for (int64_t length = num_hot; length > 1; length -= length / 2) {
    const int64_t half = length / 2;
    for (int i = 0; i < count; ++i) base[i] += hot[base[i] + half] <= ids[i] ? half : 0;
  }
  for (int i = 0; i < count; ++i) {
    if (hot[base[i]] == ids[i]) positions[i] = base[i];
  }
}

void LowerTo(int64_t value, std::atomic<int64_t>* least) {
  int64_t seen = least->load();
  while (value < seen && !least->compare_exchange_weak(seen, value)) {
  }
}

// Groups the ids by position; ids outside [0, rows) are left out. Returns -1, or the first i whose
// position_of[ids[i]] is outside [0, offsets[shards]): then groups is not touched.
template <typename Id>
int64_t GroupByPosition(const PlacementView& placement, const Id* ids, int64_t n, Parallel* parallel,
                        Groups* groups) {
  const ColdPosition cold(placement);
  const bool searches = placement.num_hot > 0 && placement.kind != PlacementKind::kExplicit;
  const uint64_t rows = static_cast<uint64_t>(placement.rows);
  const uint64_t limit = static_cast<uint64_t>(placement.offsets[placement.shards]);
  const std::unique_ptr<int64_t[]> positions(new int64_t[n]);
  std::atomic<int64_t> bad(n);
  parallel->For(n, searches ? 40 : 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool inside = static_cast<uint64_t>(ids[i]) < rows;
      positions[i] = inside ? cold(ids[i]) : -1;
      if (inside && static_cast<uint64_t>(positions[i]) >= limit) return LowerTo(i, &bad);
    }
    for (int64_t i = begin; searches && i < end; i += kSearches) {
      PlaceHot(placement.hot, placement.num_hot, ids + i,
               static_cast<int>(std::min<int64_t>(kSearches, end - i)), &positions[i]);
    }
  });
  if (bad < n) return bad;
  GroupIds(positions.get(), n, groups, parallel);
  return -1;
}

}  // namespace

int64_t FirstBadHot(const int64_t* hot, int64_t num_hot, int64_t rows) {
  for (int64_t k = 0; k < num_hot; ++k) {
    if (hot[k] <= (k == 0 ? -1 : hot[k - 1]) || hot[k] >= rows) return k;
  }
  return -1;
}

template <>
template <typename Id>
int ExchangeCpu::Plan(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids, int64_t* cuts,
                      PartitionFault* fault) {
  plan_.placement = placement, plan_.n = n, plan_.cuts = cuts;
  *fault = {};
  fault->hot = FirstBadHot(placement.hot, placement.num_hot, placement.rows);
  if (fault->hot >= 0) {
    fault->row = placement.hot[fault->hot];
    return 0;
  }
  if (check_ids) fault->id = FirstBadId(ids, n, placement.rows);
  if (fault->id >= 0) {
    fault->row = ids[fault->id];
    return 0;
  }
  fault->position = GroupByPosition(placement, ids, n, call_.parallel, &plan_.groups);
  if (fault->position >= 0) {
    fault->row = ids[fault->position];
    fault->value = placement.position_of[fault->row];
  }
  return 0;
}

template <>
int ExchangeCpu::Write(int64_t* unique, int64_t* local, int32_t* inverse) {
  const PlacementView& placement = plan_.placement;
  const Groups& groups = plan_.groups;
  int64_t* const cuts = plan_.cuts;
  const int64_t count = static_cast<int64_t>(groups.unique.size()), shards = placement.shards;
  const int64_t* positions = groups.unique.data();
  cuts[0] = 0;
  for (int64_t s = 0; s <= shards; ++s) {
    cuts[s + 1] = std::lower_bound(positions + cuts[s], positions + count, placement.offsets[s]) - positions;
  }
  call_.parallel->For(count, 4, [&](int64_t begin, int64_t end) {
    std::copy(positions + begin, positions + end, unique + begin);
    for (int64_t run = 0; run <= shards; ++run) {  // the hot rows, then the shards
      const int64_t first = run == 0 ? 0 : placement.offsets[run - 1], last = std::min(end, cuts[run + 1]);
      for (int64_t i = std::max(begin, cuts[run]); i < last; ++i) local[i] = positions[i] - first;
    }
  });
  if (static_cast<int64_t>(groups.order.size()) < plan_.n) std::fill(inverse, inverse + plan_.n, -1);
  // By occurrences, not by groups: one id may be half of the batch.
  call_.parallel->For(static_cast<int64_t>(groups.order.size()), 6, [&](int64_t begin, int64_t end) {
    const int64_t* starts = groups.starts.data();
    int64_t group = std::upper_bound(starts, starts + count + 1, begin) - starts - 1;
    for (int64_t i = begin; i < end; ++group) {
      for (const int64_t stop = std::min(end, starts[group + 1]); i < stop; ++i) {
        inverse[groups.order[i]] = static_cast<int32_t>(group);
      }
    }
  });
  return 0;
}

template int ExchangeCpu::Plan<int32_t>(const PlacementView&, const int32_t*, int64_t, bool, int64_t*,
                                        PartitionFault*);
template int ExchangeCpu::Plan<int64_t>(const PlacementView&, const int64_t*, int64_t, bool, int64_t*,
                                        PartitionFault*);

}  // namespace largeout
