// The connections of classes: drawn at random, pruned and regrown.
//
// Every random number is a function of (key, class, draw): fan_in_random.h. So connections are the same on
// any device, for any number of threads, and however the classes are cut into parts: `first_class` is the
// class of row 0. `key` comes from RandomKey(seed, step). On a GPU one thread draws, prunes and regrows a
// class: classes are many, and this is done once in hundreds of steps.
#ifndef LARGEOUT_FAN_IN_FAN_IN_REWIRE_H_
#define LARGEOUT_FAN_IN_FAN_IN_REWIRE_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/scratch.h"

namespace largeout {

// Connections are pruned in the order of FanInPruneKey: by |weight|, equal ones at random. 63 bits, in 7
// digits of 9.
constexpr int kFanInKeyDigits = 7, kFanInDigitBits = 9;

template <typename T, typename Id>
struct FanInRewiring {
  T* weights;           // [classes, fan_in]
  Id* indices;          // likewise
  float* const* slots;  // likewise
  int num_slots;
  int64_t fan_in, inputs;
  uint64_t key;
  int64_t first_class, first_row, rows;  // the rows to rewire
  int64_t count;  // prune so many connections of every class; -1: those whose key is at most `threshold`
  int64_t threshold;
  const int32_t* candidates;  // [rows, num_candidates]
  const float* scores;        // likewise
  int64_t num_candidates;     // 0: regrow at random
};

// C: CpuCall (fan_in_rewire.cc) or GpuCall (cuda/fan_in_rewire.cu). Arrays are in the memory of the device,
// except FanInRewiring's list of slots. Methods return 0 or an error (common/scratch.h). *bad: -1, or a row
// with an index outside [0, inputs); a GPU waits for the stream to learn it, and for nothing else.
template <typename C>
class FanInRewire {
 public:
  using Call = C;
  explicit FanInRewire(const Call& call) : call_(call) {}

  // indices [rows, fan_in]: different inputs for every class, uniform. fan_in <= inputs < 2^31.
  template <typename Id>
  int Connections(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                  Id* indices);

  // candidates [rows, count]: different inputs for every class of the rows [first_row, first_row + rows) of
  // indices, none of those that it has; fan_in + count <= inputs.
  template <typename Id>
  int Candidates(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                 int64_t first_row, int64_t rows, int64_t count, int32_t* candidates, int64_t* bad);

  // counts[512]: of the connections whose keys begin with the digits in `prefix` (`digit` of them), how many
  // continue with which digit. With these counts, digit by digit, one finds the key of any rank.
  template <typename T>
  int KeyCounts(const T* weights, int64_t rows, int64_t fan_in, uint64_t key, int64_t first_class,
                uint64_t prefix, int digit, int64_t* counts);

  // A regrown connection has weight 0 and slots 0. It goes to the candidate of the largest |score| (the first
  // of equal ones) that the class has not, else to a random input that the class had not; where too few are
  // left, to one that it does not keep. *changes: the number of regrown connections. Nothing is changed where
  // a row is bad, or (with *bad_candidate set) the candidates of a row are.
  template <typename T, typename Id>
  int Rewire(const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad, bool* bad_candidate);

  // degrees[inputs]: how many connections an input has.
  template <typename Id>
  int Degrees(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, int64_t* degrees,
              int64_t* bad);

 private:
  const Call call_;
};

using FanInRewireCpu = FanInRewire<CpuCall>;
using FanInRewireGpu = FanInRewire<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_REWIRE_H_
