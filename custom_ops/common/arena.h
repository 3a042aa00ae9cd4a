// One block of scratch memory, cut into the arrays that a kernel needs.
#ifndef LARGEOUT_COMMON_ARENA_H_
#define LARGEOUT_COMMON_ARENA_H_

#include <cstdint>

namespace largeout {

// Hands out 256-byte aligned parts of a block of memory; with a null block it only adds up.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <typename X>
  X* Take(int64_t n) {
    const int64_t offset = bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(X)) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<X*>(base_ + offset);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_ARENA_H_
