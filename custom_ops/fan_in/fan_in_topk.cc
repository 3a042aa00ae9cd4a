// The largest logits: every range of classes keeps the best of each example of a block; then the ranges are
// merged.
#include <cmath>
#include <cstring>
#include <limits>

#include "fan_in/fan_in_kernels.h"
#include "fan_in/fan_in_ranges.h"

namespace largeout {
namespace {

struct Scored {
  int32_t key;  // of the score, ascending; NaN lowest
  int32_t row;
  float score;
  bool operator<(const Scored& other) const {
    return key > other.key || (key == other.key && row < other.row);
  }  // better
};

// An integer that orders as the score does; -0 equals 0.
int32_t KeyOf(float score) {
  if (std::isnan(score)) return std::numeric_limits<int32_t>::min();
  score += 0.f;
  int32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  return bits < 0 ? -(bits & 0x7fffffff) : bits;
}

// The best `size` of one example in a range: a heap, the worst on top once it is full.
struct Best {
  std::vector<Scored> scored;

  // Returns what a score must exceed to enter, or NaN where any may.
  float Offer(float score, int32_t row, size_t size) {
    const Scored next{KeyOf(score), row, score};
    if (scored.size() < size) {
      scored.push_back(next);
      std::push_heap(scored.begin(), scored.end());
    } else if (next < scored.front()) {
      std::pop_heap(scored.begin(), scored.end());
      scored.back() = next;
      std::push_heap(scored.begin(), scored.end());
    }
    return scored.size() < size ? NAN : scored.front().score;
  }
};

template <typename T, typename Id>
class Search {
 public:
  Search(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks, int64_t k)
      : layer_(layer), batch_(batch), blocks_(blocks), k_(k) {}

  // The best of rows [begin, end) for the examples of a block: best[lane], in no order.
  void Range(int64_t block, int64_t begin, int64_t end, Best* best, FirstBadRow* bad) const {
    const int width = batch_.width;
    const int64_t lanes = std::min<int64_t>(width, batch_.size - block * width);
    const size_t size = static_cast<size_t>(std::min(k_, end - begin));
    float tile[kFanInChunk * kFanInMaxWidth], bound[kFanInMaxWidth];
    for (int lane = 0; lane < width; ++lane)
      bound[lane] = lane < lanes ? NAN : std::numeric_limits<float>::infinity();
    for (int64_t row = begin; row < end; row += kFanInChunk) {
      const int64_t n = std::min(kFanInChunk, end - row), at = row * layer_.fan_in;
      const int64_t wrong =
          FindBadRow(kernels_.max_index, layer_.indices + at, n, layer_.fan_in, layer_.inputs);
      if (wrong >= 0) return bad->Found(row + wrong);
      kernels_.logits(layer_.weights + at, layer_.indices + at,
                      layer_.bias == nullptr ? nullptr : layer_.bias + row, layer_.fan_in, {nullptr, n},
                      blocks_ + block * batch_.inputs * width, width, tile);
      uint32_t bits[kFanInChunk];  // a bound that rises within the chunk lets too many through, not too few
      loss_kernels_.above(tile, n, width, bound, bits);
      for (int64_t i = 0; i < n; ++i) {
        for (uint32_t above = bits[i]; above != 0; above &= above - 1) {
          const int lane = __builtin_ctz(above);
          if (lane < lanes)
            bound[lane] = best[lane].Offer(tile[i * width + lane], static_cast<int32_t>(row + i), size);
        }
      }
    }
  }

 private:
  const FanInKernels<T, Id>& kernels_ = SelectFanIn<T, Id>();
  const FanInLossKernels& loss_kernels_ = LARGEOUT_SELECT(kFanInLoss);
  const FanInLayer<T, Id> layer_;
  const FanInBatch batch_;
  const float* blocks_;
  const int64_t k_;
};

}  // namespace

template <>
template <typename T, typename Id, typename Out>
int FanInCpu::TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad) {
  // A block at a time: what its ranges keep is all the memory it takes.
  const FanInRanges ranges = ForwardRanges(layer.classes);
  const Search<T, Id> top(layer, batch_, blocks_, k);
  const int width = batch_.width;
  *bad = -1;
  FirstBadRow bad_rows;
  for (int64_t block = 0; k > 0 && block < batch_.blocks; ++block) {
    std::vector<Best> best(ranges.count * width);
    call_.parallel->For(ranges.count, FanInCost(ranges.rows, layer.fan_in, width),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t r = begin; r < end; ++r)
                            top.Range(block, ranges.begin(r), ranges.end(r), &best[r * width], &bad_rows);
                        });
    *bad = bad_rows.get();
    if (*bad >= 0) return 0;
    const int64_t lanes = std::min<int64_t>(width, batch_.size - block * width);
    call_.parallel->For(lanes, ranges.count * k * 20, [&](int64_t begin, int64_t end) {
      std::vector<Scored> all;
      for (int64_t lane = begin; lane < end; ++lane) {
        all.clear();
        for (int64_t r = 0; r < ranges.count; ++r) {
          const std::vector<Scored>& some = best[r * width + lane].scored;
          all.insert(all.end(), some.begin(), some.end());
        }
        std::partial_sort(all.begin(), all.begin() + k, all.end());
        for (int64_t i = 0; i < k; ++i) {
          const int64_t at = (block * width + lane) * k + i;
          scores[at] = all[i].score;
          rows[at] = static_cast<Out>(all[i].row);
        }
      }
    });
  }
  return 0;
}

#define LARGEOUT_TOPK(T, Id)                                                                       \
  template int FanInCpu::TopK<T, Id, int32_t>(const FanInLayer<T, Id>&, int64_t, float*, int32_t*, \
                                              int64_t*);                                           \
  template int FanInCpu::TopK<T, Id, int64_t>(const FanInLayer<T, Id>&, int64_t, float*, int64_t*, int64_t*);
LARGEOUT_TOPK(float, uint16_t)
LARGEOUT_TOPK(float, uint32_t)
LARGEOUT_TOPK(bfloat16, uint16_t)
LARGEOUT_TOPK(bfloat16, uint32_t)
#undef LARGEOUT_TOPK

}  // namespace largeout
