#include "common/test/cuda_testing.cuh"
#include "full_softmax/full_softmax.h"
#include "full_softmax/test/full_softmax_cases.h"

namespace largeout {
LARGEOUT_FULL_SOFTMAX_CASES(FullSoftmaxGpu)
}  // namespace largeout
