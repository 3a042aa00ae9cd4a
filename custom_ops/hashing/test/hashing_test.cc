#include "hashing/hashing.h"

#include "hashing/test/hashing_cases.h"

namespace largeout {

LARGEOUT_HASHING_CASES(HashingCpu)

}  // namespace largeout
