// A file as memory: what is written there is in the file, and only what is used is in memory. A new file is sparse: it has its
// size at once, takes up no disk until it is written, and reads as zeros.
#ifndef LARGEOUT_COMMON_MAPPED_FILE_H_
#define LARGEOUT_COMMON_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/parallel.h"

namespace largeout {

// The memory of the file `path`, which has `bytes` > 0 bytes: an existing file must have as many, and one that is not there is
// made, but not where read_only. Null after an error, which *error then names. UnmapFile gives it back.
//
// Rows are used at random, so the kernel reads pages one by one, and none ahead.
void* MapFile(const std::string& path, size_t bytes, bool read_only, std::string* error);

void UnmapFile(void* data, size_t bytes);

// Asks for the pages of the rows `rows` [n] of `row_bytes` bytes each, which are at `data` one after another,
// and does not wait for them. Rows that follow each other in `rows` and are in the same or in adjacent pages
// are one question. This is advice: errors are ignored, and memory that is no file stays as it is.
template <typename Id>
void WillNeed(const void* data, int64_t row_bytes, const Id* rows, int64_t n, Parallel* parallel);

}  // namespace largeout

#endif  // LARGEOUT_COMMON_MAPPED_FILE_H_
