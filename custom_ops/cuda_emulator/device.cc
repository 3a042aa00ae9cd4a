#include "cuda_emulator/device.h"

#include <algorithm>

#include "cuda_emulator/block.h"
#include "cuda_emulator/memory.h"

namespace largeout {
namespace emulation {
int Barrier(int vote, const char* file, int line) {
  int any = 0;
  Wait& wait = Waiting(Meeting::kBarrier, 0, file, line);
  wait.argument = vote;
  wait.out = &any;
  Meet();
  return any;
}

void SyncWarp(unsigned mask, const char* file, int line) {
  Waiting(Meeting::kSyncWarp, mask, file, line);
  Meet();
}

unsigned Ballot(unsigned mask, int vote, const char* file, int line) {
  unsigned ballot = 0;
  Wait& wait = Waiting(Meeting::kVote, mask, file, line);
  wait.argument = vote;
  wait.out = &ballot;
  Meet();
  return ballot;
}

void Shuffle(From from, unsigned mask, const void* in, void* out, size_t bytes, int by, int width,
             const char* file, int line) {
  const int lane = running.thread->lane(), begin = lane / width * width, end = begin + width;
  int source = lane;
  switch (from) {
    case From::kLane:
      source = begin + (by & (width - 1));
      break;
    case From::kXor:
      source = lane ^ by;
      break;
    case From::kUp:
      source = lane - by;
      break;
    case From::kDown:
      source = lane + by;
      break;
  }
  if (source >= end || (from == From::kUp && source < begin)) source = lane;
  Wait& wait = Waiting(Meeting::kShuffle, mask, file, line);
  wait.in = in, wait.out = out, wait.bytes = bytes;
  wait.argument = source & 31;
  Meet();
}

// Any lanes that happen to run together, as far as a kernel may know: this one.
unsigned ActiveMask() { return 1u << running.thread->lane(); }

template <typename T>
T Atomically(Atomic what, T* address, T value, T compare) {
  CheckAccess(address, sizeof(T), Access::kAtomic, __builtin_return_address(0));
  const T old = *address;
  switch (what) {
    case Atomic::kAdd:
      *address = old + value;
      break;
    case Atomic::kMin:
      *address = std::min(old, value);
      break;
    case Atomic::kMax:
      *address = std::max(old, value);
      break;
    case Atomic::kExchange:
      *address = value;
      break;
    case Atomic::kCompare:
      if (old == compare) *address = value;
      break;
    default:
      if constexpr (std::is_integral_v<T>) {
        *address = what == Atomic::kOr ? old | value : what == Atomic::kAnd ? old & value : old ^ value;
      }
  }
  return old;
}
template int Atomically(Atomic, int*, int, int);
template unsigned Atomically(Atomic, unsigned*, unsigned, unsigned);
template unsigned long Atomically(Atomic, unsigned long*, unsigned long, unsigned long);
template long long Atomically(Atomic, long long*, long long, long long);
template unsigned long long Atomically(Atomic, unsigned long long*, unsigned long long, unsigned long long);
template float Atomically(Atomic, float*, float, float);
template double Atomically(Atomic, double*, double, double);

}  // namespace emulation
}  // namespace largeout
