// The CUDA kernels of fan_in_cuda.h against the CPU's and against themselves: every run gives the same bits.
#include "fan_in/test/fan_in_cuda_testing.cuh"

namespace largeout {
namespace {

// Equal up to the order of float32 sums; bfloat16 also to its last bit, in which a gradient that differs in
// its own last bit may be rounded to the other side.
template <typename V>
void CheckSame(const char* what, const std::vector<V>& got, const std::vector<V>& want, double tolerance) {
  CHECK_TRUE(got.size() == want.size());
  int64_t different = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double x = ToFloat(got[i]), y = ToFloat(want[i]);
    if (x != y && !(std::fabs(x - y) <= (tolerance + (sizeof(V) == 2 ? 8e-3 : 0)) * (1.0 + std::fabs(y)))) {
      std::printf("%s[%d]: %.9g, the CPU's %.9g\n", what, static_cast<int>(i), x, y);
      CHECK_TRUE(false);
      return;
    }
    different += x != y;
  }
  if (sizeof(V) == 2) CHECK_TRUE(different <= 2 + static_cast<int64_t>(got.size()) / 50);
}

template <typename T, typename Id>
void CheckProblem(const FanInProblem<T, Id>& p, FanInLoss loss, const FanInOptions& options) {
  ThreadParallel threads(2);
  const FanInOutput<T> want = ComputeFanIn(p, loss, options, &threads);
  const FanInOutput<T> got = ComputeFanInCuda(p, loss, options);
  CHECK_TRUE(got == ComputeFanInCuda(p, loss, options));
  const double tolerance = 1e-5 * std::sqrt(1.0 + p.fan_in);
  CheckSame("logits", got.logits, want.logits, tolerance);
  CheckSame("loss", got.loss, want.loss, tolerance);
  CheckSame("lse", got.lse, want.lse, tolerance);
  CheckSame("mass", got.mass, want.mass, tolerance);
  CHECK_TRUE(got.active == want.active);
  CheckSame("weights", got.weights, want.weights, 10 * tolerance);
  CheckSame("bias", got.bias, want.bias, 10 * tolerance);
  CheckSame("d_x", got.d_x, want.d_x, 10 * tolerance);
  for (int i = 0; i < kFanInMaxSlots; ++i) {
    CheckSame("slots", got.slots[i], want.slots[i], 10 * tolerance);
    CheckSame("bias_slots", got.bias_slots[i], want.bias_slots[i], 10 * tolerance);
  }
  if (options.rule != FanInRule::kNone || !options.inputs) return;
  FanInOptions alone = options;  // the gradient of the inputs by itself: the same bits
  alone.weights = false;
  CHECK_TRUE(FanInOutput<T>::Same(ComputeFanInCuda(p, loss, alone).d_x, got.d_x));
}

}  // namespace

LARGEOUT_TEST(EveryLossAndShape) {
  uint64_t seed = 1;
  for (const FanInLoss loss : kFanInAllLosses) {
    for (const int64_t fan_in : {1, 3, 32, 37, 70}) {
      for (const int64_t size : {1, 16, 17, 32, 45, 100}) {
        const int64_t classes = fan_in == 3 ? 507 : 123;
        CheckProblem(
            FanInProblem<float, uint16_t>(classes, fan_in, 70 + size, size, ++seed, size != 16, size != 32),
            loss, {});
      }
    }
    CheckProblem(FanInProblem<float, uint32_t>(1, 5, 5, 3, ++seed), loss, {});
    CheckProblem(FanInProblem<bfloat16, uint16_t>(252, 8, 70, 40, ++seed), loss, {});
    CheckProblem(FanInProblem<bfloat16, uint32_t>(65, 24, 33, 9, ++seed), loss, {});
  }
}

