// Indices out of range, gradients for candidates, and random rounding on the GPU.
#include "fan_in/test/fan_in_cuda_testing.cuh"

namespace largeout {

// An index out of range is found by every pass, its class is left out, and nothing beyond the inputs is
// touched.
LARGEOUT_TEST(BadIndices) {
  for (const uint32_t wrong : {20u, UINT32_MAX / 2, UINT32_MAX / 2 + 1, UINT32_MAX}) {
    FanInProblem<float, uint32_t> p(200, 4, 20, 5, 1);
    p.indices[150 * 4 + 2] = wrong;
    p.indices[170 * 4] = wrong;
    const FanInBatch& batch = p.batch;
    const LayerOnGpu<float, uint32_t> gpu(p);
    const OnGpu<float> logits(batch.size * p.classes), lse(batch.size), mass(batch.size),
        grad_loss(p.grad_loss);
    const OnGpu<int64_t> rows(batch.size * 3);
    const OnGpu<uint8_t> active(FanInActiveBytes(batch, p.classes));
    const OnGpu<char> workspace(FanInTopKWorkspaceCuda(p.classes, batch, 3) +
                                FanInLossWorkspaceCuda(p.classes, batch) +
                                FanInBackwardWorkspaceCuda(p.classes, p.fan_in, batch, true));
    int64_t bad;
    CUDA_OK(
        FanInLogitsCuda(gpu.layer, batch, gpu.blocks.get(), logits.get(), workspace.get(), nullptr, &bad));
    CHECK_TRUE(bad == 150);
    CUDA_OK(FanInTopKCuda(gpu.layer, batch, gpu.blocks.get(), 3, logits.get(), rows.get(), workspace.get(),
                          nullptr, &bad));
    CHECK_TRUE(bad == 150);
    const PositivesOnGpu positives(PositivesOf(p));
    for (const FanInLoss loss : kFanInAllLosses) {
      CUDA_OK(FanInLossForwardCuda(gpu.layer, batch, gpu.blocks.get(), loss, positives.get(),
                                   {logits.get(), lse.get(), mass.get(), active.get()}, workspace.get(),
                                   nullptr, &bad));
      CHECK_TRUE(bad == 150);
    }
    FanInGradientsCuda gradients;
    gradients.positives = positives.get(), gradients.grad_loss = grad_loss.get();
    const OnGpu<float> hyper(std::vector<float>{0.1f, 0.f});
    FanInStep<float> step;
    step.rule = FanInRule::kSgd, step.weights = gpu.weights.get(), step.bias = gpu.bias.get();
    step.hyper = hyper.get();
    float* d_blocks;
    CUDA_OK(FanInBackwardCuda(gpu.layer, batch, gpu.blocks.get(), gradients, step, &d_blocks, workspace.get(),
                              nullptr, &bad));
    CHECK_TRUE(bad == 150);
    const std::vector<float> weights = gpu.weights.Host();
    CHECK_TRUE(std::equal(&weights[150 * 4], &weights[151 * 4], &p.weights[150 * 4]));
    CHECK_TRUE(!std::equal(&weights[149 * 4], &weights[150 * 4], &p.weights[149 * 4]));
  }
}

LARGEOUT_TEST(CandidateGradients) {
  Random random(5);
  SerialParallel serial;
  for (const int64_t size : {5, 32, 70}) {
    const FanInProblem<bfloat16, uint16_t> p(300, 6, 50, size, size, true, true, -1.f);
    std::vector<float> blocks(p.batch.floats());
    FanInLayOut(p.batch, p.x.data(), blocks.data(), &serial);
    const FanInPositives positives = PositivesOf(p);
    std::vector<int32_t> candidates(150 * 9);
    for (int32_t& c : candidates) c = static_cast<int32_t>(random.Below(50));
    FanInGradients gradients;
    gradients.positives = &positives, gradients.grad_loss = p.grad_loss.data();
    std::vector<float> want(candidates.size(), NAN);
    int64_t bad, bad_candidate;
    CHECK_TRUE(FanInCandidateGradient(p.layer(), p.batch, blocks.data(), gradients, candidates.data(), 100,
                                      150, 9, want.data(), &bad_candidate, &serial) == -1);
    const LayerOnGpu<bfloat16, uint16_t> gpu(p);
    const PositivesOnGpu positives_gpu(positives);
    const OnGpu<float> grad_loss(p.grad_loss), got_gpu(std::vector<float>(want.size(), NAN));
    FanInGradientsCuda on_gpu;
    on_gpu.positives = positives_gpu.get(), on_gpu.grad_loss = grad_loss.get();
    const OnGpu<char> workspace(FanInBackwardWorkspaceCuda(150, 6, p.batch, false));
    for (const int64_t wrong : {-1, 33}) {
      if (wrong >= 0) candidates[wrong * 9 + 4] = 50;
      const OnGpu<int32_t> candidates_gpu(candidates);
      CUDA_OK(FanInCandidateGradientCuda(gpu.layer, p.batch, gpu.blocks.get(), on_gpu, candidates_gpu.get(),
                                         100, 150, 9, got_gpu.get(), workspace.get(), nullptr, &bad,
                                         &bad_candidate));
      CHECK_TRUE(bad == -1 && bad_candidate == wrong);
      const std::vector<float> got = got_gpu.Host();
      for (size_t i = 0; wrong < 0 && i < got.size(); ++i) CHECK_CLOSE(got[i], want[i], 1e-4);
    }
  }
}

// bfloat16 weights far above their updates: they move in the mean, by the CPU's random numbers.
LARGEOUT_TEST(RoundsLikeTheCpu) {
  FanInProblem<bfloat16, uint16_t> p(3000, 8, 40, 4, 11);
  for (bfloat16& w : p.weights) FromFloat(1.f, &w);
  for (float& v : p.x) v = 1.f;
  for (float& g : p.grad_loss) g = 1e-4f;
  SerialParallel serial;
  const auto want = ComputeFanIn(p, FanInLoss::kBinaryCrossentropy, {FanInRule::kSgd}, &serial);
  const auto got = ComputeFanInCuda(p, FanInLoss::kBinaryCrossentropy, {FanInRule::kSgd});
  int64_t different = 0, moved = 0;
  for (size_t i = 0; i < p.weights.size(); ++i) {
    different += got.weights[i].bits != want.weights[i].bits;
    moved += got.weights[i].bits != p.weights[i].bits;
  }
  CHECK_TRUE(different <= 5 && moved > 100 && moved < static_cast<int64_t>(p.weights.size()) / 4);
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
