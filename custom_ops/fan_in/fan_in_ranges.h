// Cuts classes into ranges: by the sizes of the problem alone, so that sums over ranges are the same
// for any number of threads. Internal to the family.
#ifndef LARGEOUT_FAN_IN_FAN_IN_RANGES_H_
#define LARGEOUT_FAN_IN_FAN_IN_RANGES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "fan_in/fan_in.h"

namespace largeout {

constexpr int64_t kFanInChunk = 64;  // rows that are gone through together; ranges consist of whole chunks
constexpr int64_t kFanInTile =
    8;  // rows whose inputs stay in the first-level cache between logits and gradients

struct FanInRanges {
  FanInRanges(int64_t classes, int64_t most, int64_t least_rows) : classes(classes) {
    rows = std::max(least_rows, (classes + most - 1) / most);
    rows = (rows + kFanInChunk - 1) / kFanInChunk * kFanInChunk;
    count = (classes + rows - 1) / rows;
  }
  int64_t begin(int64_t range) const { return range * rows; }
  int64_t end(int64_t range) const { return std::min(classes, (range + 1) * rows); }
  int64_t classes, rows, count;
};

// Ranges of a forward pass: enough for any number of threads.
inline FanInRanges ForwardRanges(int64_t classes) { return FanInRanges(classes, 64, 1024); }

// Processor cycles of `rows` rows of one block: about one for eight gathered bytes.
inline int64_t FanInCost(int64_t rows, int64_t fan_in, int width) { return rows * (fan_in * width / 2 + 50); }

// The first row with a bad index that any task found.
class FirstBadRow {
 public:
  void Found(int64_t row) {
    int64_t before = row_.load();
    while (row < before && !row_.compare_exchange_weak(before, row)) {
    }
  }
  int64_t get() const { return row_.load() == INT64_MAX ? -1 : row_.load(); }

 private:
  std::atomic<int64_t> row_{INT64_MAX};
};

// The first of `rows` rows with an index outside [0, inputs), or -1. Cheap: the indices are needed next.
// Where every value of uint16 is an input, nothing is looked at.
template <typename Id, typename MaxIndex>
int64_t FindBadRow(MaxIndex max_index, const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs) {
  if (sizeof(Id) == 2 && inputs > UINT16_MAX) return -1;
  if (static_cast<int64_t>(max_index(indices, rows * fan_in)) < inputs || rows * fan_in == 0) return -1;
  for (int64_t row = 0;; ++row) {
    if (static_cast<int64_t>(max_index(indices + row * fan_in, fan_in)) >= inputs) return row;
  }
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_RANGES_H_
