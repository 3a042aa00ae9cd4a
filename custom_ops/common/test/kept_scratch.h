// Scratch memory for benches: a call gets the memory of the one before again, as an op does.
#ifndef LARGEOUT_COMMON_TEST_KEPT_SCRATCH_H_
#define LARGEOUT_COMMON_TEST_KEPT_SCRATCH_H_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "common/huge_pages.h"
#include "common/scratch.h"

namespace largeout {

class KeptScratch final : public Scratch {
 public:
  void* Allocate(int64_t bytes) override {
    if (used_ == pieces_.size()) pieces_.emplace_back();
    Piece& piece = pieces_[used_++];
    if (piece.bytes < bytes) {
      piece.bytes = (bytes + (2 << 20)) >> 21 << 21;
      piece.data.reset(std::aligned_alloc(2 << 20, piece.bytes));
      AdviseHugePages(piece.data.get(), piece.bytes);
      std::memset(piece.data.get(), 0, piece.bytes);
    }
    return piece.data.get();
  }

  // How many pieces are out; those after the first `used` are handed out again.
  size_t used() const { return used_; }
  void Reset(size_t used = 0) { used_ = used; }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  struct Piece {
    std::unique_ptr<void, Free> data;
    int64_t bytes = 0;
  };
  std::vector<Piece> pieces_;
  size_t used_ = 0;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TEST_KEPT_SCRATCH_H_
