// Tests of FanInRewireCpu and FanInRewireGpu: connections are different within a class, pruning takes the
// weakest, and everything is bit for bit the same for 1 and 3 threads, for parts, and on GPUs as on CPUs.
#ifndef LARGEOUT_FAN_IN_FAN_IN_REWIRE_CASES_H_
#define LARGEOUT_FAN_IN_FAN_IN_REWIRE_CASES_H_

#include "fan_in/test/fan_in_rewire_step.h"

namespace largeout {

// How much the degrees scatter, in standard deviations of a uniform draw.
inline double Scatter(const std::vector<int64_t>& degrees, int64_t connections) {
  const double mean = static_cast<double>(connections) / degrees.size();
  double square = 0;
  for (const int64_t d : degrees) square += (d - mean) * (d - mean) / mean;
  return (square - degrees.size()) / std::sqrt(2.0 * degrees.size());
}

template <typename Device>
std::vector<uint16_t> Connections(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key,
                                  int64_t first_class, int threads = 1) {
  const ArrayOf<Device, uint16_t> indices(Unwritten<uint16_t>(rows * fan_in));
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(Device(call.get()).Connections(rows, fan_in, inputs, key, first_class, indices.get()) == 0);
  return indices.Host();
}

template <typename Device, typename Id>
std::vector<int64_t> Degrees(const std::vector<Id>& indices, int64_t rows, int64_t fan_in, int64_t inputs,
                             int64_t* bad) {
  const ArrayOf<Device, Id> on(indices);
  const ArrayOf<Device, int64_t> degrees(Unwritten<int64_t>(inputs));
  TestCall<typename Device::Call> call(3);
  CHECK_TRUE(Device(call.get()).Degrees(on.get(), rows, fan_in, inputs, degrees.get(), bad) == 0);
  return degrees.Host();
}

template <typename Device>
void ConnectionsAreDifferentAndUniform() {
  for (const int64_t inputs : {32, 40, 200, 5000}) {
    for (const int64_t fan_in : {0, 1, 8, 32}) {
      const int64_t rows = 3000;
      const uint64_t key = RandomKey(1, 2);
      const auto one = Connections<Device>(rows, fan_in, inputs, key, 10);
      const auto part = Connections<Device>(1000, fan_in, inputs, key, 1510, 3);
      CHECK_TRUE(one == Connections<Device>(rows, fan_in, inputs, key, 10, 3));
      CHECK_TRUE(one == Connections<FanInRewireCpu>(rows, fan_in, inputs, key, 10));
      CHECK_TRUE(std::equal(part.begin(), part.end(), one.begin() + 1500 * fan_in));
      CHECK_TRUE(one != Connections<Device>(rows, fan_in, inputs, RandomKey(1, 3), 10, 3) || fan_in == 0 ||
                 fan_in == inputs);
      int64_t bad;
      const std::vector<int64_t> degrees = Degrees<Device>(one, rows, fan_in, inputs, &bad);
      CHECK_TRUE(bad == -1 && degrees == Degrees<FanInRewireCpu>(one, rows, fan_in, inputs, &bad));
      if (fan_in == 0) continue;
      for (int64_t r = 0; r < rows; ++r) CHECK_TRUE(Different(&one[r * fan_in], fan_in));
      CHECK_TRUE(std::fabs(Scatter(degrees, rows * fan_in)) < (fan_in * 2 > inputs ? 30.0 : 5.0));
    }
  }
}

// For the 200 classes from 100 on; *bad: as the kernel says.
template <typename Device>
std::vector<int32_t> Candidates(const FanInProblem<float, uint32_t>& p, int64_t count, int64_t* bad,
                                int threads = 1) {
  const ArrayOf<Device, uint32_t> indices(p.indices);
  const ArrayOf<Device, int32_t> candidates(Unwritten<int32_t>(200 * count));
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(
      Device(call.get()).Candidates(indices.get(), 6, 40, 7, 5, 100, 200, count, candidates.get(), bad) == 0);
  return candidates.Host();
}

template <typename Device>
void CandidatesAreNew() {
  FanInProblem<float, uint32_t> p(300, 6, 40, 1, 1);
  for (const int64_t wrong : {-1, 222}) {
    if (wrong >= 0) p.indices[wrong * 6 + 5] = 40;
    int64_t bad;
    Degrees<Device>(p.indices, 300, 6, 40, &bad);
    CHECK_TRUE(bad == wrong);
    for (const int64_t count : {0, 1, 9, 34}) {
      const auto one = Candidates<Device>(p, count, &bad);
      CHECK_TRUE(bad == wrong);
      if (wrong >= 0) continue;
      CHECK_TRUE(one == Candidates<Device>(p, count, &bad, 3));
      CHECK_TRUE(one == Candidates<FanInRewireCpu>(p, count, &bad));
      for (int64_t r = 0; r < 200; ++r) {
        std::vector<int32_t> both(one.begin() + r * count, one.begin() + (r + 1) * count);
        both.insert(both.end(), &p.indices[(100 + r) * 6], &p.indices[(100 + r) * 6] + 6);
        CHECK_TRUE(Different(both.data(), count + 6));
      }
    }
  }
}

template <typename Device>
std::vector<int64_t> KeyCounts(const FanInProblem<bfloat16, uint16_t>& p, uint64_t prefix, int digit,
                               int threads = 1) {
  const ArrayOf<Device, bfloat16> weights(p.weights);
  const ArrayOf<Device, int64_t> counts(Unwritten<int64_t>(1 << kFanInDigitBits));
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(
      Device(call.get()).KeyCounts(weights.get(), p.classes, p.fan_in, 99, 10, prefix, digit, counts.get()) ==
      0);
  return counts.Host();
}

template <typename Device>
void CountsFindTheThreshold() {
  FanInProblem<bfloat16, uint16_t> p(500, 7, 40, 1, 1);
  for (size_t i = 0; i < p.weights.size(); i += 3) FromFloat(i % 2 ? 0.f : -0.f, &p.weights[i]);  // many ties
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    keys.push_back(FanInPruneKey(static_cast<uint32_t>(p.weights[i].bits) << 16, 99, 70 + i));
  }
  std::sort(keys.begin(), keys.end());
  for (const int64_t rank : {1, 500, 700, 1200, 3500}) {
    uint64_t prefix = 0;
    int64_t left = rank;
    for (int digit = 0; digit < kFanInKeyDigits; ++digit) {
      const std::vector<int64_t> counts = KeyCounts<Device>(p, prefix, digit);
      CHECK_TRUE(counts == KeyCounts<Device>(p, prefix, digit, 3));
      CHECK_TRUE(counts == KeyCounts<FanInRewireCpu>(p, prefix, digit));
      int64_t d = 0;
      while (left > counts[d]) left -= counts[d++];
      prefix = prefix << kFanInDigitBits | d;
    }
    CHECK_TRUE(prefix == keys[rank - 1]);
  }
}

