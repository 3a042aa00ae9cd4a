#include "common/test/cuda_testing.cuh"
#include "exchange/exchange.h"
#include "exchange/test/exchange_cases.h"

namespace largeout {
LARGEOUT_EXCHANGE_CASES(ExchangeGpu)
}  // namespace largeout
