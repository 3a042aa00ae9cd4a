// Tests of FanInCpu and FanInGpu: on CPUs logits, losses and gradients against float64, at every
// instruction-set level, with the same bits for 1 and 3 threads; on GPUs against the CPU's, with the same
// bits on every run.
#ifndef LARGEOUT_FAN_IN_FAN_IN_CASES_H_
#define LARGEOUT_FAN_IN_FAN_IN_CASES_H_

#include "fan_in/test/fan_in_step.h"

namespace largeout {

template <typename Device>
void EveryLossAndShape() {
  uint64_t seed = 1;
  for (const FanInLoss loss : kFanInAllLosses) {
    for (const int64_t fan_in : {1, 3, 16, 32, 37, 70}) {
      for (const int64_t size : {1, 16, 17, 32, 45, 100}) {
        const int64_t classes = fan_in == 3 ? 507 : 123, inputs = (fan_in == 70 ? 70 : 40) + size;
        if (++seed % kOneOf != 0) continue;
        CheckProblem<Device>(
            FanInProblem<float, uint16_t>(classes, fan_in, inputs, size, seed, size != 16, size != 32), loss,
            {});
      }
    }
    CheckProblem<Device>(FanInProblem<float, uint32_t>(1, 5, 5, 3, ++seed), loss, {});
    CheckProblem<Device>(FanInProblem<bfloat16, uint16_t>(252, 8, 70, 40, ++seed), loss, {});
    CheckProblem<Device>(FanInProblem<bfloat16, uint32_t>(65, 24, 33, 9, ++seed), loss, {});
  }
}

// Several ranges of classes (on GPUs each with a sum of input gradients), several chunks, several spans of
// several blocks, mostly without gradients (a bias far below the margin).
template <typename Device>
void ManyClasses() {
  constexpr int64_t kWide = kEmulated ? 2100 : 5000, kMany = kEmulated ? 3100 : 9000;
  for (const FanInLoss loss : kFanInAllLosses) {
    for (const int64_t classes : {kMany, kMany + 1})
      CheckProblem<Device>(FanInProblem<float, uint16_t>(classes, 2, 50, 20, 7, true, true, -3.f), loss, {});
  }
  const FanInProblem<float, uint32_t> wide(kWide, 40, 41, 150, 8, true, true, -20.f);
  CheckProblem<Device>(wide, FanInLoss::kSquaredHinge, {});
  CheckProblem<Device>(wide, FanInLoss::kSquaredHinge, {FanInRule::kAdam});
  // GPUs make chunks of 1024 classes at the least.
  CheckProblem<Device>(FanInProblem<bfloat16, uint16_t>(kEmulated ? 1100 : 2500, 3, 20,
                                                        kEmulated ? 4100 : 4500, 9, true, true, -2.f),
                       FanInLoss::kSquaredHinge, {FanInRule::kSgd});
}

template <typename Device>
void EveryRule() {
  uint64_t seed = 100, number = 0;
  for (const FanInRule rule :
       {FanInRule::kSgd, FanInRule::kAdagrad, FanInRule::kAdam, FanInRule::kLazyAdam}) {
    for (const int64_t size : {9, 32, 70}) {
      for (const float bias : {0.f, -4.f}) {
        if (++number % kOneOf != 0) continue;
        const FanInProblem<float, uint16_t> p(300, 11, 64, size, ++seed, true, true, bias);
        CheckProblem<Device>(p, FanInLoss::kSquaredHinge, {rule});
        CheckProblem<Device>(p, FanInLoss::kSquaredHinge, {rule, false, true, 0.01f});
        CheckProblem<Device>(p, FanInLoss::kSoftmax, {rule, false, size != 32});
      }
      ++seed;
      for (const float decay : {0.f, 0.01f}) {
        CheckProblem<Device>(FanInProblem<float, uint32_t>(150, 7, 64, size, seed, false),
                             FanInLoss::kBinaryCrossentropy, {rule, false, true, decay});
      }
      CheckProblem<Device>(FanInProblem<bfloat16, uint16_t>(150, 17, 64, size, ++seed),
                           FanInLoss::kBinaryCrossentropy, {rule});
    }
  }
}

template <typename Device>
void GivenGradients() {
  const FanInOptions given{FanInRule::kNone, true};
  for (const int64_t size : {3, 32, 100}) {
    CheckProblem<Device>(FanInProblem<float, uint16_t>(200, 9, 64, size, size),
                         FanInLoss::kBinaryCrossentropy, given);
    CheckProblem<Device>(FanInProblem<float, uint16_t>(200, 9, 64, size, size, false, true, 0.f),
                         FanInLoss::kSquaredHinge, given);
    CheckProblem<Device>(FanInProblem<bfloat16, uint32_t>(200, 9, 64, size, size, false, true, 0.f),
                         FanInLoss::kSquaredHinge, given);
  }
}

// Up to 32 connections: a GPU makes the whole step by one gather, with the inputs' gradient in shared memory,
// or (the last ones) beside it.
template <typename Device>
void OneGather() {
  const FanInLoss hinge = FanInLoss::kSquaredHinge, cross = FanInLoss::kBinaryCrossentropy;
  CheckProblem<Device>(FanInProblem<float, uint16_t>(900, 32, 300, 32, 1), cross, {FanInRule::kSgd});
  CheckProblem<Device>(FanInProblem<bfloat16, uint32_t>(333, 17, 100, 9, 2), FanInLoss::kSoftmax, {});
  CheckProblem<Device>(FanInProblem<float, uint16_t>(700, 7, 64, 20, 3, true, true, -4.f), hinge,
                       {FanInRule::kAdam});
  CheckProblem<Device>(FanInProblem<float, uint16_t>(700, 31, 64, 31, 4, false, true, -4.f), hinge,
                       {FanInRule::kLazyAdam, false, true, 0.01f});
  CheckProblem<Device>(FanInProblem<float, uint16_t>(200, 16, 64, 32, 5), cross,
                       {FanInRule::kAdagrad, false, false});
  CheckProblem<Device>(FanInProblem<float, uint16_t>(200, 32, 1900, 30, 6), cross, {FanInRule::kAdagrad});
  CheckProblem<Device>(FanInProblem<float, uint16_t>(200, 20, 70, 250, 8, true, true, -2.f), hinge,
                       {FanInRule::kAdam});
  CheckProblem<Device>(FanInProblem<float, uint16_t>(100, 32, 70, 70, 9), FanInLoss::kSoftmax, {});
  CheckProblem<Device>(FanInProblem<bfloat16, uint16_t>(1500, 8, 1900, 25, 7, true, true, -3.f), hinge, {});
}

// Connections whose number would allow wide loads, and whose addresses do not.
template <typename Device>
void MisalignedConnections() {
  const ShiftedArrays shifted;
  CheckProblem<Device>(FanInProblem<float, uint16_t>(100, 16, 64, 40, 1), FanInLoss::kBinaryCrossentropy, {});
  CheckProblem<Device>(FanInProblem<bfloat16, uint32_t>(100, 40, 64, 20, 2), FanInLoss::kSoftmax,
                       {FanInRule::kSgd});
}

// An input twice in a class counts twice (and is summed by one warp of a GPU).
template <typename Device>
void DuplicateConnections() {
  FanInProblem<float, uint16_t> p(3000, 40, 60, 20, 3), few(500, 30, 60, 20, 4);
  for (size_t i = 0; i < p.indices.size(); ++i) p.indices[i] = static_cast<uint16_t>(p.indices[i] % 5);
  for (uint16_t& index : few.indices) index %= 5;
  CheckProblem<Device>(p, FanInLoss::kBinaryCrossentropy, {});
  CheckProblem<Device>(few, FanInLoss::kBinaryCrossentropy, {});
}

template <typename Device>
void NothingAtAll() {
  for (const FanInRule rule : {FanInRule::kNone, FanInRule::kSgd, FanInRule::kAdam}) {
    for (const FanInLoss loss : kFanInAllLosses) {
      CheckProblem<Device>(FanInProblem<float, uint16_t>(100, 4, 20, 0, 1), loss, {rule});
      CheckProblem<Device>(FanInProblem<float, uint16_t>(0, 4, 20, 5, 1), loss, {rule});
    }
  }
  const FanInProblem<float, uint16_t> p(100, 4, 20, 0, 1);
  const auto gradient = ComputeFanIn<Device>(p, FanInLoss::kSoftmax, {});
  CHECK_TRUE(gradient.loss.empty() && gradient.weights == std::vector<float>(400) &&
             gradient.bias == std::vector<float>(100));
  const auto sgd = ComputeFanIn<Device>(p, FanInLoss::kSquaredHinge, {FanInRule::kSgd});
  CHECK_TRUE(sgd.weights == p.weights && sgd.bias == p.bias);
}

// Inputs of bfloat16 do what the same values do as float32; their gradients are rounded.
template <typename Device, typename T, typename Id>
void CheckBFloat16Inputs(FanInProblem<T, Id> p, FanInLoss loss, const FanInOptions& options) {
  p.RoundInputs();
  const FanInOutput<T> got = ComputeFanIn<Device>(p, loss, options);
  p.narrow = false;
  CHECK_TRUE((got == ComputeFanIn<Device>(p, loss, options)));
}

template <typename Device>
void BFloat16Inputs() {
  const FanInOptions sgd{FanInRule::kSgd}, adam{FanInRule::kLazyAdam};
  uint64_t seed = 0;
  for (const FanInLoss loss : kFanInAllLosses) {
    for (const int64_t size : {1, 5, 16, 33}) {  // every class has every input
      CheckBFloat16Inputs<Device>(FanInProblem<float, uint16_t>(90, 70, 70, size, ++seed), loss, {});
      CheckBFloat16Inputs<Device>(FanInProblem<float, uint16_t>(91, 31, 71, size, ++seed), loss, adam);
    }
    CheckBFloat16Inputs<Device>(FanInProblem<float, uint32_t>(101, 17, 1901, 27, ++seed), loss, sgd);
    CheckBFloat16Inputs<Device>(FanInProblem<bfloat16, uint16_t>(33, 7, 65, 301, ++seed), loss, sgd);
    CheckBFloat16Inputs<Device>(FanInProblem<float, uint16_t>(1, 1, 1, 1, ++seed), loss, {});
    CheckBFloat16Inputs<Device>(FanInProblem<float, uint16_t>(100, 4, 21, 0, ++seed), loss, sgd);
    CheckBFloat16Inputs<Device>(FanInProblem<float, uint16_t>(0, 4, 21, 5, ++seed), loss, sgd);
  }
  CheckBFloat16Inputs<Device>(FanInProblem<float, uint16_t>(200, 9, 63, 35, ++seed),
                              FanInLoss::kBinaryCrossentropy, {FanInRule::kNone, true});
}

#define LARGEOUT_FAN_IN_CASES(Device)          \
  LARGEOUT_CASE(EveryLossAndShape, Device)     \
  LARGEOUT_CASE(ManyClasses, Device)           \
  LARGEOUT_CASE(EveryRule, Device)             \
  LARGEOUT_CASE(GivenGradients, Device)        \
  LARGEOUT_CASE(OneGather, Device)             \
  LARGEOUT_CASE(MisalignedConnections, Device) \
  LARGEOUT_CASE(DuplicateConnections, Device)  \
  LARGEOUT_CASE(NothingAtAll, Device)          \
  LARGEOUT_CASE(BFloat16Inputs, Device)

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CASES_H_
