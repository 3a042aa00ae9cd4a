// Tests of the emulator: tensor cores against plain products, and copies that do not wait.
#include <vector>

#include "common/cuda/launch.cuh"
#include "common/cuda/tensor_cores.cuh"
#include "common/test/cuda_testing.cuh"
#include "cuda_emulator/emulation.h"

namespace largeout {
namespace {

// c [16, 8] = a [16, 16] * b [8, 16]^T.
__global__ void MultiplyBf16(const bfloat16* a, const bfloat16* b, float* c) {
  __shared__ __align__(16) bfloat16 rows[32][16];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 512; i += 32)
    rows[i / 16][i % 16].bits = i < 256 ? a[i].bits : i < 384 ? b[i - 256].bits : 0;
  __syncwarp();
  uint32_t x[4], y[4];
  const int block = lane / 8;
  LoadBlocks<false>(&rows[block % 2 * 8 + lane % 8][block / 2 * 8], x);
  LoadBlocks<false>(&rows[16 + block % 2 * 8 + lane % 8][block / 2 * 8], y);
  float sum[4] = {};
  MultiplyBlocks(sum, x, y[0], y[2]);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
// c [16, 8] = a [16, 8] * b [8, 8].
__global__ void MultiplyTf32(const float* a, const float* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, place = lane % 4;
  const uint32_t x[4] = {__float_as_uint(a[group * 8 + place]), __float_as_uint(a[(group + 8) * 8 + place]),
                         __float_as_uint(a[group * 8 + place + 4]),
                         __float_as_uint(a[(group + 8) * 8 + place + 4])};
  float sum[4] = {};
  MultiplyTf32Blocks(sum, x, __float_as_uint(b[place * 8 + group]),
                     __float_as_uint(b[(place + 4) * 8 + group]));
  for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + place * 2 + i % 2] = sum[i];
}
template <bool kWait>
__global__ void CopyAhead(const float4* in, float4* out) {
  __shared__ float4 stage[32];
  BeginCopy<16>(&stage[threadIdx.x], &in[threadIdx.x]);
  CommitCopies();
  if (kWait) WaitForCopies<0>();
  out[threadIdx.x] = stage[threadIdx.x];
}

}  // namespace

LARGEOUT_TEST(TensorCoresAndCopies) {
  for (const unsigned order : {0u, 1u, 2u}) {
    emulation::SetOrder(order);
    const std::vector<float> numbers = RoundNumbers(512);
    const OnGpu<float> in(numbers), out(512);
    std::vector<bfloat16> low(512);
    for (int i = 0; i < 512; ++i) FromFloat(numbers[i], &low[i]);
    const OnGpu<bfloat16> short_in(low);
    CUDA_OK(Launch(MultiplyBf16, 1, 32, 0, nullptr, short_in.get(), short_in.get() + 256, out.get()));
    std::vector<float> product = out.Host();
    for (int i = 0; i < 128; ++i) {
      float want = 0.f;
      for (int k = 0; k < 16; ++k) want += numbers[i / 8 * 16 + k] * numbers[256 + i % 8 * 16 + k];
      CHECK_TRUE(product[i] == want);
    }
    CUDA_OK(Launch(MultiplyTf32, 1, 32, 0, nullptr, in.get(), in.get() + 256, out.get()));
    product = out.Host();
    for (int i = 0; i < 128; ++i) {
      float want = 0.f;
      for (int k = 0; k < 8; ++k) want += numbers[i / 8 * 8 + k] * numbers[256 + k * 8 + i % 8];
      CHECK_TRUE(product[i] == want);
    }
    const OnGpu<float4> quads(32), copied(32);
    CUDA_OK(cudaMemcpy(quads.get(), numbers.data(), 512, cudaMemcpyHostToDevice));
    CUDA_OK(Launch(CopyAhead<true>, 1, 32, 0, nullptr, quads.get(), copied.get()));
    CHECK_TRUE(copied.Host()[31].w == numbers[127]);
#ifndef __SANITIZE_ADDRESS__
    {
      emulation::Collected collected;
      CUDA_OK(Launch(CopyAhead<false>, 1, 32, 0, nullptr, quads.get(), copied.get()));
      CHECK_TRUE(collected.Has({"not written", "CopyAhead"}));
    }
#endif
    CUDA_OK(cudaDeviceSynchronize());
  }
  emulation::SetOrder(0);
}

}  // namespace largeout
