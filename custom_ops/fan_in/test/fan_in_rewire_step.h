// One rewiring on a device, and what it should have done.
#ifndef LARGEOUT_FAN_IN_FAN_IN_REWIRE_STEP_H_
#define LARGEOUT_FAN_IN_FAN_IN_REWIRE_STEP_H_

#include <algorithm>
#include <set>

#include "fan_in/fan_in_rewire.h"
#include "fan_in/test/fan_in_testing.h"

namespace largeout {

template <typename Id>
bool Different(const Id* row, int64_t n) {
  return static_cast<int64_t>(std::set<Id>(row, row + n).size()) == n;
}

// A problem whose classes from a third on are rewired, with candidates for them.
template <typename T, typename Id>
struct RewireProblem : FanInProblem<T, Id> {
  // ties: few different scores.
  RewireProblem(const FanInProblem<T, Id>& p, int64_t num_candidates, bool ties)
      : FanInProblem<T, Id>(p),
        first(p.classes / 3),
        rows(p.classes - first),
        num_candidates(num_candidates) {
    Random random(3);
    candidates.resize(rows * num_candidates), scores.resize(candidates.size());
    for (int32_t& c : candidates) c = static_cast<int32_t>(random.Below(p.inputs));
    for (float& s : scores) {
      s = random.Below(5) == 0 ? NAN
          : ties               ? 0.25f * static_cast<float>(random.Below(9)) - 1.f
                               : random.Normalish();
    }
  }
  int64_t first, rows, num_candidates;
  std::vector<int32_t> candidates;
  std::vector<float> scores;
};

struct RewireVerdict {
  int64_t bad = -2, changes = -1;
  bool bad_candidate = false;
};

// Rewires `p` itself.
template <typename Device, typename T, typename Id>
RewireVerdict Rewire(RewireProblem<T, Id>* p, int64_t count, int64_t threshold, int threads = 1) {
  const ArrayOf<Device, T> weights(p->weights);
  const ArrayOf<Device, Id> indices(p->indices);
  const ArrayOf<Device, float> slot0(p->slots[0]), slot1(p->slots[1]), scores(p->scores);
  const ArrayOf<Device, int32_t> candidates(p->candidates);
  const ArrayOf<Device, int64_t> changes(1);
  float* slots[] = {slot0.get(), slot1.get()};
  const FanInRewiring<T, Id> r{weights.get(),
                               indices.get(),
                               slots,
                               2,
                               p->fan_in,
                               p->inputs,
                               42,
                               11,
                               p->first,
                               p->rows,
                               count,
                               threshold,
                               candidates.get(),
                               scores.get(),
                               p->num_candidates};
  TestCall<typename Device::Call> call(threads);
  RewireVerdict v;
  CHECK_TRUE(Device(call.get()).Rewire(r, changes.get(), &v.bad, &v.bad_candidate) == 0);
  p->weights = weights.Host(), p->indices = indices.Host();
  p->slots[0] = slot0.Host(), p->slots[1] = slot1.Host();
  if (v.bad < 0) v.changes = changes.Host()[0];
  return v;
}

template <typename T, typename Id>
bool SameLayer(const FanInProblem<T, Id>& a, const FanInProblem<T, Id>& b) {
  return SameBits(a.weights, b.weights) && SameBits(a.indices, b.indices) &&
         SameBits(a.slots[0], b.slots[0]) && SameBits(a.slots[1], b.slots[1]);
}

template <typename Device, typename T, typename Id>
void CheckRewire(const FanInProblem<T, Id>& problem, int64_t count, int64_t threshold, int64_t num_candidates,
                 bool ties) {
  const RewireProblem<T, Id> before(problem, num_candidates, ties);
  RewireProblem<T, Id> p = before, cpu = before;
  const RewireVerdict v = Rewire<Device>(&p, count, threshold, 3);
  const RewireVerdict cpus = Rewire<FanInRewireCpu>(&cpu, count, threshold);
  CHECK_TRUE(v.bad == -1 && cpus.bad == -1 && v.changes == cpus.changes && SameLayer(p, cpu));
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
        CHECK_TRUE(c >= p.first && ToFloat(p.weights[k]) == 0.f && p.slots[1][k] == 0.f);
        CHECK_TRUE(old.count(p.indices[k]) == 0 || p.inputs < p.fan_in + count);
      } else {
        weakest_kept = std::min(weakest_kept, w);
        CHECK_TRUE(p.indices[k] == before.indices[k] && p.slots[0][k] == before.slots[0][k]);
        CHECK_TRUE(ToFloat(p.weights[k]) == ToFloat(before.weights[k]));
      }
    }
    if (count >= 0) CHECK_TRUE(pruned == (c < p.first ? 0 : count) && strongest_pruned <= weakest_kept);
    changed += pruned;
  }
  CHECK_TRUE(changed == v.changes);
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_REWIRE_STEP_H_
