// Operations of a whole warp, once all of its lanes are there.
#include <algorithm>
#include <cstring>

#include "cuda_emulator/block.h"
#include "cuda_emulator/report.h"

namespace largeout {
namespace emulation {
namespace {

void SyncWarp(Thread* const (&at)[32], Warp* warp) {
  uint32_t joined[32] = {};
  for (const Thread* t : at) {
    if (t == nullptr) continue;
    ++warp->clock[t->lane()][t->lane()];  // what it did until now
    for (int a = 0; a < 32; ++a) joined[a] = std::max(joined[a], warp->clock[t->lane()][a]);
  }
  for (const Thread* t : at) {
    if (t == nullptr) continue;
    std::memcpy(warp->clock[t->lane()], joined, sizeof(joined));
  }
  warp->ticked = true;
}

void Shuffle(Thread* const (&at)[32]) {
  for (Thread* t : at) {
    if (t == nullptr) continue;
    const int from = t->wait.argument;
    if (at[from] == nullptr) {
      return ReportAndStop(
          Format("divergence: a shuffle at %s:%d reads from lane %d, which takes no part (lanes %#x)",
                 t->wait.file, t->wait.line, from, t->wait.mask),
          nullptr);
    }
    std::memcpy(t->wait.out, at[from]->wait.in, t->wait.bytes);
  }
}

void Vote(Thread* const (&at)[32]) {
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (at[lane] != nullptr && at[lane]->wait.argument != 0) ballot |= 1u << lane;
  }
  for (Thread* t : at) {
    if (t != nullptr) std::memcpy(t->wait.out, &ballot, sizeof(ballot));
  }
}

}  // namespace

void Finish(Thread* const (&at)[32]) {
  Thread* any = nullptr;
  for (Thread* t : at) {
    if (t != nullptr) any = t;
  }
  switch (any->wait.meeting) {
    case Meeting::kSyncWarp:
      return SyncWarp(at, &running.warps[any->warp()]);
    case Meeting::kShuffle:
      return Shuffle(at);
    case Meeting::kVote:
      return Vote(at);
    case Meeting::kBarrier:
      return;
    default:
      return FinishTensorCores(at);
  }
}

}  // namespace emulation
}  // namespace largeout
