// Connections: different within a class, the same for any number of threads and parts; pruning takes the
// weakest.
#include "fan_in/fan_in_rewire.h"

#include <algorithm>
#include <set>

#include "fan_in/fan_in_random.h"
#include "fan_in/test/fan_in_testing.h"

namespace largeout {
namespace {

template <typename Id>
bool Different(const Id* row, int64_t n) {
  return static_cast<int64_t>(std::set<Id>(row, row + n).size()) == n;
}

// How much the degrees scatter, in standard deviations of a uniform draw.
double Scatter(const std::vector<int64_t>& degrees, int64_t connections) {
  const double mean = static_cast<double>(connections) / degrees.size();
  double square = 0;
  for (const int64_t d : degrees) square += (d - mean) * (d - mean) / mean;
  return (square - degrees.size()) / std::sqrt(2.0 * degrees.size());
}

}  // namespace

LARGEOUT_TEST(ConnectionsAreDifferentAndUniform) {
  SerialParallel serial;
  ThreadParallel threads(3);
  for (const int64_t inputs : {32, 40, 200, 5000}) {
    for (const int64_t fan_in : {1, 8, 32}) {
      const int64_t rows = 3000;
      std::vector<uint16_t> one(rows * fan_in), other(one), part(one);
      FanInConnections(rows, fan_in, inputs, FanInKey(1, 2), 10, one.data(), &serial);
      FanInConnections(rows, fan_in, inputs, FanInKey(1, 2), 10, other.data(), &threads);
      FanInConnections<uint16_t>(1000, fan_in, inputs, FanInKey(1, 2), 1510, part.data(), &threads);
      CHECK_TRUE(one == other &&
                 std::equal(part.begin(), part.begin() + 1000 * fan_in, one.begin() + 1500 * fan_in));
      FanInConnections(rows, fan_in, inputs, FanInKey(1, 3), 10, other.data(), &threads);
      CHECK_TRUE(one != other || fan_in == inputs);
      for (int64_t r = 0; r < rows; ++r) CHECK_TRUE(Different(&one[r * fan_in], fan_in));
      std::vector<int64_t> degrees(inputs);
      CHECK_TRUE(FanInDegrees(one.data(), rows, fan_in, inputs, degrees.data(), &threads) == -1);
      CHECK_TRUE(std::fabs(Scatter(degrees, rows * fan_in)) < (fan_in * 2 > inputs ? 30.0 : 5.0));
    }
  }
}

LARGEOUT_TEST(CandidatesAreNew) {
  SerialParallel serial;
  ThreadParallel threads(3);
  const FanInProblem<float, uint32_t> p(300, 6, 40, 1, 1);
  for (const int64_t count : {1, 9, 34}) {
    std::vector<int32_t> one(200 * count), other(one);
    CHECK_TRUE(FanInCandidates(p.indices.data(), 6, 40, 7, 5, 100, 200, count, one.data(), &serial) == -1);
    FanInCandidates(p.indices.data(), 6, 40, 7, 5, 100, 200, count, other.data(), &threads);
    CHECK_TRUE(one == other);
    for (int64_t r = 0; r < 200; ++r) {
      std::vector<int32_t> both(&one[r * count], &one[r * count] + count);
      both.insert(both.end(), &p.indices[(100 + r) * 6], &p.indices[(100 + r) * 6] + 6);
      CHECK_TRUE(Different(both.data(), count + 6));
    }
  }
}

LARGEOUT_TEST(CountsFindTheThreshold) {
  SerialParallel serial;
  ThreadParallel threads(3);
  FanInProblem<bfloat16, uint16_t> p(500, 7, 40, 1, 1);
  for (size_t i = 0; i < p.weights.size(); i += 3) FromFloat(i % 2 ? 0.f : -0.f, &p.weights[i]);  // many ties
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    keys.push_back(FanInPruneKey(static_cast<uint32_t>(p.weights[i].bits) << 16, 99, 70 + i));
  }
  std::sort(keys.begin(), keys.end());
  for (const int64_t rank : {1, 500, 1200, 3500}) {
    uint64_t prefix = 0;
    int64_t left = rank;
    for (int digit = 0; digit < kFanInKeyDigits; ++digit) {
      std::vector<int64_t> counts(1 << kFanInDigitBits), again(counts);
      FanInKeyCounts(p.weights.data(), 500, 7, 99, 10, prefix, digit, counts.data(), &serial);
      FanInKeyCounts(p.weights.data(), 500, 7, 99, 10, prefix, digit, again.data(), &threads);
      CHECK_TRUE(counts == again);
      int64_t d = 0;
      while (left > counts[d]) left -= counts[d++];
      prefix = prefix << kFanInDigitBits | d;
    }
    CHECK_TRUE(prefix == keys[rank - 1]);
  }
}

