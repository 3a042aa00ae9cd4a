#include "cuda_emulator/block.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "cuda_emulator/emulation.h"
#include "cuda_emulator/include/cuda_runtime.h"
#include "cuda_emulator/memory.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/warp/tensor_cores.h"

namespace largeout {
namespace emulation {

Indices now;
Running running;
__thread bool inside_kernel = false;
int64_t most_stride_blocks = kStrideBlocks;

namespace {

constexpr int kMostThreads = 1024, kMostWarps = kMostThreads / 32;

struct Machine {
  Thread threads[kMostThreads];
  Warp warps[kMostWarps];
};
Machine& machine() {
  static Machine* m = new Machine;
  return *m;
}

const Job* job;
bool stopped;
unsigned order_seed = [] {
  const char* seed = std::getenv("LARGEOUT_EMULATION_SEED");
  return seed == nullptr ? 0u : static_cast<unsigned>(std::strtoul(seed, nullptr, 10));
}();

// The i-th of n in the order of the seed: a bijection that needs no memory.
class Order {
 public:
  explicit Order(uint64_t n, uint64_t salt) : n_(n) {
    if (order_seed == 0 || n < 2) return;
    uint64_t z = (order_seed + salt + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z ^= z >> 31;
    start_ = z % n;
    step_ = z / n % n;
    while (step_ == 0 || std::gcd(step_, n) != 1) step_ = (step_ + 1) % n;
  }
  uint64_t operator()(uint64_t i) const {
    if (order_seed == 0) return i;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * step_ + start_) % n_);
  }

 private:
  uint64_t n_, start_ = 0, step_ = 1;
};

void ThreadBody() {
  Thread* thread = running.thread;
  job->Call();
  FinishCopies(0);
  thread->state = Thread::kDone;
  thread->fiber.Suspend(true);
}

// Whether all lanes that `thread` waits for are there; they are then let go.
bool WarpMeets(Thread* thread) {
  Thread* const threads = machine().threads;
  const int first = thread->linear / 32 * 32;
  Warp* warp = &running.warps[thread->warp()];
  const unsigned wanted = thread->wait.mask & warp->lanes;
  if ((warp->waiting & wanted) != wanted) return false;
  Thread* at[32] = {};
  for (unsigned left = wanted; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    Thread* that = &threads[first + lane];
    if (!SameMeeting(that->wait, thread->wait)) return false;
    at[lane] = that;
  }
  Finish(at);
  warp->waiting &= ~wanted;
  for (Thread* that : at) {
    if (that != nullptr) that->state = Thread::kReady;
  }
  return true;
}

// All threads are at one barrier, or have ended. Returns whether any goes on.
bool PassBarrier() {
  Thread* const threads = machine().threads;
  int done = 0, waiting = 0, any = 0;
  for (int i = 0; i < running.count; ++i) {
    if (threads[i].state == Thread::kDone) {
      ++done;
    } else if (threads[i].wait.meeting == Meeting::kBarrier &&
               SameMeeting(threads[i].wait, threads[0].wait)) {
      ++waiting, any |= threads[i].wait.argument;
    }
  }
  if (done == running.count) return false;
  if (waiting < running.count) {
    ReportStuck();
    return false;
  }
  for (int i = 0; i < running.count; ++i) {
    *static_cast<int*>(threads[i].wait.out) = any;
    threads[i].state = Thread::kReady;
  }
  ++running.phase;
  for (int w = 0; w * 32 < running.count; ++w) {
    if (running.warps[w].ticked) std::memset(running.warps[w].clock, 0, sizeof(running.warps[w].clock));
    running.warps[w].ticked = false;
  }
  return true;
}

void RunWarp(int warp, const int (&lanes)[32]) {
  const int first = warp * 32, count = std::min(32, running.count - first);
  for (bool any = true; any && !stopped;) {
    any = false;
    for (int i = 0; i < 32 && !stopped; ++i) {
      const int lane = lanes[i];
      if (lane >= count) continue;
      Thread* thread = &machine().threads[first + lane];
      if (thread->state != Thread::kReady) continue;
      any = true;
      running.thread = thread;
      now.thread = thread->indices.thread;
      Restamp();
      thread->fiber.Resume();
      inside_kernel = false;
    }
  }
}

void RunBlock(uint64_t index, const Dim3& grid, const Dim3& block) {
  now.block = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
               static_cast<unsigned>(index / grid.x / grid.y)};
  running.block = ++running.phase;
  Thread* const threads = machine().threads;
  for (int i = 0; i < running.count; ++i) {
    Thread& t = threads[i];
    t.linear = i;
    t.indices.thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    t.state = Thread::kReady;
    t.wait = Wait();
    t.copies.clear();
    t.copy_group = 0;
    t.fiber.Start(&ThreadBody);
  }
  const int warps = (running.count + 31) / 32;
  for (int w = 0; w < warps; ++w) {
    if (running.warps[w].ticked) std::memset(running.warps[w].clock, 0, sizeof(running.warps[w].clock));
    running.warps[w].ticked = false;
    const int lanes = std::min(32, running.count - w * 32);
    running.warps[w].lanes = lanes == 32 ? ~0u : (1u << lanes) - 1;
    running.warps[w].waiting = 0;
  }
  const Order warp_order(warps, index), lane_order(32, index);
  int lanes[32];
  for (int i = 0; i < 32; ++i) lanes[i] = static_cast<int>(lane_order(i));
  do {
    for (int w = 0; w < warps && !stopped; ++w) RunWarp(static_cast<int>(warp_order(w)), lanes);
  } while (!stopped && PassBarrier());
  running.thread = nullptr;
}

}  // namespace

