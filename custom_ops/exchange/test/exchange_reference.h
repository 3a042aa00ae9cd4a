// The formulas of exchange.h one id at a time, with random placements to try them on.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_REFERENCE_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_REFERENCE_H_

#include <algorithm>
#include <set>
#include <vector>

#include "common/test/check.h"
#include "exchange/exchange.h"

namespace largeout {

// A placement that owns its arrays. `num_hot` random rows are hot.
struct OwnedPlacement {
  PlacementView view;
  std::vector<int64_t> offsets, position_of, hot;

  OwnedPlacement(PlacementKind kind, int64_t rows, int64_t shards, int64_t num_hot, Random* random) {
    std::set<int64_t> chosen;
    while (static_cast<int64_t>(chosen.size()) < num_hot) chosen.insert(random->Below(rows));
    hot.assign(chosen.begin(), chosen.end());
    offsets.push_back(num_hot);
    const int64_t each = (rows + shards - 1) / shards;
    for (int64_t s = 0; s < shards; ++s) {
      const int64_t size = kind == PlacementKind::kModulo
                               ? (rows - s + shards - 1) / shards
                               : std::max<int64_t>(0, std::min(each, rows - s * each));
      offsets.push_back(offsets.back() + size);
    }
    int64_t multiplier = rows / 3 + 1;
    const auto divides = [&](int64_t a) {
      int64_t b = rows;
      while (b != 0) std::swap(a %= b, b);
      return a == 1;
    };
    while (!divides(multiplier)) ++multiplier;
    if (kind == PlacementKind::kExplicit) {
      for (int64_t r = 0; r < rows; ++r) position_of.push_back(r);
      for (int64_t r = rows - 1; r > 0; --r) std::swap(position_of[r], position_of[random->Below(r + 1)]);
      offsets[0] = num_hot;
      for (size_t s = 1; s < offsets.size(); ++s) offsets[s] = std::max(offsets[s] - num_hot, num_hot);
      offsets.back() = std::max(rows, num_hot);
      hot.clear();
    }
    view = {kind,
            rows,
            shards,
            multiplier % rows,
            rows / 2,
            offsets.data(),
            position_of.data(),
            hot.data(),
            static_cast<int64_t>(hot.size())};
  }

  int64_t Position(int64_t row) const {
    if (view.kind == PlacementKind::kExplicit) return position_of[row];
    for (size_t k = 0; k < hot.size(); ++k) {
      if (hot[k] == row) return static_cast<int64_t>(k);
    }
    const int64_t num_hot = static_cast<int64_t>(hot.size());
    if (view.kind == PlacementKind::kModulo) return offsets[row % view.shards] + row / view.shards;
    return num_hot +
           (view.kind == PlacementKind::kIdentity ? row : (row * view.multiplier + view.addend) % view.rows);
  }
};

struct Partition {
  std::vector<int64_t> unique, local, cuts;
  std::vector<int32_t> inverse;
  bool operator==(const Partition& o) const {
    return unique == o.unique && local == o.local && cuts == o.cuts && inverse == o.inverse;
  }
};

template <typename Id>
Partition TruePartition(const OwnedPlacement& placement, const std::vector<Id>& ids) {
  std::set<int64_t> positions;
  const auto valid = [&](Id id) { return id >= 0 && id < placement.view.rows; };
  for (Id id : ids) {
    if (valid(id)) positions.insert(placement.Position(id));
  }
  Partition p;
  p.unique.assign(positions.begin(), positions.end());
  for (Id id : ids) {
    const auto at = [&] {
      return std::lower_bound(p.unique.begin(), p.unique.end(), placement.Position(id));
    };
    p.inverse.push_back(valid(id) ? static_cast<int32_t>(at() - p.unique.begin()) : -1);
  }
  p.cuts.assign(placement.view.shards + 2, 0);
  for (int64_t position : p.unique) {
    int64_t run = 0;  // 0: hot
    while (run < placement.view.shards && position >= placement.offsets[run]) ++run;
    p.local.push_back(position - (run == 0 ? 0 : placement.offsets[run - 1]));
    for (int64_t later = run + 1; later < placement.view.shards + 2; ++later) ++p.cuts[later];
  }
  return p;
}

// Ids in [-2, rows + 2), half of them below 3.
template <typename Id>
std::vector<Id> RandomIds(int64_t n, int64_t rows, Random* random) {
  std::vector<Id> ids;
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<Id>(random->Below(2) == 0 ? random->Below(3) : random->Below(rows + 4) - 2));
  }
  return ids;
}

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_REFERENCE_H_
