// The arrays that a kernel needs for one call, of its scratch memory.
#ifndef LARGEOUT_COMMON_ARENA_H_
#define LARGEOUT_COMMON_ARENA_H_

#include <cstdint>

#include "common/scratch.h"

namespace largeout {

// Takes an array after the other and remembers whether memory was left for all of them: error() says so once,
// after the last. Or hands out 256-byte aligned parts of a block of memory; without one it only adds up.
class Arena {
 public:
  Arena() = default;
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  explicit Arena(Scratch* scratch) : scratch_(scratch) {}

  template <typename X>
  X* Take(int64_t n) {
    if (scratch_ != nullptr) {
      X* array = scratch_->Take<X>(n);
      full_ = full_ || array == nullptr;
      return array;
    }
    const int64_t offset = bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(X)) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<X*>(base_ + offset);
  }
  int error() const { return full_ ? kNoMemory : 0; }
  int64_t bytes() const { return bytes_; }

 private:
  Scratch* scratch_ = nullptr;
  char* base_ = nullptr;
  int64_t bytes_ = 0;
  bool full_ = false;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_ARENA_H_