WholeGrids::WholeGrids() { most_stride_blocks = INT64_MAX; }
WholeGrids::~WholeGrids() { most_stride_blocks = kStrideBlocks; }
unsigned SetOrder(unsigned seed) { return std::exchange(order_seed, seed); }
void EnterKernel() { inside_kernel = true; }
void LeaveKernel() { inside_kernel = false; }

Wait& Waiting(Meeting meeting, unsigned mask, const char* file, int line) {
  Wait& wait = running.thread->wait;
  wait.meeting = meeting, wait.mask = mask, wait.file = file, wait.line = line;
  wait.bytes = 0;
  return wait;
}

void Meet() {
  inside_kernel = false;
  Thread* const thread = running.thread;
  const Wait& wait = thread->wait;
  thread->state = Thread::kWaits;
  if (wait.meeting != Meeting::kBarrier) {
    if ((wait.mask >> thread->lane() & 1) == 0) {
      ReportAndStop(Format("divergence: thread %d is not among the lanes %#x that it names at %s:%d",
                           thread->linear, wait.mask, wait.file, wait.line),
                    nullptr);
    }
    running.warps[thread->warp()].waiting |= 1u << thread->lane();
    if (WarpMeets(thread)) {
      Restamp();
      inside_kernel = true;
      return;
    }
  }
  thread->fiber.Suspend();
  inside_kernel = true;
}

void StopLaunch() {
  if (job == nullptr) return;
  stopped = true;
  inside_kernel = false;
  if (running.thread != nullptr) running.thread->fiber.Suspend(true);
}

std::string WhoRuns() {
  if (job == nullptr) return "host code";
  std::string name = Symbol(running.kernel);
  name = name.substr(0, name.find(" at "));
  const auto at = [](const uint3& i) { return Format("(%u, %u, %u)", i.x, i.y, i.z); };
  std::string text = "kernel " + name + ", block " + at(now.block);
  if (running.thread != nullptr) text += ", thread " + at(running.thread->indices.thread);
  return text;
}

static int64_t launches = 0;
int64_t Launches() { return launches; }

int Run(const Job& what, const Dim3& grid, const Dim3& block, size_t shared_bytes) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z, blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > kMostThreads || block.z > 64 || blocks == 0 || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (shared_bytes > DynamicSharedLimit(what.kernel())) return cudaErrorInvalidValue;
  job = &what;
  ++launches;
  stopped = false;
  now.threads = block, now.blocks = grid;
  running.count = static_cast<int>(threads);
  running.threads = machine().threads;
  running.warps = machine().warps;
  running.kernel = what.kernel();
  running.shared_bytes = shared_bytes;
  running.launch = running.phase + 1;
  const Order order(blocks, 0);
  for (uint64_t b = 0; b < blocks && !stopped; ++b) {
    BeginShared(shared_bytes);
    RunBlock(order(b), grid, block);
  }
  EndShared();
  job = nullptr;
  running.thread = nullptr;
  if (stopped) SetPendingError(cudaErrorLaunchFailure);
  return cudaSuccess;
}

}  // namespace emulation
}  // namespace largeout
