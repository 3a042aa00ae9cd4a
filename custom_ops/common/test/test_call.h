// Calls of launchers from tests: cases that are templates on a launcher run on CPUs and GPUs.
//
//   template <typename Device>
//   void Doubles() {
//     TestCall<typename Device::Call> call;
//     const ArrayOf<Device, float> x({1.f, 2.f}), y(2);          // in the memory of the device
//     CHECK_TRUE(Device(call.get()).Double(x.get(), 2, y.get()) == 0);
//     CHECK_TRUE(y.Host() == std::vector<float>({2.f, 4.f}));
//   }
//   LARGEOUT_CASE(Doubles, DoublingCpu)                          // in x_test.cc; in x_test.cu: DoublingGpu
#ifndef LARGEOUT_COMMON_TEST_CALL_H_
#define LARGEOUT_COMMON_TEST_CALL_H_

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "common/scratch.h"
#include "common/test/check.h"

#define LARGEOUT_CASE(name, Device) static ::largeout::TestRegistrar registrar_##name(#name, &name<Device>);

namespace largeout {

// What a case needs of a device: an Array<X>, from a vector or of a size, and the call of a launcher, which
// owns its scratch memory. For GPUs: cuda_testing.cuh.
template <typename Call>
class TestCall;

template <typename Device, typename X>
using ArrayOf = typename TestCall<typename Device::Call>::template Array<X>;

// Sizes of a case: fewer on GPUs, where every array is an allocation.
template <typename Device>
std::vector<int64_t> SizesFor(const std::vector<int64_t>& cpu, const std::vector<int64_t>& gpu) {
  return std::is_same_v<typename Device::Call, CpuCall> ? cpu : gpu;
}

// Where the threads of a GPU are fibers (cuda_emulator/), or each access is looked at for races,
// every kOneOf-th case of a grid is made: some of each row and column, as long as their lengths have no
// factor in common with it.
#ifdef LARGEOUT_EMULATE_CUDA
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif
#if defined(LARGEOUT_EMULATE_CUDA) || defined(__SANITIZE_THREAD__)
constexpr int kOneOf = 5;
#else
constexpr int kOneOf = 1;
#endif

// While one lives, arrays in the memory of a GPU begin an element later: at the alignment of their elements,
// no more.
class ShiftedArrays {
 public:
  ShiftedArrays() { Shift() = 1; }
  ~ShiftedArrays() { Shift() = 0; }
  ShiftedArrays(const ShiftedArrays&) = delete;
  static int& Shift() {
    static int shift = 0;
    return shift;
  }
};

template <typename X>
class OnHost {
 public:
  explicit OnHost(int64_t n) : data_(n) {}
  explicit OnHost(const std::vector<X>& values) : data_(values) {}
  OnHost(const OnHost&) = delete;
  X* get() const { return data_.data(); }
  const std::vector<X>& Host() const { return data_; }

 private:
  mutable std::vector<X> data_;
};

template <>
class TestCall<CpuCall> final : public Scratch {
 public:
  template <typename X>
  using Array = OnHost<X>;

  explicit TestCall(int threads = 1) : parallel_(Pool(threads)) {}
  CpuCall get() { return {parallel_, this}; }

  // Every piece is new and full of NaN, so that reading what nobody wrote shows.
  void* Allocate(int64_t bytes) override {
    const size_t size = (static_cast<size_t>(bytes) + 64) / 64 * 64;
    pieces_.emplace_back(std::aligned_alloc(64, size), &std::free);
    return std::memset(pieces_.back().get(), 0xff, size);
  }

 private:
  static Parallel* Pool(int threads) {
    static SerialParallel serial;
    static std::map<int, ThreadParallel> pools;
    return threads == 1 ? static_cast<Parallel*>(&serial)
                        : &pools.try_emplace(threads, threads).first->second;
  }

  Parallel* parallel_;
  std::vector<std::unique_ptr<void, decltype(&std::free)>> pieces_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TEST_CALL_H_