// Several ranges of classes with a sum of input gradients each, several chunks, mostly without gradients (a
// bias far below the margin).
LARGEOUT_TEST(ManyClasses) {
  for (const FanInLoss loss : kFanInAllLosses) {
    CheckProblem(FanInProblem<float, uint16_t>(9001, 2, 50, 20, 7, true, true, -3.f), loss, {});
  }
  const FanInProblem<float, uint32_t> wide(5000, 40, 41, 150, 8, true, true, -20.f);
  CheckProblem(wide, FanInLoss::kSquaredHinge, {});
  CheckProblem(wide, FanInLoss::kSquaredHinge, {FanInRule::kAdam});
  CheckProblem(FanInProblem<bfloat16, uint16_t>(2500, 3, 20, 4500, 9, true, true, -2.f),
               FanInLoss::kSquaredHinge, {FanInRule::kSgd});
}

LARGEOUT_TEST(EveryRule) {
  uint64_t seed = 100;
  for (const FanInRule rule :
       {FanInRule::kSgd, FanInRule::kAdagrad, FanInRule::kAdam, FanInRule::kLazyAdam}) {
    for (const int64_t size : {9, 32, 70}) {
      for (const float bias : {0.f, -4.f}) {
        const FanInProblem<float, uint16_t> p(300, 11, 64, size, ++seed, true, true, bias);
        CheckProblem(p, FanInLoss::kSquaredHinge, {rule});
        CheckProblem(p, FanInLoss::kSquaredHinge, {rule, false, true, 0.01f});
        CheckProblem(p, FanInLoss::kSoftmax, {rule, false, size != 32});
      }
      CheckProblem(FanInProblem<float, uint32_t>(150, 7, 64, size, ++seed, false),
                   FanInLoss::kBinaryCrossentropy, {rule, false, true, 0.01f});
      CheckProblem(FanInProblem<bfloat16, uint16_t>(150, 17, 64, size, ++seed),
                   FanInLoss::kBinaryCrossentropy, {rule});
    }
  }
}

LARGEOUT_TEST(GivenGradients) {
  for (const int64_t size : {3, 32, 50}) {
    CheckProblem(FanInProblem<float, uint16_t>(200, 9, 64, size, size), FanInLoss::kBinaryCrossentropy,
                 {FanInRule::kNone, true});
    CheckProblem(FanInProblem<bfloat16, uint32_t>(200, 9, 64, size, size, false, true, 0.f),
                 FanInLoss::kSquaredHinge, {FanInRule::kNone, true});
  }
}

// An input twice in a class counts twice, and is summed by one warp.
LARGEOUT_TEST(DuplicateConnections) {
  FanInProblem<float, uint16_t> p(3000, 40, 60, 20, 3);
  for (size_t i = 0; i < p.indices.size(); ++i) p.indices[i] = static_cast<uint16_t>(p.indices[i] % 5);
  CheckProblem(p, FanInLoss::kBinaryCrossentropy, {});
}

LARGEOUT_TEST(NothingAtAll) {
  for (const FanInRule rule : {FanInRule::kNone, FanInRule::kSgd, FanInRule::kAdam}) {
    for (const FanInLoss loss : kFanInAllLosses) {
      CheckProblem(FanInProblem<float, uint16_t>(100, 4, 20, 0, 1), loss, {rule});
      CheckProblem(FanInProblem<float, uint16_t>(0, 4, 20, 5, 1), loss, {rule});
    }
  }
}

LARGEOUT_TEST(BFloat16Inputs) {
  SerialParallel serial;
  for (const int64_t size : {5, 33}) {
    const FanInBatch batch(size, 70);
    Random random(1);
    std::vector<bfloat16> x(size * 70);
    for (bfloat16& v : x) FromFloat(random.Normalish(), &v);
    std::vector<float> want(batch.floats());
    FanInLayOut(batch, x.data(), want.data(), &serial);
    const OnGpu<bfloat16> from(x), back(static_cast<int64_t>(x.size()));
    const OnGpu<float> blocks(batch.floats());
    CUDA_OK(FanInLayOutCuda(batch, from.get(), blocks.get(), nullptr));
    CUDA_OK(FanInLayBackCuda(batch, blocks.get(), back.get(), nullptr));
    CHECK_TRUE(blocks.Host() == want);
    const std::vector<bfloat16> got = back.Host();
    CHECK_TRUE(std::memcmp(got.data(), x.data(), x.size() * sizeof(bfloat16)) == 0);
  }
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
