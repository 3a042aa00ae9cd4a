// Tests of the emulator: kernels with a planted defect, each found and named, and kernels without one.
#include <algorithm>
#include <vector>

#include "common/cuda/cuda_warp.cuh"
#include "common/cuda/launch.cuh"
#include "common/test/cuda_testing.cuh"
#include "cuda_emulator/emulation.h"

namespace largeout {
namespace {

using emulation::Collected;

// Whether a launch of one block (or of more) is reported in these words, and in no others; what it returned.
template <typename... Parameters, typename... Arguments>
void Planted(const std::vector<std::string>& words, int blocks, int threads, void (*kernel)(Parameters...),
             Arguments... arguments) {
  Collected collected;
  CHECK_TRUE(Launch(kernel, blocks, threads, 0, nullptr, arguments...) == 0);
  cudaDeviceSynchronize();
  if (collected.Has(words)) return;
  ++Failures();
  std::printf("not reported: %s ... %s\n", words[0].c_str(), words.back().c_str());
  for (const std::string& report : collected.reports()) std::printf("reported: %s\n", report.c_str());
}

__global__ void WritePast(float* out, int n) {
  if (static_cast<int>(threadIdx.x) <= n) out[threadIdx.x] = 1.f;
}
__global__ void ReadOne(const float* in, float* out) { out[threadIdx.x] = in[0]; }
__global__ void ReadPair(const float* in, float* out) { *out = reinterpret_cast<const float2*>(in)->x; }
__global__ void IndexPast(float* out, int at) {
  __shared__ float rows[4][8];
  rows[0][threadIdx.x % 8] = 1.f;
  *out = rows[0][at];
}

// The neighbour's element; with kBarrier as it should be.
template <bool kBarrier>
__global__ void Turn(float* out) {
  __shared__ float line[64];
  line[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = line[(threadIdx.x + 33) % 64];
}
// As Turn, within a warp.
template <bool kBarrier>
__global__ void TurnInWarp(float* out) {
  __shared__ float line[64];
  line[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kBarrier) {
    __syncwarp();
  } else {
    __any_sync(0xffffffffu, 1);  // orders nothing
  }
  out[threadIdx.x] = line[threadIdx.x ^ 1];
}
// The lanes of a half wait for one another; reading from the other half is a race.
__global__ void TurnInHalves(float* out, int by) {
  __shared__ float line[32];
  line[threadIdx.x] = 1.f;
  __syncwarp(threadIdx.x < 16 ? 0xffffu : 0xffff0000u);
  out[threadIdx.x] = line[threadIdx.x ^ by];
}
__global__ void AllWrite(float* out) {
  __shared__ float last;
  last = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = last;
}
__global__ void ReadUnwrittenShared(float* out) {
  __shared__ float line[32];
  if (threadIdx.x != 5) line[threadIdx.x] = 1.f;
  __syncthreads();
  out[threadIdx.x] = line[threadIdx.x];
}
__global__ void BlocksWrite(float* out) { out[threadIdx.x] = static_cast<float>(blockIdx.x); }
__global__ void BlocksReadAndWrite(float* data) {
  if (blockIdx.x == 1) {
    data[0] = 2.f;
  } else {
    data[threadIdx.x + 1] = data[0];
  }
}
__global__ void BlocksAdd(int* sum, bool plain) {
  atomicAdd(sum, 1);
  if (plain) *sum = 7;
}
__global__ void Flag(int* flag) {
  if (LoadRelaxed(flag) == 0) StoreRelaxed(flag, 1);
}

__global__ void BarrierForSome() {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void TwoBarriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void ShuffleForSome(float* out) {
  if (threadIdx.x < 20) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.f, 1);
}
__global__ void ShuffleFromOutside(float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.f, 20);
}
__global__ void VoteOfAnother(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __any_sync(0xffff0000u, 1);
}
__global__ void Nothing() {}
__global__ void Dynamic(int n, float* out) {
  float* shared = DynamicShared<float>();
  shared[n] = 1.f;
  *out = shared[n];
}

__global__ void SumAll(const float* in, float* out) {
  __shared__ float sums[2];
  const float sum = WarpSum(in[threadIdx.x]);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) *out = sums[0] + sums[1];
}
__global__ void Transpose(const float* in, int rows, int columns, float* out) {
  __shared__ float tile[16][17];
  const int row = static_cast<int>(blockIdx.y * 16 + threadIdx.y),
            column = static_cast<int>(blockIdx.x * 16 + threadIdx.x);
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = in[row * columns + column];
  __syncthreads();
  const int to_row = static_cast<int>(blockIdx.x * 16 + threadIdx.y),
            to_column = static_cast<int>(blockIdx.y * 16 + threadIdx.x);
  if (to_row < columns && to_column < rows) out[to_row * rows + to_column] = tile[threadIdx.x][threadIdx.y];
}
}  // namespace

