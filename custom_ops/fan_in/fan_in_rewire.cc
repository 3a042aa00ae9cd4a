// Random connections, pruning and regrowth. Classes are independent of each other: each is one unit of work.
#include "fan_in/fan_in_rewire.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "fan_in/fan_in_kernels.h"
#include "fan_in/fan_in_ranges.h"
#include "fan_in/fan_in_sampling.h"

namespace largeout {
namespace {

template <typename T>
uint32_t FloatBits(T value) {
  const float x = ToFloat(value);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

template <typename Id>
int64_t FirstBad(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, Parallel* parallel) {
  const auto max_index = SelectFanIn<float, Id>().max_index;
  FirstBadRow bad;
  parallel->For(rows, fan_in + 1, [&](int64_t begin, int64_t end) {
    const int64_t row = FindBadRow(max_index, indices + begin * fan_in, end - begin, fan_in, inputs);
    if (row >= 0) bad.Found(begin + row);
  });
  return bad.get();
}

// One class after the other, with memory that they share.
template <typename T, typename Id>
class Rewiring {
 public:
  explicit Rewiring(const FanInRewiring<T, Id>& r)
      : r_(r),
        taken_(r.inputs),
        keys_(r.fan_in),
        sorted_(r.fan_in),
        order_(r.num_candidates),
        grown_(r.fan_in) {}

  // The number of connections that changed.
  int64_t Class(int64_t i) {
    const int64_t row = r_.first_row + i, at = row * r_.fan_in;
    pruned_.clear();
    FindPruned(at);
    const int64_t wanted = static_cast<int64_t>(pruned_.size());
    if (wanted == 0) return 0;
    for (int64_t k = 0; k < r_.fan_in; ++k) taken_.Add(r_.indices[at + k]);
    int64_t grown = r_.num_candidates > 0 ? GrowCandidates(i, wanted) : 0;
    if (r_.inputs - taken_.size() < wanted - grown) FreePruned(at, grown);
    taken_.Draw(FanInStream(r_.key, r_.first_class + row), wanted - grown, grown_.data() + grown);
    taken_.Clear();
    for (int64_t n = 0; n < wanted; ++n) {
      const int64_t element = at + pruned_[n];
      r_.indices[element] = static_cast<Id>(grown_[n]);
      FromFloat(0.f, &r_.weights[element]);
      for (int s = 0; s < r_.num_slots; ++s) r_.slots[s][element] = 0.f;
    }
    return wanted;
  }

 private:
  void FindPruned(int64_t at) {
    const uint64_t first = static_cast<uint64_t>(r_.first_class) * r_.fan_in + at;
    for (int64_t k = 0; k < r_.fan_in; ++k) {
      keys_[k] = FanInPruneKey(FloatBits(r_.weights[at + k]), r_.key, first + static_cast<uint64_t>(k));
    }
    int64_t threshold = r_.threshold;
    if (r_.count == 0) return;
    if (r_.count > 0) {
      sorted_ = keys_;
      std::nth_element(sorted_.begin(), sorted_.begin() + (r_.count - 1), sorted_.end());
      threshold = static_cast<int64_t>(sorted_[r_.count - 1]);
    }
    for (int64_t k = 0; k < r_.fan_in; ++k) {
      if (static_cast<int64_t>(keys_[k]) <= threshold) pruned_.push_back(k);
    }
  }

  int64_t GrowCandidates(int64_t i, int64_t wanted) {
    const int32_t* candidates = r_.candidates + i * r_.num_candidates;
    const float* scores = r_.scores + i * r_.num_candidates;
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {  // NaN last
      return std::fabs(scores[a]) > std::fabs(scores[b]) || (std::isnan(scores[b]) && !std::isnan(scores[a]));
    });
    int64_t grown = 0;
    for (int64_t n = 0; n < r_.num_candidates && grown < wanted; ++n) {
      if (taken_.Add(candidates[order_[n]])) grown_[grown++] = candidates[order_[n]];
    }
    return grown;
  }

  // Takes what is kept and what was grown alone.
  void FreePruned(int64_t at, int64_t grown) {
    taken_.Clear();
    size_t next = 0;
    for (int64_t k = 0; k < r_.fan_in; ++k) {
      if (next < pruned_.size() && pruned_[next] == k) {
        ++next;
      } else {
        taken_.Add(r_.indices[at + k]);
      }
    }
    for (int64_t n = 0; n < grown; ++n) taken_.Add(grown_[n]);
  }

  const FanInRewiring<T, Id>& r_;
  InputSet taken_;
  std::vector<uint64_t> keys_, sorted_;
  std::vector<int64_t> order_, grown_, pruned_;
};

}  // namespace

template <>
template <typename Id>
int FanInRewireCpu::Connections(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key,
                                int64_t first_class, Id* indices) {
  call_.parallel->For(rows, 20 * fan_in, [&](int64_t begin, int64_t end) {
    InputSet taken(inputs);
    for (int64_t row = begin; row < end; ++row) {
      taken.Draw(FanInStream(key, first_class + row), fan_in, indices + row * fan_in);
      taken.Clear();
    }
  });
  return 0;
}

template <>
template <typename Id>
int FanInRewireCpu::Candidates(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key,
                               int64_t first_class, int64_t first_row, int64_t rows, int64_t count,
                               int32_t* candidates, int64_t* bad) {
  *bad = FirstBad(indices + first_row * fan_in, rows, fan_in, inputs, call_.parallel);
  if (*bad >= 0) *bad += first_row;
  if (*bad >= 0 || count == 0) return 0;  // for how many rows ever
  call_.parallel->For(rows, 10 * fan_in + 20 * count, [&](int64_t begin, int64_t end) {
    InputSet taken(inputs);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t k = 0; k < fan_in; ++k) taken.Add(indices[(first_row + row) * fan_in + k]);
      taken.Draw(FanInStream(key, first_class + first_row + row), count, candidates + row * count);
      taken.Clear();
    }
  });
  return 0;
}

