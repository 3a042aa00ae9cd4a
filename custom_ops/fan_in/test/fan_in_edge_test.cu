#include "common/test/cuda_testing.cuh"
#include "fan_in/fan_in.h"
#include "fan_in/test/fan_in_edge_cases.h"

#ifdef LARGEOUT_EMULATE_CUDA
#include "cuda_emulator/emulation.h"
#endif

namespace largeout {
LARGEOUT_FAN_IN_EDGE_CASES(FanInGpu)

// A grid has at most 65,535 thread blocks along y, and the batch has more blocks of examples.
LARGEOUT_TEST(MoreBlocksThanAGridHas) {
#ifdef LARGEOUT_EMULATE_CUDA
  const emulation::WholeGrids whole;
#endif
  const FanInProblem<float, uint16_t> p(1, 1, 1, 65536 * 32 + 5, 1);
  CHECK_TRUE(p.batch.blocks == 65537);
  int64_t bad;
  const std::vector<float> logits = LogitsOf<FanInGpu>(p, &bad);
  const std::vector<double> want = p.Logits();
  int64_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) wrong += !(std::abs(logits[i] - want[i]) < 1e-5);  // NaN, too
  CHECK_TRUE(bad == -1 && logits.size() == want.size() && wrong == 0);
}

}  // namespace largeout
