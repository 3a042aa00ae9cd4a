#include "fan_in/test/fan_in_rewire_cases.h"

namespace largeout {
LARGEOUT_FAN_IN_REWIRE_CASES(FanInRewireCpu)
}  // namespace largeout