template <>
template <typename T>
int FanInRewireCpu::KeyCounts(const T* weights, int64_t rows, int64_t fan_in, uint64_t key,
                              int64_t first_class, uint64_t prefix, int digit, int64_t* counts) {
  constexpr int64_t kDigits = int64_t{1} << kFanInDigitBits;
  const int shift = kFanInDigitBits * (kFanInKeyDigits - 1 - digit);  // of the digit within the key
  const uint64_t first = static_cast<uint64_t>(first_class) * fan_in;
  std::atomic<int64_t> totals[kDigits] = {};
  call_.parallel->For(rows * fan_in, 4, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> own(kDigits);
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t bits = FloatBits(weights[i]) & 0x7fffffffu;
      uint64_t whole = static_cast<uint64_t>(bits) << 32;
      if (shift + kFanInDigitBits < 32) {  // the random half counts: only where the other one agrees
        if (bits != static_cast<uint32_t>(prefix >> (32 - shift - kFanInDigitBits))) continue;
      } else if (whole >> (shift + kFanInDigitBits) != prefix) {
        continue;
      }
      if (shift < 32) whole = FanInPruneKey(bits, key, first + static_cast<uint64_t>(i));
      if (whole >> (shift + kFanInDigitBits) == prefix) ++own[whole >> shift & (kDigits - 1)];
    }
    for (int64_t d = 0; d < kDigits; ++d) {
      if (own[d] != 0) totals[d].fetch_add(own[d], std::memory_order_relaxed);
    }
  });
  for (int64_t d = 0; d < kDigits; ++d) counts[d] = totals[d].load();
  return 0;
}

template <>
template <typename T, typename Id>
int FanInRewireCpu::Rewire(const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad,
                           bool* bad_candidate) {
  *changes = 0;
  *bad = FirstBad(r.indices + r.first_row * r.fan_in, r.rows, r.fan_in, r.inputs, call_.parallel);
  *bad_candidate = false;
  if (*bad >= 0) *bad += r.first_row;
  if (*bad >= 0) return 0;
  *bad = FirstBad(AsIndices(r.candidates), r.rows, r.num_candidates, r.inputs, call_.parallel);
  *bad_candidate = *bad >= 0;
  if (*bad >= 0) return 0;
  if (r.fan_in == 0) return 0;  // nothing to prune, in how many rows ever
  std::atomic<int64_t> total(0);
  call_.parallel->For(r.rows, 30 * r.fan_in + 40 * r.num_candidates, [&](int64_t begin, int64_t end) {
    Rewiring<T, Id> rewiring(r);
    int64_t own = 0;
    for (int64_t i = begin; i < end; ++i) own += rewiring.Class(i);
    total.fetch_add(own, std::memory_order_relaxed);
  });
  *changes = total.load();
  return 0;
}

template <>
template <typename Id>
int FanInRewireCpu::Degrees(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, int64_t* degrees,
                            int64_t* bad) {
  *bad = FirstBad(indices, rows, fan_in, inputs, call_.parallel);
  if (*bad >= 0) return 0;
  // Each range counts for itself, where the counts are less memory than what is counted.
  const bool together = inputs > rows * fan_in;
  const FanInRanges ranges(rows, together ? 1 : 8, 1024);
  std::fill_n(degrees, inputs, 0);
  if (ranges.count <= 1) {
    for (int64_t i = 0; i < rows * fan_in; ++i) ++degrees[indices[i]];
    return 0;
  }
  std::vector<std::vector<int64_t>> own(ranges.count);
  call_.parallel->For(ranges.count, ranges.rows * fan_in * 2, [&](int64_t begin, int64_t end) {
    for (int64_t range = begin; range < end; ++range) {
      own[range].resize(inputs);
      for (int64_t i = ranges.begin(range) * fan_in; i < ranges.end(range) * fan_in; ++i)
        ++own[range][indices[i]];
    }
  });
  for (const std::vector<int64_t>& part : own) {
    for (int64_t i = 0; i < inputs; ++i) degrees[i] += part[i];
  }
  return 0;
}

#define LARGEOUT_OF_INDICES(Id)                                                                             \
  template int FanInRewireCpu::Connections<Id>(int64_t, int64_t, int64_t, uint64_t, int64_t, Id*);          \
  template int FanInRewireCpu::Candidates<Id>(const Id*, int64_t, int64_t, uint64_t, int64_t, int64_t,      \
                                              int64_t, int64_t, int32_t*, int64_t*);                        \
  template int FanInRewireCpu::Degrees<Id>(const Id*, int64_t, int64_t, int64_t, int64_t*, int64_t*);       \
  template int FanInRewireCpu::Rewire<float, Id>(const FanInRewiring<float, Id>&, int64_t*, int64_t*,       \
                                                 bool*);                                                    \
  template int FanInRewireCpu::Rewire<bfloat16, Id>(const FanInRewiring<bfloat16, Id>&, int64_t*, int64_t*, \
                                                    bool*);
LARGEOUT_OF_INDICES(uint16_t)
LARGEOUT_OF_INDICES(uint32_t)
#undef LARGEOUT_OF_INDICES
template int FanInRewireCpu::KeyCounts<float>(const float*, int64_t, int64_t, uint64_t, int64_t, uint64_t,
                                              int, int64_t*);
template int FanInRewireCpu::KeyCounts<bfloat16>(const bfloat16*, int64_t, int64_t, uint64_t, int64_t,
                                                 uint64_t, int, int64_t*);

}  // namespace largeout
