#include "cuda_emulator/shadow.h"

#include <cstdlib>
#include <cstring>

namespace largeout {
namespace emulation {
namespace {

// Cells that were given back, by shift.
struct Free {
  Free* next;
};
Free* free_cells[3];

Cell* TakeCells(int shift) {
  const size_t bytes = (64 >> shift) * sizeof(Cell);
  Free*& list = free_cells[shift];
  if (list == nullptr) {
    constexpr size_t kSlab = size_t{1} << 20;
    char* slab = static_cast<char*>(Reserve(kSlab));
    for (size_t at = 0; at + bytes <= kSlab; at += bytes) {
      Free* piece = reinterpret_cast<Free*>(slab + at);
      piece->next = list;
      list = piece;
    }
  }
  Free* taken = list;
  list = taken->next;
  return static_cast<Cell*>(std::memset(static_cast<void*>(taken), 0, bytes));
}

void GiveBack(Cell* cells, int shift) {
  Free* piece = reinterpret_cast<Free*>(cells);
  piece->next = free_cells[shift];
  free_cells[shift] = piece;
}

}  // namespace

void FreeCells(Line* line) {
  if (line->cells != nullptr) GiveBack(line->cells, line->shift);
  line->cells = nullptr;
}

void MakeCells(Line* line, int shift) {
  if (line->cells == nullptr) {
    line->cells = TakeCells(shift);
    line->shift = static_cast<uint8_t>(shift);
  } else if (line->shift > shift) {
    Cell* finer = TakeCells(shift);
    for (int i = 0; i < 64 >> shift; ++i) finer[i] = line->cells[i << shift >> line->shift];
    GiveBack(line->cells, line->shift);
    line->cells = finer;
    line->shift = static_cast<uint8_t>(shift);
  }
}

void Mark(const Region& region, uintptr_t data, size_t bytes, bool live, bool written) {
  while (bytes > 0) {
    const size_t offset = data % 64, count = bytes < 64 - offset ? bytes : 64 - offset;
    const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << offset;
    Line* line = region.At(data);
    line->live = live ? line->live | mask : line->live & ~mask;
    line->written = written ? line->written | mask : line->written & ~mask;
    data += count;
    bytes -= count;
  }
}

}  // namespace emulation
}  // namespace largeout
