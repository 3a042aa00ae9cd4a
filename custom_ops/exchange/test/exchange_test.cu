#include "common/test/cuda_testing.cuh"
#include "exchange/cuda/exchange_gpu.h"
#include "exchange/test/exchange_cases.h"

namespace largeout {
LARGEOUT_EXCHANGE_CASES(ExchangeGpu)
}  // namespace largeout