#ifndef __SANITIZE_ADDRESS__  // which ends the program at the first one, and knows nothing of races
LARGEOUT_TEST(Bounds) {
  const OnGpu<char> bytes(40 * 4 - 1);  // and one more: a whole number of floats
  float* out = reinterpret_cast<float*>(bytes.get());
  Planted({"out of bounds: a write of 4 bytes", "0 bytes after the end of an allocation of 160", "WritePast",
           "thread (40, 0, 0)", "reports_emulated.cu"},
          1, 64, WritePast, out, 40);
  Planted({"out of bounds: index 9", "IndexPast"}, 1, 32, IndexPast, out, 9);
  Planted({"misaligned", "ReadPair"}, 1, 1, ReadPair, out + 1, out);
  float on_host[64] = {};
  Planted({"out of bounds: a read", "host memory"}, 1, 32, ReadOne, on_host, out);
  Collected collected;
  CHECK_TRUE(cudaMemcpy(on_host, out, 164, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK_TRUE(collected.Has({"out of bounds", "a copy from"}));
}

LARGEOUT_TEST(MemoryThatIsGoneOrNeverWritten) {
  const OnGpu<float> out(32);
  float* freed;
  CUDA_OK(cudaMalloc(&freed, 128));
  CUDA_OK(cudaMemset(freed, 0, 128));
  CUDA_OK(cudaFree(freed));
  Planted({"out of bounds: a read", "which was freed", "ReadOne"}, 1, 32, ReadOne, freed, out.get());
  const OnGpu<float> fresh(32);
  Planted({"not written: a read of 4 bytes", "ReadOne"}, 1, 32, ReadOne, fresh.get(), out.get());
  Planted({"not written", "static shared memory", "thread (5, 0, 0)"}, 1, 32, ReadUnwrittenShared, out.get());
  Collected collected;
  volatile float seen = fresh.get()[0];
  (void)seen;
  CHECK_TRUE(collected.Has({"device memory on the host"}));
}

LARGEOUT_TEST(Races) {
  const OnGpu<float> out(65);
  Planted({"race: a read of 4 bytes", "static shared memory", "Turn", "reports_emulated.cu"}, 1, 64,
          Turn<false>, out.get());
  Planted({"race", "TurnInWarp"}, 1, 64, TurnInWarp<false>, out.get());
  Planted({"race", "TurnInHalves"}, 1, 32, TurnInHalves, out.get(), 16);
  Planted({"race: a write", "AllWrite"}, 1, 32, AllWrite, out.get());
  Planted({"race: a write", "with a write by another block", "BlocksWrite"}, 2, 32, BlocksWrite, out.get());
  CUDA_OK(cudaMemset(out.get(), 0, 64 * 4));
  Planted({"race", "by another block", "BlocksReadAndWrite"}, 2, 32, BlocksReadAndWrite, out.get());
  const OnGpu<int> sum(std::vector<int>{0});
  Planted({"race: an atomic operation", "with a write by thread", "BlocksAdd"}, 1, 32, BlocksAdd, sum.get(),
          true);
}
#endif  // __SANITIZE_ADDRESS__

LARGEOUT_TEST(Divergence) {
  const OnGpu<float> out(64);
  const OnGpu<int> votes(64);
  Planted({"divergence: thread 0 waits at __syncthreads of reports_emulated.cu", "thread 40 has ended",
           "BarrierForSome"},
          1, 64, BarrierForSome);
  Planted({"divergence", "thread 32 waits at __syncthreads", "TwoBarriers"}, 1, 64, TwoBarriers);
  Planted({"divergence: thread 0 waits at a shuffle", "thread 20 has ended", "ShuffleForSome"}, 1, 32,
          ShuffleForSome, out.get());
  Planted({"divergence: a shuffle", "reads from lane 20", "ShuffleFromOutside"}, 1, 32, ShuffleFromOutside,
          out.get());
  Planted({"is not among the lanes", "VoteOfAnother"}, 1, 32, VoteOfAnother, votes.get());
}

LARGEOUT_TEST(ConfigurationsAndErrors) {
  CHECK_TRUE(Launch(Nothing, 0, 32, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK_TRUE(Launch(Nothing, 1, 0, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK_TRUE(Launch(Nothing, 1, 1025, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK_TRUE(Launch(Nothing, dim3(1, 65536), 32, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK_TRUE(Launch(Nothing, dim3(1, 65535), 1, 0, nullptr) == 0);
  const OnGpu<float> out(1);
  CHECK_TRUE(Launch(Dynamic, 1, 1, 64 << 10, nullptr, (64 << 8) - 1, out.get()) == 0);
  CHECK_TRUE(Launch(Dynamic, 1, 1, 228 << 10, nullptr, 0, out.get()) == cudaErrorInvalidValue);
  CHECK_TRUE(cudaFuncSetAttribute(Dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10) !=
             cudaSuccess);
  CHECK_TRUE(Launch(Dynamic, 1, 1, 227 << 10, nullptr, (227 << 8) - 1, out.get()) == 0);
  CUDA_OK(cudaDeviceSynchronize());
#ifndef __SANITIZE_ADDRESS__
  {
    Collected collected;
    CHECK_TRUE(Launch(Dynamic, 1, 1, 1000, nullptr, 250, out.get()) == 0);
    CHECK_TRUE(cudaDeviceSynchronize() == cudaErrorLaunchFailure);  // once
    CHECK_TRUE(collected.Has({"out of bounds: a write", "byte 1000 of 1000 bytes of dynamic shared memory"}));
  }
#endif
  CUDA_OK(cudaDeviceSynchronize());
  void* much;
  CHECK_TRUE(cudaMalloc(&much, size_t{1} << 40) == cudaErrorMemoryAllocation);
}

LARGEOUT_TEST(CleanKernels) {
  for (const unsigned order : {0u, 1u, 2u}) {
    emulation::SetOrder(order);
    const std::vector<float> numbers = RoundNumbers(512);
    const OnGpu<float> in(numbers), out(512);
    CUDA_OK(Launch(Turn<true>, 1, 64, 0, nullptr, out.get()));
    CUDA_OK(Launch(TurnInWarp<true>, 1, 64, 0, nullptr, out.get()));
    CUDA_OK(Launch(TurnInHalves, 1, 32, 0, nullptr, out.get(), 8));
    const OnGpu<int> sum(std::vector<int>{0});
    CUDA_OK(Launch(BlocksAdd, 5, 32, 0, nullptr, sum.get(), false));
    CHECK_TRUE(sum.Host()[0] == 160);
    CUDA_OK(Launch(Flag, 5, 64, 0, nullptr, sum.get()));

    CUDA_OK(Launch(SumAll, 1, 64, 0, nullptr, in.get(), out.get()));
    float total = 0.f;
    for (int i = 0; i < 64; ++i) total += numbers[i];
    CHECK_TRUE(out.Host()[0] == total);

    CUDA_OK(Launch(Transpose, dim3(2, 2), dim3(16, 16), 0, nullptr, in.get(), 20, 25, out.get()));
    const std::vector<float> turned = out.Host();
    for (int i = 0; i < 500; ++i) CHECK_TRUE(turned[i % 25 * 20 + i / 25] == numbers[i]);
  }
  emulation::SetOrder(0);
}

}  // namespace largeout
