#include "fan_in/test/fan_in_cases.h"

namespace largeout {
LARGEOUT_FAN_IN_CASES(FanInCpu)
}  // namespace largeout
