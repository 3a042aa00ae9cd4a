#include "cuda_emulator/memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "cuda_emulator/block.h"
#include "cuda_emulator/include/cuda_runtime.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/shadow.h"

namespace largeout {
namespace emulation {

Region device_region, dynamic_region, static_region;

namespace {

constexpr size_t kGuard = 256, kReserved = size_t{1} << 38, kMostShared = 227 << 10, kUsualShared = 48 << 10;

struct Allocation {
  size_t bytes;
  bool live;
};
// By address, those that were freed too: an address is not used twice.
std::map<uintptr_t, Allocation>& Allocations() {
  static auto* allocations = new std::map<uintptr_t, Allocation>;
  return *allocations;
}
std::map<const void*, int>& Limits() {
  static auto* limits = new std::map<const void*, int>;
  return *limits;
}
size_t used_bytes = 0, next_offset = kGuard;

// The allocation at or before an address.
const std::pair<const uintptr_t, Allocation>* Before(uintptr_t address) {
  auto after = Allocations().upper_bound(address);
  return after == Allocations().begin() ? nullptr : &*--after;
}

std::map<uintptr_t, size_t>& Shared() {
  static auto* shared = new std::map<uintptr_t, size_t>;
  return *shared;
}

}  // namespace

void ShareWithHost(void* data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  Shared()[address] = Allocations().at(address).bytes;
}
bool IsShared(uintptr_t address) {
  auto after = Shared().upper_bound(address);
  return after != Shared().begin() && (--after, address < after->first + after->second);
}

void* Reserve(size_t bytes) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    std::printf("emulation: no address space\n");
    std::abort();
  }
  return data;
}

#ifdef __SANITIZE_ADDRESS__

void* AllocateDevice(size_t bytes) {
  void* data = nullptr;
  if (bytes > kDeviceBytes - used_bytes || posix_memalign(&data, 256, bytes) != 0) return nullptr;
  Allocations()[reinterpret_cast<uintptr_t>(data)] = {bytes, true};
  used_bytes += bytes;
  return std::memset(data, 0xff, bytes);
}

bool FreeDevice(void* data) {
  const auto found = Allocations().find(reinterpret_cast<uintptr_t>(data));
  if (found == Allocations().end()) return false;
  used_bytes -= found->second.bytes;
  Allocations().erase(found);
  std::free(data);
  return true;
}

void BeginShared(size_t bytes) {
  std::free(running.shared);
  running.shared = static_cast<char*>(std::malloc(bytes));
  std::memset(running.shared, 0xff, bytes);
}
void EndShared() {
  std::free(running.shared);
  running.shared = nullptr;
}

void CheckAccess(const void*, size_t, Access, const void*) {}
void CopiedTo(const void*, const void*, size_t) {}
bool AllWritten(const void*, size_t) { return true; }

#else

void* AllocateDevice(size_t bytes) {
  if (device_region.base == 0) {
    device_region.lines = static_cast<Line*>(Reserve(kReserved / 64 * sizeof(Line)));
    device_region.base = reinterpret_cast<uintptr_t>(Reserve(kReserved));
    device_region.bytes = kReserved;
  }
  const size_t whole = (bytes + kGuard - 1) / kGuard * kGuard + kGuard;
  if (bytes > kDeviceBytes - used_bytes || whole > kReserved - next_offset) return nullptr;
  const uintptr_t data = device_region.base + next_offset;
  next_offset += whole;
  used_bytes += bytes;
  Allocations()[data] = {bytes, true};
  std::memset(reinterpret_cast<void*>(data), 0xff, bytes);
  Mark(device_region, data, bytes, true, false);
  return reinterpret_cast<void*>(data);
}

bool FreeDevice(void* data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const auto found = Allocations().find(address);
  if (found == Allocations().end() || !found->second.live) return false;
  const size_t bytes = found->second.bytes;
  found->second.live = false;
  used_bytes -= bytes;
  Mark(device_region, address, bytes, false, false);
  for (uintptr_t at = address; at < address + bytes; at += 64) FreeCells(device_region.At(at));
  const uintptr_t begin = (address + 4095) / 4096 * 4096, end = (address + bytes) / 4096 * 4096;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  return true;
}

void BeginShared(size_t bytes) {
  if (dynamic_region.base == 0) {
    dynamic_region.bytes = kMostShared + 4096;
    dynamic_region.base = reinterpret_cast<uintptr_t>(Reserve(dynamic_region.bytes));
    dynamic_region.lines = static_cast<Line*>(Reserve(dynamic_region.bytes / 64 * sizeof(Line)));
    dynamic_region.shared = true;
  }
  running.shared = reinterpret_cast<char*>(dynamic_region.base);
  static size_t marked = 0;
  if (marked == bytes) return;
  Mark(dynamic_region, dynamic_region.base, kMostShared, false, false);
  Mark(dynamic_region, dynamic_region.base, bytes, true, false);
  marked = bytes;
}
void EndShared() {}

void CopiedTo(const void* to, const void* from, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  if (!device_region.Has(address)) return;
  if (!device_region.Has(source)) return Mark(device_region, address, bytes, true, true);
  for (size_t i = 0; i < bytes; ++i) {  // what was not written is not written there either
    const uint64_t bit = uint64_t{1} << (address + i) % 64;
    const bool written = device_region.At(source + i)->written >> (source + i) % 64 & 1;
    Line* line = device_region.At(address + i);
    line->written = written ? line->written | bit : line->written & ~bit;
  }
}

bool AllWritten(const void* data, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  for (size_t i = 0; i < bytes; ++i) {
    if ((device_region.At(address + i)->written >> (address + i) % 64 & 1) == 0) return false;
  }
  return true;
}

#endif

bool OnDevice(const void* data, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const auto* before = Before(address);
  return before != nullptr && before->second.live && address - before->first + bytes <= before->second.bytes;
}

std::string Place(uintptr_t address) {
  if (static_region.Has(address)) return "static shared memory";
  if (dynamic_region.Has(address)) {
    return Format("byte %zu of %zu bytes of dynamic shared memory",
                  static_cast<size_t>(address - dynamic_region.base), running.shared_bytes);
  }
  const auto* before = device_region.Has(address) ? Before(address) : nullptr;
  if (before == nullptr) return Format("host memory (%#zx)", static_cast<size_t>(address));
  const size_t offset = address - before->first, bytes = before->second.bytes;
  const char* freed = before->second.live ? "" : ", which was freed";
  if (offset < bytes) return Format("byte %zu of an allocation of %zu bytes%s", offset, bytes, freed);
  return Format("%zu bytes after the end of an allocation of %zu bytes%s", offset - bytes, bytes, freed);
}

size_t DeviceBytesLeft() { return kDeviceBytes - used_bytes; }

size_t DynamicSharedLimit(const void* kernel) {
  const auto found = Limits().find(kernel);
  return found == Limits().end() ? kUsualShared : static_cast<size_t>(found->second);
}

int SetDynamicSharedLimit(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMostShared) return cudaErrorInvalidValue;
  Limits()[kernel] = bytes;
  return cudaSuccess;
}

}  // namespace emulation
}  // namespace largeout
