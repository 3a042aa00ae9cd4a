#include "hashing/hashing_cpu.h"
#include "hashing/test/hashing_cases.h"

namespace largeout {

LARGEOUT_HASHING_CASES(HashingCpu)

}  // namespace largeout
