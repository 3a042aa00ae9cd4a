// Calls between whose runs something else happens.
#ifndef LARGEOUT_COMMON_REPEAT_H_
#define LARGEOUT_COMMON_REPEAT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/test/test_call.h"

#ifdef LARGEOUT_EMULATE_CUDA
#include "cuda_emulator/emulation.h"
#endif

namespace largeout {

// Checks that a run gives the same result after other work, with its memory elsewhere, and in the emulation in other
// orders of blocks, warps and lanes.
template <typename Device, typename Run, typename Other>
void CheckRepeats(const Run& run, const Other& other) {
  const auto first = run();
  std::vector<std::unique_ptr<ArrayOf<Device, char>>> held;
  for (const unsigned turn : {1, 2}) {
#ifdef LARGEOUT_EMULATE_CUDA
    const unsigned before = emulation::SetOrder(turn);
#endif
    other();
    held.push_back(std::make_unique<ArrayOf<Device, char>>(int64_t{100003} * turn));
    CHECK_TRUE(run() == first);
#ifdef LARGEOUT_EMULATE_CUDA
    emulation::SetOrder(before);
#endif
  }
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_REPEAT_H_
