// Labels of examples, turned into what goes through the classes needs: for every block, (row, example) in
// ascending order.
#include <algorithm>

#include "fan_in/fan_in.h"

namespace largeout {
namespace {

struct Found {
  int64_t block;
  int32_t row, example;
  float weight;
};

}  // namespace

template <typename Label>
FanInLabelStatus SortLabels(const FanInLabels<Label>& labels, const FanInBatch& batch, int64_t classes,
                            FanInPositives* positives, int64_t* position) {
  *position = -1;
  positives->sorted.clear();
  positives->block_start.assign(batch.blocks + 1, 0);
  for (int64_t b = 0; b <= batch.size; ++b) {
    const bool good = b == 0 ? labels.row_splits[0] == 0 : labels.row_splits[b] >= labels.row_splits[b - 1];
    if (!good || (b == batch.size && labels.row_splits[b] != labels.count)) {
      *position = b;
      return FanInLabelStatus::kBadSplits;
    }
  }
  std::vector<Found> found;
  for (int64_t b = 0; b < batch.size; ++b) {
    for (int64_t at = labels.row_splits[b]; at < labels.row_splits[b + 1]; ++at) {
      const int64_t label = labels.ids[at];
      if (label < -1 || label >= labels.num_classes) {
        *position = at;
        return FanInLabelStatus::kBadLabel;
      }
      const int64_t row = label - labels.first_class;
      if (label < 0 || row < 0 || row >= classes) continue;
      found.push_back({b / batch.width, static_cast<int32_t>(row), static_cast<int32_t>(b),
                       labels.weights == nullptr ? 1.f : labels.weights[at]});
    }
  }
  // Stable: of duplicates the first stays first.
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.block != b.block ? a.block < b.block : (a.row != b.row ? a.row < b.row : a.example < b.example);
  });
  for (size_t i = 0; i < found.size(); ++i) {
    if (i > 0 && found[i].row == found[i - 1].row && found[i].example == found[i - 1].example) continue;
    positives->sorted.push_back({found[i].row, found[i].example, found[i].weight});
    ++positives->block_start[found[i].block + 1];
  }
  for (int64_t block = 0; block < batch.blocks; ++block)
    positives->block_start[block + 1] += positives->block_start[block];
  return FanInLabelStatus::kOk;
}

template FanInLabelStatus SortLabels<int32_t>(const FanInLabels<int32_t>&, const FanInBatch&, int64_t,
                                              FanInPositives*, int64_t*);
template FanInLabelStatus SortLabels<int64_t>(const FanInLabels<int64_t>&, const FanInBatch&, int64_t,
                                              FanInPositives*, int64_t*);

}  // namespace largeout
