#include "fan_in/test/fan_in_topk_cases.h"

namespace largeout {
LARGEOUT_FAN_IN_TOPK_CASES(FanInCpu)
}  // namespace largeout
