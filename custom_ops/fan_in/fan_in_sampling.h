// Draws different inputs for a class. Internal to the family.
#ifndef LARGEOUT_FAN_IN_FAN_IN_SAMPLING_H_
#define LARGEOUT_FAN_IN_FAN_IN_SAMPLING_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fan_in/fan_in_random.h"

namespace largeout {

// The inputs of one class that are taken; empty again after Clear.
class InputSet {
 public:
  explicit InputSet(int64_t inputs) : inputs_(inputs), bits_((inputs + 63) / 64) {}

  bool Has(int64_t input) const { return bits_[input / 64] >> (input % 64) & 1; }
  // False if it was there.
  bool Add(int64_t input) {
    if (Has(input)) return false;
    bits_[input / 64] |= uint64_t{1} << (input % 64);
    members_.push_back(input);
    return true;
  }
  void Clear() {
    for (const int64_t input : members_) bits_[input / 64] = 0;
    members_.clear();
  }
  int64_t size() const { return static_cast<int64_t>(members_.size()); }

  // Draws `count` inputs that are not taken, in the order of drawing: out[0 .. count). There are so many. May
  // leave the set with or without them.
  template <typename Out>
  void Draw(const FanInStream& stream, int64_t count, Out* out) {
    if (inputs_ <= 4 * (size() + count)) {  // few are free: shuffle those
      free_.clear();
      for (int64_t i = 0; i < inputs_; ++i) {
        if (!Has(i)) free_.push_back(i);
      }
      for (int64_t n = 0; n < count; ++n) {
        std::swap(free_[n], free_[n + stream.Below(n, static_cast<int64_t>(free_.size()) - n)]);
        out[n] = static_cast<Out>(free_[n]);
      }
      return;
    }
    for (int64_t n = 0, draw = 0; n < count; ++draw) {  // most are free: draw until one is
      const int64_t input = stream.Below(draw, inputs_);
      if (Add(input)) out[n++] = static_cast<Out>(input);
    }
  }

 private:
  const int64_t inputs_;
  std::vector<uint64_t> bits_;
  std::vector<int64_t> members_, free_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_SAMPLING_H_
