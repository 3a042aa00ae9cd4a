// Top-k on the GPU against a full sort of its own logits: exact, ties by the smaller row, the same on every
// run.
#include <numeric>

#include "fan_in/test/fan_in_cuda_testing.cuh"

namespace largeout {
namespace {

template <typename T, typename Id>
void Check(const FanInProblem<T, Id>& p, int64_t k) {
  const LayerOnGpu<T, Id> gpu(p);
  const OnGpu<float> logits_gpu(p.batch.size * p.classes),
      scores_gpu(std::vector<float>(p.batch.size * k, NAN));
  const OnGpu<int32_t> rows_gpu(std::vector<int32_t>(p.batch.size * k, -1));
  const OnGpu<int64_t> again_gpu(p.batch.size * k);
  const OnGpu<char> workspace(
      std::max(kFanInLogitsWorkspaceCuda, FanInTopKWorkspaceCuda(p.classes, p.batch, k)));
  int64_t bad;
  CUDA_OK(FanInLogitsCuda(gpu.layer, p.batch, gpu.blocks.get(), logits_gpu.get(), workspace.get(), nullptr,
                          &bad));
  CUDA_OK(FanInTopKCuda(gpu.layer, p.batch, gpu.blocks.get(), k, scores_gpu.get(), rows_gpu.get(),
                        workspace.get(), nullptr, &bad));
  CHECK_TRUE(bad == -1);
  const std::vector<float> logits = logits_gpu.Host(), scores = scores_gpu.Host();
  const std::vector<int32_t> rows = rows_gpu.Host();
  for (int64_t b = 0; b < p.batch.size; ++b) {
    const float* z = logits.data() + b * p.classes;
    std::vector<int32_t> order(p.classes);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
      return z[i] > z[j] || (!std::isnan(z[i]) && std::isnan(z[j]));
    });
    for (int64_t i = 0; i < k; ++i) {
      CHECK_TRUE(rows[b * k + i] == order[i]);
      CHECK_TRUE(std::isnan(z[order[i]]) ? std::isnan(scores[b * k + i]) : scores[b * k + i] == z[order[i]]);
    }
  }
  CUDA_OK(FanInTopKCuda(gpu.layer, p.batch, gpu.blocks.get(), k, scores_gpu.get(), again_gpu.get(),
                        workspace.get(), nullptr, &bad));
  const std::vector<int64_t> again = again_gpu.Host();
  CHECK_TRUE(std::equal(rows.begin(), rows.end(), again.begin()));
}

}  // namespace

LARGEOUT_TEST(EqualsASort) {
  for (const int64_t size : {1, 16, 33, 70}) {
    for (const int64_t k : {1, 5, 123}) Check(FanInProblem<float, uint16_t>(123, 5, 30, size, k + size), k);
    Check(FanInProblem<bfloat16, uint32_t>(507, 3, 30, size, size, false), 20);
  }
  Check(FanInProblem<float, uint32_t>(9000, 2, 30, 8, 3), 10);    // several ranges
  Check(FanInProblem<float, uint32_t>(5000, 2, 30, 2, 4), 5000);  // k larger than a range
  Check(FanInProblem<float, uint16_t>(0, 2, 30, 2, 4), 0);
}

LARGEOUT_TEST(Ties) {
  FanInProblem<float, uint16_t> p(3000, 2, 9, 20, 1);
  for (int64_t c = 0; c < p.classes; ++c) {  // few different classes, many times
    for (int k = 0; k < 2; ++k)
      p.weights[c * 2 + k] = static_cast<float>(c % 3),
                        p.indices[c * 2 + k] = static_cast<uint16_t>(c % 4 + k);
    p.bias[c] = c % 2 == 0 ? 0.f : -0.f;
  }
  for (const int64_t k : {1, 50, 2000}) Check(p, k);
}

LARGEOUT_TEST(NanIsLowest) {
  FanInProblem<float, uint16_t> p(200, 3, 9, 5, 1);
  for (int64_t c = 0; c < p.classes; c += 2) p.bias[c] = c % 3 == 0 ? NAN : -INFINITY;
  for (int64_t i = 0; i < 9; ++i) p.x[2 * 9 + i] = NAN;
  for (const int64_t k : {3, 150, 200}) Check(p, k);
}

}  // namespace largeout

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  return largeout::TestMain();
}
