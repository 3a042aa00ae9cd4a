// The state that accesses.cc keeps of memory: a Line for every 64 bytes, and a Cell for every 1, 2 or 4 bytes of a line
// that kernels have touched.
#ifndef LARGEOUT_CUDA_EMULATOR_SHADOW_H_
#define LARGEOUT_CUDA_EMULATOR_SHADOW_H_

#include <cstddef>
#include <cstdint>

namespace largeout {
namespace emulation {

// An access: phase << 32 | time of the lane << 12 | thread << 2 | atomic << 1 | 1. 0: none.
using Stamp = uint64_t;

struct Cell {
  Stamp write;
  Stamp read, read2;  // the last one, and one of another thread (of another warp, if there was one)
  uint32_t other_read, other_atomic;  // the phase of the last one that another block made
};

struct Line {
  Cell* cells;
  uint64_t live, written;  // by byte
  uint32_t block;          // of shared memory: the phase of the block that the rest is about
  uint8_t shift;           // a cell is 1 << shift bytes
};

// Memory with a line for every 64 bytes of it.
struct Region {
  uintptr_t base = 0;
  size_t bytes = 0;
  Line* lines = nullptr;
  bool shared = false;

  bool Has(uintptr_t address) const { return address - base < bytes; }
  Line* At(uintptr_t address) const { return lines + (address - base) / 64; }
};

extern Region device_region, dynamic_region, static_region;

// Memory of zeros that costs nothing before it is touched.
void* Reserve(size_t bytes);
// Sets live (and written) of [data, data + bytes).
void Mark(const Region& region, uintptr_t data, size_t bytes, bool live, bool written);
void FreeCells(Line* line);
// The line with cells of at most 1 << shift bytes.
void MakeCells(Line* line, int shift);

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_SHADOW_H_
