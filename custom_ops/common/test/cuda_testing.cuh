// Helpers of tests of CUDA kernels: checked calls, arrays in device memory, and calls of launchers.
#ifndef LARGEOUT_COMMON_CUDA_TESTING_CUH_
#define LARGEOUT_COMMON_CUDA_TESTING_CUH_

#include <cstdio>
#include <memory>
#include <vector>

#include "common/cuda/cuda.h"
#include "common/test/check.h"
#include "common/test/test_call.h"

#define CUDA_OK(call)                                                                       \
  do {                                                                                      \
    const int error_ = static_cast<int>(call);                                              \
    if (error_ != 0) std::printf("%s:%d: %s\n", __FILE__, __LINE__, CudaErrorName(error_)); \
    CHECK_TRUE(error_ == 0);                                                                \
  } while (0)

namespace largeout {

// Random numbers that bfloat16 has exactly.
inline std::vector<float> RoundNumbers(int n) {
  Random random(3);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(random.Below(64) - 32) / 8.f;
  return values;
}

template <typename X>
class OnGpu {
 public:
  explicit OnGpu(int64_t n, int shift = ShiftedArrays::Shift()) : n_(n), shift_(shift) {
    CUDA_OK(cudaMalloc(&data_, (n + shift + 1) * sizeof(X)));
  }
  explicit OnGpu(const std::vector<X>& host) : OnGpu(static_cast<int64_t>(host.size())) {
    CUDA_OK(cudaMemcpy(get(), host.data(), n_ * sizeof(X), cudaMemcpyHostToDevice));
  }
  OnGpu(const OnGpu&) = delete;
  ~OnGpu() { cudaFree(data_); }
  X* get() const { return data_ + shift_; }
  std::vector<X> Host() const {
    std::vector<X> host(n_);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(host.data(), get(), n_ * sizeof(X), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  X* data_ = nullptr;
  const int64_t n_;
  const int shift_;
};

// While one lives, calls are allowed something.
template <class What>
class Allow {
 public:
  Allow() { Allowed() = true; }
  ~Allow() { Allowed() = false; }
  Allow(const Allow&) = delete;
  static bool& Allowed() {
    static bool allowed = false;
    return allowed;
  }
};
using AllowTf32 = Allow<struct Tf32>;        // factors of float32 may be rounded to TF32
using AllowLibrary = Allow<struct Library>;  // large products may be those of cuBLASLt

template <>
class TestCall<GpuCall> final : public Scratch {
 public:
  template <typename X>
  using Array = OnGpu<X>;

  explicit TestCall(int /*threads*/ = 1) {}
  GpuCall get() { return {nullptr, this, nullptr, AllowTf32::Allowed(), AllowLibrary::Allowed()}; }

  // Every piece is new and full of NaN, so that reading what nobody wrote shows. The emulation knows what was written.
  void* Allocate(int64_t bytes) override {
    pieces_.push_back(std::make_unique<OnGpu<char>>(bytes, 0));
#ifndef LARGEOUT_EMULATE_CUDA
    CUDA_OK(cudaMemset(pieces_.back()->get(), 0xff, bytes));
#endif
    return pieces_.back()->get();
  }

 private:
  std::vector<std::unique_ptr<OnGpu<char>>> pieces_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_TESTING_CUH_
