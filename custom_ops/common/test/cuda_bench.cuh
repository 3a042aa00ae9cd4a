// Helpers of the CUDA benches: the machine's own limits, times by events, a line of JSON per measurement.
//
//   if (!Bench::HasGpu()) return 77;
//   Bench bench("embedding", argc, argv);  // [--quick] [--once] [--only TEXT]
//   const Times t = bench.Time([&](int i) { Lookup(inputs[i % sets]); });
//   bench.Report("10 x 1.68M x 128", "lookup", t, bytes, flops);
//
// --quick: tiny sizes, each call twice. --once: each call once, for a profiler that waits for
// cudaProfilerStart; nothing is timed. --only: the cases whose name has this, where the bench asks by Runs().
#ifndef LARGEOUT_COMMON_CUDA_BENCH_CUH_
#define LARGEOUT_COMMON_CUDA_BENCH_CUH_

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common/cuda/blas.h"
#include "common/cuda/launch.cuh"
#include "common/test/cuda_bench_data.cuh"

#if LARGEOUT_EMULATE_CUDA  // which has neither clocks nor a profiler
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline cudaError_t cudaProfilerStart() { return cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return cudaSuccess; }
#else
#include <cuda_profiler_api.h>
#endif

namespace largeout {

// Many independent chains of fused multiply-adds: what the float32 units can do.
static __global__ void BenchFma(float* out, float x, int rounds) {
  float a[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i] = threadIdx.x + i;
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i] = fmaf(a[i], x, 0.5f);
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += a[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Keeps the card busy for a while.
static __global__ void BenchWait(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

struct Times {
  double median, low, high;  // milliseconds; low and high: first and last decile
};

class Bench {
 public:
  static bool HasGpu() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
    std::printf("skipped: no GPU\n");
    return false;
  }

  Bench(const char* name, int argc, char** argv) : name_(name) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--quick") == 0) quick_ = true;
      if (std::strcmp(argv[i], "--once") == 0) once_ = true;
      if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only_ = argv[++i];
    }
    BENCH_OK(cudaEventCreate(&start_));
    BENCH_OK(cudaEventCreate(&stop_));
    if (!once_) MeasureLimits();
  }
  ~Bench() {
    if (Failures() > 0) std::exit(1);  // the emulation found something
  }

  bool quick() const { return quick_; }
  bool Runs(const std::string& what) const { return what.find(only_) != std::string::npos; }
  double free_bytes() const {
    size_t free = 0, total = 0;
    BENCH_OK(cudaMemGetInfo(&free, &total));
    return static_cast<double>(free);
  }

  // Whether products can be those of cuBLASLt. Where they cannot, prints that the case is left out.
  bool HasLibrary(const std::string& what, BenchArena* memory) const {
    const int64_t used = memory->used();
    ArenaScratch scratch(memory);
    const bool found = Blas::OfDevice({nullptr, &scratch}) != nullptr;
    memory->Reset(used);
    if (!found) std::printf("%-14s %-34s left out: cuBLASLt was not found\n", name_, what.c_str());
    return found;
  }

  // call(i) for i = 0, 1, ...; pass another input set for each i where one would fit the cache. The card has
  // 0.2 ms to do before each, so that the host is ahead of it: launches are not timed, but waits within the
  // call are.
  template <typename Call>
  Times Time(const Call& call, int repeats = 40) {
    if (once_) {
      BENCH_OK(cudaProfilerStart());
      call(0);
      BENCH_OK(cudaDeviceSynchronize());
      BENCH_OK(cudaProfilerStop());
      return {};
    }
    int warm_up = 5;
    if (quick_) warm_up = repeats = 1;
    std::vector<float> ms;
    for (int i = 0; i < warm_up + repeats; ++i) {
      BENCH_OK(cudaDeviceSynchronize());
      BENCH_OK(Launch(BenchWait, 1, 1, 0, nullptr, 400000));
      BENCH_OK(cudaEventRecord(start_));
      call(i);
      BENCH_OK(cudaEventRecord(stop_));
      BENCH_OK(cudaEventSynchronize(stop_));
      float elapsed = 0.f;
      BENCH_OK(cudaEventElapsedTime(&elapsed, start_, stop_));
      if (i >= warm_up) ms.push_back(elapsed);
      // Calls of more than 50 ms: some two seconds of them.
      if (i == 0 && elapsed > 50.f)
        warm_up = 1, repeats = std::min(repeats, std::max(5, static_cast<int>(2000.f / elapsed)));
    }
    BENCH_OK(cudaGetLastError());
    std::sort(ms.begin(), ms.end());
    return {ms[repeats / 2], ms[repeats / 10], ms[repeats - 1 - repeats / 10]};
  }

  // bytes: read and written at the least (0: not counted). flops: 0 where arithmetic cannot be the limit.
  void Report(const std::string& what, const std::string& part, const Times& t, double bytes,
              double flops = 0.0) {
    if (once_) return;
    const double bytes_ms = bytes / copy_ * 1e3, flops_ms = flops / fma_ * 1e3,
                 bound = std::max(bytes_ms, flops_ms);
    char note[96] = "";
    int at = 0;
    if (bytes > 0) at = std::snprintf(note, sizeof(note), "%.0f%% of copy, ", 100.0 * bytes_ms / t.median);
    if (bound > 0)
      std::snprintf(note + at, sizeof(note) - at, "%.2f x bound (%s)", t.median / bound,
                    bytes_ms < flops_ms ? "flops" : "bytes");
    std::printf(
        "{\"bench\": \"%s\", \"case\": \"%s\", \"part\": \"%s\", \"ms\": %.6g, \"low\": %.6g, \"high\": %.6g, "
        "\"bytes\": %.6g, \"flops\": %.6g, \"note\": \"%s\"}\n",
        name_, what.c_str(), part.c_str(), t.median, t.low, t.high, bytes, flops, note);
    std::fflush(stdout);
  }

 private:
  void MeasureLimits() {
    cudaDeviceProp device;
    BENCH_OK(cudaGetDeviceProperties(&device, 0));
    const double most = quick_ ? 1048576.0 : 2147483648.0;
    const int64_t bytes = static_cast<int64_t>(std::min(free_bytes() / 4, most)) / 1024 * 1024;
    BenchArena memory(2 * bytes);
    char *from = memory.Take<char>(bytes), *to = memory.Take<char>(bytes);
    BENCH_OK(Launch(BenchFill, 4096, 256, 0, nullptr, reinterpret_cast<float*>(from), bytes / 4, 1, 1.f));
    const Times copy =
        Time([&](int) { BENCH_OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice)); }, 20);
    copy_ = 2.0 * bytes / copy.median * 1e3;
    const int blocks = quick_ ? 8 : device.multiProcessorCount * 8, rounds = quick_ ? 8 : 4096;
    const Times fma = Time(
        [&](int) {
          BENCH_OK(Launch(BenchFma, blocks, 256, 0, nullptr, reinterpret_cast<float*>(to), 0.5f, rounds));
        },
        20);
    fma_ = 2.0 * 16 * rounds * blocks * 256 / fma.median * 1e3;
    std::printf(
        "{\"card\": \"%s, %d multiprocessors\", \"copy_gb_per_s\": %.4g, \"fma_tflop_per_s\": %.3g}\n",
        device.name, device.multiProcessorCount, copy_ * 1e-9, fma_ * 1e-12);
  }

  const char* name_;
  std::string only_;  // what a case's name has to have
  bool quick_ = false, once_ = false;
  cudaEvent_t start_, stop_;
  double copy_ = 0.0, fma_ = 0.0;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_BENCH_CUH_
