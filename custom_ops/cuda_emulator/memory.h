// The memory of the emulated device, what is known of each byte of it, and of shared memory.
#ifndef LARGEOUT_CUDA_EMULATOR_MEMORY_H_
#define LARGEOUT_CUDA_EMULATOR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace largeout {
namespace emulation {

// ---- Device memory. Contents are all ones (NaN) at first; 256 bytes around each allocation belong to
// nobody.
void* AllocateDevice(size_t bytes);  // null: none is left
void ShareWithHost(void* data);      // such an allocation is for host code too
bool IsShared(uintptr_t address);
bool FreeDevice(void* data);         // false: not an allocation
// Whether [data, data + bytes) is in one live allocation.
bool OnDevice(const void* data, size_t bytes);
// "32 bytes after the end of an allocation of 100 bytes"
std::string Place(uintptr_t address);
size_t DeviceBytesLeft();
constexpr size_t kDeviceBytes = size_t{16} << 30;

// ---- Dynamic shared memory of a block: new at each.
void BeginShared(size_t bytes);
void EndShared();
size_t DynamicSharedLimit(const void* kernel);
int SetDynamicSharedLimit(const void* kernel, int bytes);

// ---- Accesses.
// The last three do not race with one another.
enum class Access : uint8_t { kRead, kWrite, kAtomic, kVolatileRead, kVolatileWrite };
// Of the thread that runs, or (outside of kernels) of a call of the runtime: bounds, and in the plain build
// what accesses.cc looks at. `code`: where it is.
void CheckAccess(const void* data, size_t bytes, Access access, const void* code);
// A copy of the runtime: `from` null: a fill.
void CopiedTo(const void* to, const void* from, size_t bytes);
bool AllWritten(const void* data, size_t bytes);

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_MEMORY_H_
