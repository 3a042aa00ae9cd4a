// One launch: its blocks one after another, the threads of a block as fibers, and what threads wait for.
#ifndef LARGEOUT_CUDA_EMULATOR_BLOCK_H_
#define LARGEOUT_CUDA_EMULATOR_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/fiber.h"
#include "cuda_emulator/types.h"

namespace largeout {
namespace emulation {

// What a thread waits for. Threads meet where all of these are equal, but for in, out, argument and ok.
enum class Meeting : uint8_t {
  kNone,
  kBarrier,
  kSyncWarp,
  kShuffle,
  kVote,
  kMultiply,
  kMultiplyTf32,
  kLoadBlocks
};
struct Wait {
  Meeting meeting = Meeting::kNone;
  unsigned mask = 0;  // lanes
  const char* file = nullptr;
  int line = 0;
  const void* in = nullptr;
  void* out = nullptr;
  size_t bytes = 0;
  int argument = 0;  // the lane that a shuffle reads; whether LoadBlocks transposes
};

struct Copy {
  void* to;
  const void* from;
  int bytes, size, group;
};

struct Thread {
  Fiber fiber;
  Indices indices;
  int linear = 0;
  enum State : uint8_t { kReady, kWaits, kDone } state = kDone;
  Wait wait;
  std::vector<Copy> copies;  // cp.async, not yet waited for
  int copy_group = 0;

  int warp() const { return linear / 32; }
  int lane() const { return linear % 32; }
};

struct Warp {
  // clock[b][a]: up to which time of lane a lane b has been ordered behind it, by __syncwarp since the last
  // barrier.
  uint32_t clock[32][32];
  bool ticked = true;
  unsigned lanes = 0, waiting = 0;  // that there are; that wait for others of the warp
};

// The launch that runs; one at a time.
struct Running {
  Thread* thread = nullptr;
  const Thread* threads = nullptr;  // [count]
  Warp* warps = nullptr;
  int count = 0;
  // Every block and every barrier begins a phase. Phases before `launch` belong to earlier launches, those
  // before `block` to other blocks of this one.
  uint32_t phase = 1, launch = 1, block = 1;
  uint64_t stamp = 0;  // of a plain access that the thread makes now: shadow.h
  char* shared = nullptr;
  size_t shared_bytes = 0;
  const void* kernel = nullptr;
};
extern Running running;
constexpr int64_t kStrideBlocks = 2;
extern int64_t most_stride_blocks;   // that GridStrideBlocks gives: kStrideBlocks, but for WholeGrids
extern __thread bool inside_kernel;  // false on the host and in the emulation itself

// A kernel with its arguments, and how one thread calls it.
class Job {
 public:
  virtual ~Job() = default;
  virtual const void* kernel() const = 0;
  virtual void Call() const = 0;
};

// Sets running.stamp; after a change of the thread, the phase, or the thread's clock.
inline void Restamp() {
  const Thread* t = running.thread;
  const uint64_t time = running.warps[t->warp()].clock[t->lane()][t->lane()] + 1;  // until it syncs again
  running.stamp =
      uint64_t{running.phase} << 32 | (time & 0xfffff) << 12 | static_cast<uint64_t>(t->linear) << 2 | 1;
}

// Around the code of a kernel: what accesses.cc looks at.
void EnterKernel();
void LeaveKernel();

// Runs all of it. Returns 0 or a CUDA error: of the configuration at once, of the kernel from the next call
// that waits.
int Run(const Job& job, const Dim3& grid, const Dim3& block, size_t shared_bytes);

// Waits for the others, and for what comes of it.
Wait& Waiting(Meeting meeting, unsigned mask, const char* file, int line);  // of the thread, for what follows
void Meet();

// Ends the launch from inside of a kernel, with cudaErrorLaunchFailure. On the host: nothing.
void StopLaunch();

// The kernel, block and thread that run.
std::string WhoRuns();

// divergence.cc: whether both wait for the same; reports threads of which none can go on, and ends the
// launch.
bool SameMeeting(const Wait& a, const Wait& b);
void ReportStuck();

// For the threads of a warp that have met (warp_ops.cc). `at`: by lane, null where it takes no part.
void Finish(Thread* const (&at)[32]);
void FinishTensorCores(Thread* const (&at)[32]);  // tensor_cores.cc

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_BLOCK_H_
