// Connections on the GPU: bit for bit those of the CPU.
#include "fan_in/test/fan_in_cuda_testing.cuh"
#include "fan_in/cuda/fan_in_rewire_cuda.h"

namespace largeout {
namespace {

template <typename T>
bool Same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T, typename Id>
void CheckRewire(FanInProblem<T, Id> p, int64_t count, int64_t threshold, int64_t num_candidates,
                 int32_t wrong = -1) {
  SerialParallel serial;
  Random random(3);
  const int64_t first = p.classes / 3, rows = p.classes - first;
  std::vector<int32_t> candidates(rows * num_candidates);
  std::vector<float> scores(candidates.size());
  for (int32_t& c : candidates) c = static_cast<int32_t>(random.Below(p.inputs));
  for (float& s : scores) s = random.Below(5) == 0 ? NAN : 0.25f * static_cast<float>(random.Below(9)) - 1.f;
  if (wrong >= 0 && num_candidates > 0) candidates[3 * num_candidates] = wrong;
  if (wrong >= 0 && num_candidates == 0) p.indices[p.fan_in * (first + 3)] = static_cast<Id>(wrong);
  const OnGpu<T> weights(p.weights);
  const OnGpu<Id> indices(p.indices);
  const OnGpu<float> slot0(p.slots[0]), slot1(p.slots[1]), scores_gpu(scores);
  const OnGpu<int32_t> candidates_gpu(candidates);
  const OnGpu<int64_t> changes_gpu(1);
  float* slots[] = {p.slots[0].data(), p.slots[1].data()};
  float* slots_gpu[] = {slot0.get(), slot1.get()};
  FanInRewiring<T, Id> r{p.weights.data(),
                         p.indices.data(),
                         slots,
                         2,
                         p.fan_in,
                         p.inputs,
                         42,
                         11,
                         first,
                         rows,
                         count,
                         threshold,
                         candidates.data(),
                         scores.data(),
                         num_candidates};
  FanInRewiring<T, Id> on_gpu = r;
  on_gpu.weights = weights.get(), on_gpu.indices = indices.get(), on_gpu.slots = slots_gpu;
  on_gpu.candidates = candidates_gpu.get(), on_gpu.scores = scores_gpu.get();
  int64_t changes = 0, bad;
  bool bad_candidate, cpus_bad_candidate;
  const int64_t cpus_bad = FanInRewire(r, &changes, &cpus_bad_candidate, &serial);
  const OnGpu<char> workspace(FanInDrawWorkspaceCuda(rows, p.fan_in, 2 * p.fan_in, p.inputs, 2));
  CUDA_OK(FanInRewireCuda(on_gpu, changes_gpu.get(), workspace.get(), nullptr, &bad, &bad_candidate));
  CHECK_TRUE(bad == cpus_bad && bad_candidate == cpus_bad_candidate && (bad >= 0) == (wrong >= 0));
  CHECK_TRUE(Same(weights.Host(), p.weights) && Same(indices.Host(), p.indices));
  CHECK_TRUE(Same(slot0.Host(), p.slots[0]) && Same(slot1.Host(), p.slots[1]));
  if (bad < 0) CHECK_TRUE(changes_gpu.Host()[0] == changes);
}

}  // namespace

LARGEOUT_TEST(Connections) {
  SerialParallel serial;
  for (const int64_t inputs : {32, 40, 200, 5000}) {
    for (const int64_t fan_in : {0, 1, 8, 32}) {
      const int64_t rows = 700;
      std::vector<uint16_t> want(rows * fan_in);
      FanInConnections(rows, fan_in, inputs, FanInKey(1, 2), 10, want.data(), &serial);
      const OnGpu<uint16_t> got(rows * fan_in);
      const OnGpu<char> workspace(FanInDrawWorkspaceCuda(rows, 0, fan_in, inputs));
      CUDA_OK(FanInConnectionsCuda(rows, fan_in, inputs, FanInKey(1, 2), 10, got.get(), workspace.get(),
                                   nullptr));
      CHECK_TRUE(Same(got.Host(), want));
      std::vector<int64_t> degrees(inputs);
      FanInDegrees(want.data(), rows, fan_in, inputs, degrees.data(), &serial);
      const OnGpu<int64_t> degrees_gpu(inputs);
      const OnGpu<char> little(kFanInDegreesWorkspaceCuda);
      int64_t bad;
      CUDA_OK(
          FanInDegreesCuda(got.get(), rows, fan_in, inputs, degrees_gpu.get(), little.get(), nullptr, &bad));
      CHECK_TRUE(bad == -1 && degrees_gpu.Host() == degrees);
    }
  }
}

LARGEOUT_TEST(Candidates) {
  SerialParallel serial;
  FanInProblem<float, uint32_t> p(300, 6, 40, 1, 1);
  for (const int64_t wrong : {-1, 222}) {
    if (wrong >= 0) p.indices[wrong * 6 + 5] = 40;
    const OnGpu<uint32_t> indices(p.indices);
    for (const int64_t count : {0, 1, 9, 34}) {
      std::vector<int32_t> want(200 * count);
      FanInCandidates(p.indices.data(), 6, 40, 7, 5, 100, 200, count, want.data(), &serial);
      const OnGpu<int32_t> got(200 * count);
      const OnGpu<char> workspace(FanInDrawWorkspaceCuda(200, 6, count, 40));
      int64_t bad;
      CUDA_OK(FanInCandidatesCuda(indices.get(), 6, 40, 7, 5, 100, 200, count, got.get(), workspace.get(),
                                  nullptr, &bad));
      CHECK_TRUE(bad == wrong && (bad >= 0 || Same(got.Host(), want)));
      const OnGpu<int64_t> degrees(40);
      CUDA_OK(FanInDegreesCuda(indices.get(), 300, 6, 40, degrees.get(), workspace.get(), nullptr, &bad));
      CHECK_TRUE(bad == wrong);
    }
  }
}

LARGEOUT_TEST(KeyCounts) {
  SerialParallel serial;
  FanInProblem<bfloat16, uint16_t> p(500, 7, 40, 1, 1);
  for (size_t i = 0; i < p.weights.size(); i += 3) FromFloat(i % 2 ? 0.f : -0.f, &p.weights[i]);  // many ties
  const OnGpu<bfloat16> weights(p.weights);
  uint64_t prefix = 0;
  int64_t left = 700;
  for (int digit = 0; digit < kFanInKeyDigits; ++digit) {
    std::vector<int64_t> want(1 << kFanInDigitBits);
    FanInKeyCounts(p.weights.data(), 500, 7, 99, 10, prefix, digit, want.data(), &serial);
    const OnGpu<int64_t> got(1 << kFanInDigitBits);
    CUDA_OK(FanInKeyCountsCuda(weights.get(), 500, 7, 99, 10, prefix, digit, got.get(), nullptr));
    CHECK_TRUE(got.Host() == want);
    int64_t d = 0;
    while (left > want[d]) left -= want[d++];
    prefix = prefix << kFanInDigitBits | d;
  }
}

LARGEOUT_TEST(RewiresLikeTheCpu) {
  for (const int64_t count : {0, 1, 3, 8}) {
    CheckRewire(FanInProblem<float, uint16_t>(300, 8, 60, 1, 1), count, -1, 0);
    CheckRewire(FanInProblem<bfloat16, uint32_t>(300, 8, 1000, 1, 2), count, -1, 5);
    CheckRewire(FanInProblem<float, uint32_t>(100, 8, 9, 1, 3), count, -1, 4);  // too few free inputs
    CheckRewire(FanInProblem<float, uint16_t>(100, 8, 8, 1, 3), count, -1, 0);
  }
  CheckRewire(FanInProblem<float, uint16_t>(300, 8, 60, 1, 1), -1,
              static_cast<int64_t>(FanInPruneKey(0x3f000000u, 0, 0)), 3);
  CheckRewire(FanInProblem<float, uint16_t>(0, 8, 60, 1, 1), 3, -1, 0);
}

LARGEOUT_TEST(BadIndicesChangeNothing) {
  CheckRewire(FanInProblem<float, uint32_t>(50, 4, 20, 1, 1), 2, -1, 0, 20);
  CheckRewire(FanInProblem<float, uint32_t>(50, 4, 20, 1, 1), 2, -1, 3, 20);
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
