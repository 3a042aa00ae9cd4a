#include "common/test/cuda_testing.cuh"
#include "fan_in/fan_in_rewire.h"
#include "fan_in/test/fan_in_rewire_cases.h"

namespace largeout {
LARGEOUT_FAN_IN_REWIRE_CASES(FanInRewireGpu)
}  // namespace largeout
