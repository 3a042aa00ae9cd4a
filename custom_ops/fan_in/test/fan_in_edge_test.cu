#include "common/test/cuda_testing.cuh"
#include "fan_in/fan_in.h"
#include "fan_in/test/fan_in_edge_cases.h"

namespace largeout {
LARGEOUT_FAN_IN_EDGE_CASES(FanInGpu)
}  // namespace largeout