template <typename T, typename Id>
void CheckRewire(FanInProblem<T, Id> p, int64_t count, int64_t threshold, int64_t num_candidates) {
  ThreadParallel threads(3);
  const FanInProblem<T, Id> before = p;
  Random random(3);
  const int64_t first = p.classes / 3, rows = p.classes - first;
  std::vector<int32_t> candidates(rows * num_candidates);
  std::vector<float> scores(candidates.size());
  for (int32_t& c : candidates) c = static_cast<int32_t>(random.Below(p.inputs));
  for (float& s : scores) s = random.Below(5) == 0 ? NAN : random.Normalish();
  float* slots[] = {p.slots[0].data(), p.slots[1].data()};
  int64_t changes;
  bool bad;
  const FanInRewiring<T, Id> rewiring{p.weights.data(),
                                      p.indices.data(),
                                      slots,
                                      2,
                                      p.fan_in,
                                      p.inputs,
                                      42,
                                      11,
                                      first,
                                      rows,
                                      count,
                                      threshold,
                                      candidates.data(),
                                      scores.data(),
                                      num_candidates};
  CHECK_TRUE(FanInRewire(rewiring, &changes, &bad, &threads) == -1);
  int64_t changed = 0;
  for (int64_t c = 0; c < p.classes; ++c) {
    CHECK_TRUE(Different(&p.indices[c * p.fan_in], p.fan_in));
    double weakest_kept = INFINITY, strongest_pruned = 0;
    const std::set<Id> old(&before.indices[c * p.fan_in], &before.indices[c * p.fan_in] + p.fan_in);
    int64_t pruned = 0;
    for (int64_t k = c * p.fan_in; k < (c + 1) * p.fan_in; ++k) {
      const double w = std::fabs(ToFloat(before.weights[k]));
      if (p.slots[0][k] == 0.f) {
        ++pruned;
        strongest_pruned = std::max(strongest_pruned, w);
        CHECK_TRUE(c >= first && ToFloat(p.weights[k]) == 0.f && p.slots[1][k] == 0.f);
        CHECK_TRUE(old.count(p.indices[k]) == 0 || p.inputs < p.fan_in + count);
      } else {
        weakest_kept = std::min(weakest_kept, w);
        CHECK_TRUE(p.indices[k] == before.indices[k] && p.slots[0][k] == before.slots[0][k]);
        CHECK_TRUE(ToFloat(p.weights[k]) == ToFloat(before.weights[k]));
      }
    }
    if (count >= 0) CHECK_TRUE(pruned == (c < first ? 0 : count) && strongest_pruned <= weakest_kept);
    changed += pruned;
  }
  CHECK_TRUE(changed == changes);
}

LARGEOUT_TEST(TheWeakestAreReplaced) {
  for (const int64_t count : {0, 1, 3, 8}) {
    CheckRewire(FanInProblem<float, uint16_t>(300, 8, 60, 1, 1), count, -1, 0);
    CheckRewire(FanInProblem<bfloat16, uint32_t>(300, 8, 1000, 1, 2), count, -1, 5);
    CheckRewire(FanInProblem<float, uint32_t>(100, 8, 9, 1, 3), count, -1, 4);  // too few free inputs
    CheckRewire(FanInProblem<float, uint16_t>(100, 8, 8, 1, 3), count, -1, 0);
  }
  CheckRewire(FanInProblem<float, uint16_t>(300, 8, 60, 1, 1), -1,
              static_cast<int64_t>(FanInPruneKey(0x3f000000u, 0, 0)), 3);
}

LARGEOUT_TEST(BadIndicesChangeNothing) {
  SerialParallel serial;
  FanInProblem<float, uint32_t> p(50, 4, 20, 1, 1);
  std::vector<int32_t> candidates(50 * 3, 2);
  std::vector<float> scores(candidates.size());
  for (const int32_t wrong : {0, 20, -1}) {  // 0: the candidates are right, a connection is not
    const bool candidate = wrong != 0;
    FanInProblem<float, uint32_t> q = p;
    if (candidate) {
      candidates[3 * 20] = wrong;
    } else {
      q.indices[4 * 30 + 1] = 20;
    }
    const std::vector<uint32_t> indices = q.indices;
    int64_t changes;
    bool bad;
    CHECK_TRUE(
        FanInRewire(FanInRewiring<float, uint32_t>{q.weights.data(), q.indices.data(), nullptr, 0, 4, 20, 1,
                                                   0, 0, 50, 2, -1, candidates.data(), scores.data(), 3},
                    &changes, &bad, &serial) == (candidate ? 20 : 30));
    CHECK_TRUE(bad == candidate && q.indices == indices && q.weights == p.weights);
  }
}

}  // namespace largeout

int main() { return largeout::TestMain(); }
