// The labels of a batch, for every block in the order in which classes are gone through; and the forward pass
// of the losses: range by range of the classes, each with its sums; the sums meet in a fixed order.
#include <algorithm>
#include <cstring>

#include "fan_in/fan_in_kernels.h"
#include "fan_in/fan_in_loss_terms.h"
#include "fan_in/fan_in_ranges.h"

namespace largeout {
namespace {

// A label as it was found.
struct Found {
  int64_t block;
  int32_t row, example;
  float weight;
};

// The sums of one range of classes, by the lanes of its block. Chunks are summed in float32, ranges in float64.
struct RangeSums {
  double loss[kFanInMaxWidth] = {};   // softmax: sum over labels of weight * logit
  double mass[kFanInMaxWidth] = {};   // softmax only, as what follows
  double total[kFanInMaxWidth] = {};  // sum of exp(logit - high)
  float high[kFanInMaxWidth];
};

template <typename T, typename Id>
class Forward {
 public:
  Forward(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks, FanInLoss loss,
          const FanInPositives& positives, uint8_t* active)
      : layer_(layer), batch_(batch), blocks_(blocks), loss_(loss), positives_(positives), active_(active) {}

  void Range(int64_t block, int64_t begin, int64_t end, RangeSums* sums, FirstBadRow* bad) const {
    const int width = batch_.width;
    std::fill_n(sums->high, width, kNoTerm);
    PositiveCursor cursor(positives_, block, begin);
    float tile[kFanInChunk * kFanInMaxWidth];
    for (int64_t row = begin; row < end; row += kFanInChunk) {
      const int64_t n = std::min(kFanInChunk, end - row), at = row * layer_.fan_in;
      // Also for a chunk that is left out: the next one must not be handed its labels.
      const FanInPositive *first, *last;
      cursor.Until(row + n, &first, &last);
      const int64_t wrong =
          FindBadRow(kernels_.max_index, layer_.indices + at, n, layer_.fan_in, layer_.inputs);
      if (wrong >= 0) {
        bad->Found(row + wrong);
        continue;
      }
      kernels_.logits(layer_.weights + at, layer_.indices + at,
                      layer_.bias == nullptr ? nullptr : layer_.bias + row, layer_.fan_in, {nullptr, n},
                      blocks_ + block * batch_.inputs * width, width, tile);
      Chunk(block, row, n, first, last, tile, sums);
    }
  }

 private:
  void Chunk(int64_t block, int64_t row, int64_t n, const FanInPositive* first, const FanInPositive* last,
             float* tile, RangeSums* sums) const {
    const int width = batch_.width;
    uint8_t active[kFanInChunk], labels_active[kFanInChunk] = {};
    for (const FanInPositive* p = first; p != last; ++p) {
      const int64_t lane = p->example - block * width;
      float* z = tile + (p->row - row) * width + lane;
      if (loss_ == FanInLoss::kSoftmax) {
        sums->loss[lane] += static_cast<double>(p->weight) * *z;
        sums->mass[lane] += p->weight;
      } else {
        sums->loss[lane] += p->weight * PositiveTerm(loss_, *z);
        labels_active[p->row - row] |= !(PositiveGradient(loss_, *z) == 0.0);
        *z = kNoTerm;
      }
    }
    float sum[kFanInMaxWidth] = {};
    if (loss_ == FanInLoss::kSoftmax) {
      float before[kFanInMaxWidth];
      std::memcpy(before, sums->high, sizeof(before));
      loss_kernels_.softmax(tile, n, width, sums->high, sum);
      for (int lane = 0; lane < width; ++lane) {
        if (sums->high[lane] != before[lane]) {
          sums->total[lane] *= std::exp(static_cast<double>(before[lane]) - sums->high[lane]);
        }
        sums->total[lane] += sum[lane];
      }
      return;
    }
    if (loss_ == FanInLoss::kSquaredHinge) {
      const int64_t lanes = std::min<int64_t>(width, batch_.size - block * width);
      loss_kernels_.hinge(tile, n, width, static_cast<int>(lanes), sum, active);
      uint8_t* bits = active_ + block * ((layer_.classes + 7) / 8) + row / 8;
      for (int64_t i = 0; i < n; i += 8) {
        uint8_t byte = 0;
        for (int64_t j = i; j < std::min(i + 8, n); ++j)
          byte |= static_cast<uint8_t>((active[j] | labels_active[j]) << (j - i));
        bits[i / 8] = byte;
      }
    } else {
      loss_kernels_.entropy(tile, n, width, sum);
    }
    for (int lane = 0; lane < width; ++lane) sums->loss[lane] += sum[lane];
  }

  const FanInKernels<T, Id>& kernels_ = SelectFanIn<T, Id>();
  const FanInLossKernels& loss_kernels_ = LARGEOUT_SELECT(kFanInLoss);
  const FanInLayer<T, Id> layer_;
  const FanInBatch batch_;
  const float* blocks_;
  const FanInLoss loss_;
  const FanInPositives& positives_;
  uint8_t* active_;
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

template <>
template <typename T, typename Id>
int FanInCpu::LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                          const FanInLossOutputs& out, int64_t* bad) {
  const FanInRanges ranges = ForwardRanges(layer.classes);
  std::vector<RangeSums> sums(batch_.blocks * ranges.count);
  const Forward<T, Id> forward(layer, batch_, blocks_, loss, positives, out.active);
  FirstBadRow bad_rows;
  call_.parallel->For(static_cast<int64_t>(sums.size()), FanInCost(ranges.rows, layer.fan_in, batch_.width),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t task = begin; task < end; ++task) {
                          const int64_t range = task % ranges.count;
                          forward.Range(task / ranges.count, ranges.begin(range), ranges.end(range),
                                        &sums[task], &bad_rows);
                        }
                      });
  for (int64_t example = 0; example < batch_.size; ++example) {
    const int64_t lane = example % batch_.width;
    const RangeSums* of = sums.data() + example / batch_.width * ranges.count;
    double total = 0, mass = 0, exponentials = 0;
    float high = kNoTerm;
    for (int64_t r = 0; r < ranges.count; ++r) {
      total += of[r].loss[lane];
      mass += of[r].mass[lane];
      if (!(of[r].high[lane] <= high)) high = of[r].high[lane];
    }
    if (loss == FanInLoss::kSoftmax) {
      for (int64_t r = 0; r < ranges.count; ++r) {
        if (of[r].high[lane] == kNoTerm) continue;  // exp(-inf) of every class
        exponentials += of[r].total[lane] * std::exp(static_cast<double>(of[r].high[lane]) - high);
      }
      const double lse = high + std::log(exponentials);
      out.lse[example] = static_cast<float>(lse);
      out.mass[example] = static_cast<float>(mass);
      total =
          mass == 0 && total == 0 ? 0.0 : mass * lse - total;  // without labels 0, though all logits be -inf
    }
    out.loss[example] = static_cast<float>(total);
  }
  *bad = bad_rows.get();
  return 0;
}

#define LARGEOUT_FORWARD(T, Id)                                                                         \
  template int FanInCpu::LossForward<T, Id>(const FanInLayer<T, Id>&, FanInLoss, const FanInPositives&, \
                                            const FanInLossOutputs&, int64_t*);
LARGEOUT_FORWARD(float, uint16_t)
LARGEOUT_FORWARD(float, uint32_t)
LARGEOUT_FORWARD(bfloat16, uint16_t)
LARGEOUT_FORWARD(bfloat16, uint32_t)
#undef LARGEOUT_FORWARD

}  // namespace largeout
