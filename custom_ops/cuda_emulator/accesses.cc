// Looks at each access to memory in the .cu files. They are compiled with -fsanitize=thread, which calls the
// functions at the end of this file; GCC's own library of them is not linked.
//
// Two accesses of one launch to the same byte race where one is a plain write (or one atomic and one plain)
// unless they are of one thread, of one block with a __syncthreads between them, or of one warp with a
// __syncwarp between them that both lanes took part in. Shuffles and votes order nothing.
#ifndef __SANITIZE_ADDRESS__
#include <algorithm>
#include <cstring>

#include "cuda_emulator/block.h"
#include "cuda_emulator/memory.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/shadow.h"

extern "C" char __data_start,
    _end;  // of the program: where __shared__ arrays are, which are static variables here
extern "C" char __executable_start, etext;

namespace largeout {
namespace emulation {
namespace {

const char* Name(Access access) {
  constexpr const char* kNames[] = {"a read", "a write", "an atomic operation", "a volatile read",
                                    "a volatile write"};
  return kNames[static_cast<int>(access)];
}

std::string What(const char* kind, Access access, uintptr_t address, size_t bytes) {
  return Format("%s: %s of %zu bytes at ", kind, Name(access), bytes) + Place(address);
}

uint32_t PhaseOf(Stamp stamp) { return static_cast<uint32_t>(stamp >> 32); }
int ThreadOf(Stamp stamp) { return static_cast<int>(stamp >> 2 & 1023); }
uint32_t TimeOf(Stamp stamp) { return static_cast<uint32_t>(stamp >> 12 & 0xfffff); }

// Whether it comes before what the thread that runs does now.
inline bool Ordered(Stamp stamp) {
  const uint32_t phase = PhaseOf(stamp);
  if (phase < running.launch) return true;
  if (phase != running.phase) return phase >= running.block;
  const Thread* t = running.thread;
  const int that = ThreadOf(stamp);
  if (that == t->linear) return true;
  return that / 32 == t->warp() && running.warps[t->warp()].clock[t->lane()][that % 32] >= TimeOf(stamp);
}
inline bool OfAnotherBlock(uint32_t phase) { return phase >= running.launch && phase < running.block; }

void Race(Access access, Stamp with, const char* which, uintptr_t address, size_t bytes, const void* code) {
  std::string what = What("race", access, address, bytes) + ", with " + which;
  if (with != 0 && PhaseOf(with) == running.phase) {
    what += Format(" by thread %d of the block", ThreadOf(with));
  } else {
    what += " by another block";
  }
  Report(what, code);
}

// Returns false after a report.
inline bool Look(Cell* cell, Access access, Stamp now, uintptr_t address, size_t bytes, const void* code) {
  const bool atomic = access >= Access::kAtomic;
  if (PhaseOf(cell->write) >= running.launch && !(atomic && (cell->write & 2) != 0) &&
      !Ordered(cell->write)) {
    Race(access, cell->write, (cell->write & 2) != 0 ? "an atomic operation" : "a write", address, bytes,
         code);
    return false;
  }
  if (!atomic && OfAnotherBlock(cell->other_atomic)) {
    Race(access, 0, "an atomic operation", address, bytes, code);
    return false;
  }
  if (access == Access::kVolatileRead) {  // it does not push out what plain writes would race with
    if (PhaseOf(cell->read) < running.launch) cell->read = now;
    return true;
  }
  if (access == Access::kRead) {
    const Stamp last = cell->read;
    if (last == now) return true;
    if (OfAnotherBlock(PhaseOf(last))) {
      cell->other_read = PhaseOf(last);
    } else if (last != 0 && ThreadOf(last) != ThreadOf(now)) {
      const int warp = running.thread->warp();
      const bool keep = PhaseOf(cell->read2) == running.phase && ThreadOf(cell->read2) / 32 != warp &&
                        ThreadOf(last) / 32 == warp;
      if (!keep) cell->read2 = last;
    }
    cell->read = now;
    return true;
  }
  for (const Stamp read : {cell->read, cell->read2}) {
    if (PhaseOf(read) >= running.launch && !(atomic && (read & 2) != 0) && !Ordered(read)) {
      Race(access, read, "a read", address, bytes, code);
      return false;
    }
  }
  if (OfAnotherBlock(cell->other_read)) {
    Race(access, 0, "a read", address, bytes, code);
    return false;
  }
  if (atomic && OfAnotherBlock(PhaseOf(cell->write))) cell->other_atomic = PhaseOf(cell->write);
  cell->write = now;
  return true;
}

// `bytes` end where the line of `address` does, or before.
inline void InRegion(const Region& region, uintptr_t address, size_t bytes, Access access, const void* code) {
  Line* line = region.At(address);
  const size_t offset = address % 64;
  const uint64_t mask = (bytes == 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1) << offset;
  if (region.shared && line->block != running.block) {
    line->block = running.block;
    line->written = 0;
    if (line->cells != nullptr)
      std::memset(static_cast<void*>(line->cells), 0, (64 >> line->shift) * sizeof(Cell));
  }
  if ((line->live & mask) != mask) {
    return ReportAndStop(What("out of bounds", access, address, bytes), code);
  }
  const bool reads = access != Access::kWrite && access != Access::kVolatileWrite;
  if (reads && (line->written & mask) != mask) {
    Report(What("not written", access, address, bytes), code);
    line->written |= mask;  // told once
  }
  if (!reads || access == Access::kAtomic) line->written |= mask;
  const int shift = ((address | bytes) & 3) == 0 ? 2 : ((address | bytes) & 1) == 0 ? 1 : 0;
  if (line->cells == nullptr || line->shift > shift) MakeCells(line, shift);
  const Stamp now = running.stamp | (access >= Access::kAtomic ? 2 : 0);
  const size_t last = (offset + bytes - 1) >> line->shift;
  for (size_t i = offset >> line->shift; i <= last; ++i) {
    if (!Look(&line->cells[i], access, now, address, bytes, code)) return;
  }
}

void PrepareStatic() {
  static_region.lines = static_cast<Line*>(Reserve(((&_end - &__data_start) / 64 + 3) * sizeof(Line)));
  const uintptr_t base = reinterpret_cast<uintptr_t>(&__data_start) / 64 * 64;
  static_region.shared = true;
  static_region.bytes = (reinterpret_cast<uintptr_t>(&_end) - base + 63) / 64 * 64;
  static_region.base = base;
  Mark(static_region, base, static_region.bytes, true, false);
}

void Elsewhere(uintptr_t address, size_t bytes, Access access, const void* code) {
  // Constants of the program.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(&__executable_start);
  if (access == Access::kRead && address >= begin && address < reinterpret_cast<uintptr_t>(&__data_start))
    return;
  ReportAndStop(What("out of bounds", access, address, bytes), code);
}

// At most up to the end of a line.
void Piece(uintptr_t address, size_t bytes, Access access, const void* code) {
  if (device_region.Has(address)) return InRegion(device_region, address, bytes, access, code);
  if (static_region.bytes == 0) PrepareStatic();
  if (static_region.Has(address)) {
    if (address - reinterpret_cast<uintptr_t>(&now) < sizeof(now)) return;
    if (address - reinterpret_cast<uintptr_t>(&running) < sizeof(running)) return;
    return InRegion(static_region, address, bytes, access, code);
  }
  if (dynamic_region.Has(address)) return InRegion(dynamic_region, address, bytes, access, code);
  Elsewhere(address, bytes, access, code);
}

__attribute__((noinline)) void InKernel(uintptr_t address, size_t bytes, Access access, const void* code) {
  while (bytes > 0) {
    const size_t piece = std::min(bytes, 64 - address % 64);
    Piece(address, piece, access, code);
    address += piece;
    bytes -= piece;
  }
}

__attribute__((noinline)) void OnHost(uintptr_t address, size_t bytes, Access access, const void* code) {
  if (!IsShared(address)) Report(What("device memory on the host", access, address, bytes), code);
}

inline void Seen(const void* data, size_t bytes, Access access, const void* code) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  if (!inside_kernel) {
    if (__builtin_expect(device_region.Has(address), 0)) OnHost(address, bytes, access, code);
    return;
  }
  if (running.thread->fiber.Owns(address)) return;
  if (__builtin_expect(device_region.Has(address) && address % 64 + bytes <= 64, 1)) {
    return InRegion(device_region, address, bytes, access, code);
  }
  InKernel(address, bytes, access, code);
}

}  // namespace

void CheckAccess(const void* data, size_t bytes, Access access, const void* code) {
  if (running.thread == nullptr || running.thread->fiber.Owns(reinterpret_cast<uintptr_t>(data))) return;
  InKernel(reinterpret_cast<uintptr_t>(data), bytes, access, code);
}

extern "C" {

#define LARGEOUT_SEEN(bytes, access) Seen(data, bytes, Access::access, __builtin_return_address(0))
#define LARGEOUT_ACCESSES(n)                                                              \
  void __tsan_read##n(void* data) { LARGEOUT_SEEN(n, kRead); }                            \
  void __tsan_write##n(void* data) { LARGEOUT_SEEN(n, kWrite); }                          \
  void __tsan_unaligned_read##n(void* data) { LARGEOUT_SEEN(n, kRead); }                  \
  void __tsan_unaligned_write##n(void* data) { LARGEOUT_SEEN(n, kWrite); }                \
  void __tsan_volatile_read##n(void* data) { LARGEOUT_SEEN(n, kVolatileRead); }           \
  void __tsan_volatile_write##n(void* data) { LARGEOUT_SEEN(n, kVolatileWrite); }         \
  void __tsan_unaligned_volatile_read##n(void* data) { LARGEOUT_SEEN(n, kVolatileRead); } \
  void __tsan_unaligned_volatile_write##n(void* data) { LARGEOUT_SEEN(n, kVolatileWrite); }
LARGEOUT_ACCESSES(1)
LARGEOUT_ACCESSES(2)
LARGEOUT_ACCESSES(4)
LARGEOUT_ACCESSES(8)
LARGEOUT_ACCESSES(16)
void __tsan_read_range(void* data, size_t bytes) { LARGEOUT_SEEN(bytes, kRead); }
void __tsan_write_range(void* data, size_t bytes) { LARGEOUT_SEEN(bytes, kWrite); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Of host code: std::atomic in headers.
#define LARGEOUT_ATOMIC(bits, T)                                                                          \
  T __tsan_atomic##bits##_load(const volatile T* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile T* a, T v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_exchange(volatile T* a, T v, int) {                                             \
    return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_add(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_sub(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_and(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_and(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_or(volatile T* a, T v, int) {                                             \
    return __atomic_fetch_or(a, v, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_xor(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_xor(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* c, T v, int, int) {                 \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* c, T v, int, int) {                   \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }
LARGEOUT_ATOMIC(8, uint8_t)
LARGEOUT_ATOMIC(16, uint16_t)
LARGEOUT_ATOMIC(32, uint32_t)
LARGEOUT_ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

// -fsanitize=alignment,bounds, of which GCC's own library is not linked either.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
struct Mismatch {
  SourceLocation at;
};
void __ubsan_handle_type_mismatch_v1(Mismatch* mismatch, uintptr_t address) {
  const std::string what = Format("misaligned: an access at %s:%u to ", mismatch->at.file, mismatch->at.line);
  ReportAndStop(what + Place(address), __builtin_return_address(0));
}
void __ubsan_handle_out_of_bounds(SourceLocation* at, uintptr_t index) {
  const std::string what = Format("out of bounds: index %lld of an array at %s:%u",
                                  static_cast<long long>(index), at->file, at->line);
  ReportAndStop(what, __builtin_return_address(0));
}

}  // extern "C"

}  // namespace emulation
}  // namespace largeout
#endif  // __SANITIZE_ADDRESS__