template <typename Device>
void TheWeakestAreReplaced() {
  for (const bool ties : {false, true}) {
    for (const int64_t count : {0, 1, 3, 8}) {
      CheckRewire<Device>(FanInProblem<float, uint16_t>(300, 8, 60, 1, 1), count, -1, 0, ties);
      CheckRewire<Device>(FanInProblem<bfloat16, uint32_t>(300, 8, 1000, 1, 2), count, -1, 5, ties);
      // Too few free inputs.
      CheckRewire<Device>(FanInProblem<float, uint32_t>(100, 8, 9, 1, 3), count, -1, 4, ties);
      CheckRewire<Device>(FanInProblem<float, uint16_t>(100, 8, 8, 1, 3), count, -1, 0, ties);
    }
    CheckRewire<Device>(FanInProblem<float, uint16_t>(300, 8, 60, 1, 1), -1,
                        static_cast<int64_t>(FanInPruneKey(0x3f000000u, 0, 0)), 3, ties);
    CheckRewire<Device>(FanInProblem<float, uint16_t>(0, 8, 60, 1, 1), 3, -1, 0, ties);
  }
}

template <typename Device>
void BadIndicesChangeNothing() {
  for (const int32_t wrong : {20, -1}) {
    for (const bool candidate : {false, true}) {
      for (const int64_t num_candidates : {0, 3}) {  // a connection may be wrong where candidates are right
        if (candidate && num_candidates == 0) continue;
        const FanInProblem<float, uint32_t> problem(50, 4, 20, 1, 1);
        RewireProblem<float, uint32_t> p(problem, num_candidates, true);
        if (candidate) {
          p.candidates[3 * num_candidates] = wrong;
        } else {
          p.indices[p.fan_in * (p.first + 14) + 1] = static_cast<uint32_t>(wrong);
        }
        const RewireProblem<float, uint32_t> before = p;
        const RewireVerdict v = Rewire<Device>(&p, 2, -1);
        RewireProblem<float, uint32_t> cpu = before;
        const RewireVerdict cpus = Rewire<FanInRewireCpu>(&cpu, 2, -1);
        CHECK_TRUE(v.bad == cpus.bad && v.bad_candidate == cpus.bad_candidate);
        // A row of the candidates, or of the variable.
        CHECK_TRUE(v.bad == (candidate ? 3 : p.first + 14) && v.bad_candidate == candidate);
        CHECK_TRUE(SameLayer(p, before) && SameLayer(cpu, before));
      }
    }
  }
}

#define LARGEOUT_FAN_IN_REWIRE_CASES(Device)               \
  LARGEOUT_CASE(ConnectionsAreDifferentAndUniform, Device) \
  LARGEOUT_CASE(CandidatesAreNew, Device)                  \
  LARGEOUT_CASE(CountsFindTheThreshold, Device)            \
  LARGEOUT_CASE(TheWeakestAreReplaced, Device)             \
  LARGEOUT_CASE(BadIndicesChangeNothing, Device)

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_REWIRE_CASES_H_
