// Threads that wait for others which do not come.
#include <algorithm>
#include <cstring>

#include "cuda_emulator/block.h"
#include "cuda_emulator/report.h"

namespace largeout {
namespace emulation {
namespace {

const char* Name(Meeting meeting) {
  switch (meeting) {
    case Meeting::kBarrier:
      return "__syncthreads";
    case Meeting::kSyncWarp:
      return "__syncwarp";
    case Meeting::kShuffle:
      return "a shuffle";
    case Meeting::kVote:
      return "a vote";
    default:
      return "a tensor core instruction";
  }
}

std::string Doing(const Thread& thread) {
  if (thread.state == Thread::kDone) return Format("thread %d has ended", thread.linear);
  const char* file = std::strrchr(thread.wait.file, '/');
  return Format("thread %d waits at %s of %s:%d (lanes %#x)", thread.linear, Name(thread.wait.meeting),
                file == nullptr ? thread.wait.file : file + 1, thread.wait.line, thread.wait.mask);
}

}  // namespace

bool SameMeeting(const Wait& a, const Wait& b) {
  return a.meeting == b.meeting && a.mask == b.mask && a.line == b.line && a.bytes == b.bytes &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

void ReportStuck() {
  const Thread *first = nullptr, *other = nullptr;
  for (int i = 0; i < running.count; ++i) {
    const Thread& thread = running.threads[i];
    if (thread.state != Thread::kWaits) continue;
    // Somebody whom the thread waits for: in its warp where it waits for a warp.
    const bool warp = thread.wait.meeting != Meeting::kBarrier;
    const int begin = warp ? i / 32 * 32 : 0,
              end = warp ? std::min(begin + 32, running.count) : running.count;
    for (int j = begin; j < end && other == nullptr; ++j) {
      const Thread& that = running.threads[j];
      if (warp && (thread.wait.mask >> that.lane() & 1) == 0) continue;
      if (that.state == Thread::kDone || !SameMeeting(that.wait, thread.wait)) other = &that;
    }
    if (other != nullptr) {
      first = &thread;
      break;
    }
  }
  if (first == nullptr || other == nullptr)
    return ReportAndStop("divergence: threads wait for ever", nullptr);
  running.thread = nullptr;
  ReportAndStop("divergence: " + Doing(*first) + ", " + Doing(*other), nullptr);
}

}  // namespace emulation
}  // namespace largeout
