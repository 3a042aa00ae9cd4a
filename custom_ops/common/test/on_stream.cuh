// Tests of calls as training makes them: on another stream than the default one, without waiting.
#ifndef LARGEOUT_COMMON_ON_STREAM_CUH_
#define LARGEOUT_COMMON_ON_STREAM_CUH_

#include "common/cuda/late_report.h"
#include "common/test/cuda_testing.cuh"

namespace largeout {

class OnStream {
 public:
  OnStream() { CUDA_OK(cudaStreamCreate(&stream_)); }
  ~OnStream() { cudaStreamDestroy(stream_); }
  void Wait() { CUDA_OK(cudaStreamSynchronize(stream_)); }
  // A call whose errors come late.
  GpuCall call() { return {stream_, scratch_.get().scratch, &report_}; }

  // How often the host has waited; where nothing counts that, never.
  static int64_t Waits() {
#ifdef LARGEOUT_EMULATE_CUDA
    return emulation::Waits();
#else
    return 0;
#endif
  }

 private:
  cudaStream_t stream_ = nullptr;
  TestCall<GpuCall> scratch_;
  LateReport report_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_ON_STREAM_CUH_
