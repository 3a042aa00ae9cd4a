// Losses, fused steps, top-k and rewiring at the size of Amazon-670K: 670,091 classes with 32 connections
// each, to 32,768 inputs, batches of 32 and more with 5 labels each. Smaller on a smaller GPU. "bytes" are
// those of weights, indices and slots; "gathered" counts what connections read of the inputs (and of their
// gradients), from the caches.
#include <cstring>

#include "common/cuda/launch.cuh"
#include "common/test/cuda_bench.cuh"
#include "fan_in/fan_in.h"
#include "fan_in/fan_in_random.h"
#include "fan_in/fan_in_rewire.h"

namespace largeout {
namespace {

template <typename T>
__global__ void FillWeights(const float* from, int64_t n, T* weights) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) GpuFromFloat(from[i], &weights[i]);
}

struct Sizes {
  int64_t classes, fan_in, inputs, size;
};

// Zero where a unit is not active, as after a ReLU.
template <typename X>
std::vector<X> Inputs(const Sizes& s) {
  Random random(1);
  std::vector<X> x(s.size * s.inputs);
  for (X& v : x) FromFloat(std::max(0.f, random.Normalish()), &v);
  return x;
}

constexpr int64_t kCallBytes = int64_t{1} << 30;  // more than a call takes

// X: the type of the inputs. whole: also what a loss and its step do not take.
template <typename T, typename X = float>
void Run(Bench* bench, const Sizes& s, bool whole) {
  const FanInBatch batch(s.size, s.inputs);
  const int64_t connections = s.classes * s.fan_in;
  BenchArena memory(connections * (sizeof(T) + 2 + 8) + s.classes * 16 + 4 * batch.floats() * 4 + kCallBytes);
  T* weights = memory.Take<T>(connections);
  uint16_t* indices = memory.Take<uint16_t>(connections);
  float* bias = memory.Take<float>(s.classes);
  float* slots[] = {memory.Take<float>(connections), memory.Take<float>(connections)};
  float* bias_slots[] = {memory.Take<float>(s.classes), memory.Take<float>(s.classes)};
  X* x = memory.Take<X>(s.size * s.inputs);
  float* numbers = memory.Take<float>(1024 + 4 * s.size);
  uint8_t* active = memory.Take<uint8_t>(FanInActiveBytes(batch, s.classes));
  BENCH_OK(Launch(BenchFill, 8192, 256, 0, nullptr, slots[0], connections, 1, 0.3f));
  BENCH_OK(Launch(FillWeights<T>, static_cast<unsigned>((connections + 255) / 256), 256, 0, nullptr, slots[0],
                  connections, weights));
  BENCH_OK(cudaMemset(bias, 0, s.classes * sizeof(float)));
  const std::vector<X> host_x = Inputs<X>(s);
  BENCH_OK(cudaMemcpy(x, host_x.data(), host_x.size() * sizeof(X), cudaMemcpyHostToDevice));
  char name[96];
  std::snprintf(name, sizeof(name), "%.0fK x %d %s, %d %sinputs, batch %d", s.classes * 1e-3,
                static_cast<int>(s.fan_in), BenchTypeName<T>(), static_cast<int>(s.inputs),
                sizeof(X) == 2 ? "bfloat16 " : "", static_cast<int>(s.size));
  if (!bench->Runs(name)) return;

  int64_t* rows = memory.Take<int64_t>(s.size * 10);
  float* scores = memory.Take<float>(s.size * 10);
  int64_t* changes = memory.Take<int64_t>(1);
  ArenaScratch scratch(&memory);
  FanInGpu device({nullptr, &scratch}, batch);
  FanInRewireGpu rewiring({nullptr, &scratch});
  int64_t taken = memory.used();  // before the memory of a call, which the next one gets again
  const auto draw = [&](int i) {
    memory.Reset(taken);
    BENCH_OK(rewiring.Connections(s.classes, s.fan_in, s.inputs, RandomKey(1, i), 0, indices));
  };
  const auto lay_out = [&](int) {
    memory.Reset(taken);
    BENCH_OK(device.LayOut(x));
  };
  draw(0);
  lay_out(0);
  if (whole) {
    bench->Report(name, "draw all connections", bench->Time(draw), connections * 2.0);
    bench->Report(name, "lay out the inputs", bench->Time(lay_out),
                  1.0 * sizeof(X) * (s.size * s.inputs + batch.floats()));
  }
  lay_out(0);
  taken = memory.used();

  FanInPositives positives;
  std::vector<int64_t> labels, splits(1, 0);
  Random random(2);
  for (int64_t b = 0; b < s.size; ++b) {
    for (int i = 0; i < 5; ++i) labels.push_back(random.Below(s.classes));
    splits.push_back(static_cast<int64_t>(labels.size()));
  }
  int64_t position;
  SortLabels(FanInLabels<int64_t>{labels.data(), splits.data(), nullptr, splits.back(), 0, s.classes}, batch,
             s.classes, &positives, &position);
  const FanInLayer<T, uint16_t> layer{weights, indices, bias, s.classes, s.fan_in, s.inputs};
  float *loss = numbers, *lse = loss + s.size, *mass = lse + s.size, *grad_loss = mass + s.size,
        *hyper = grad_loss + s.size;
  const std::vector<float> grads(s.size, 1e-3f), hyper_host = {1e-3f, 0.f, 0.1f, 0.01f, 1e-3f};
  BENCH_OK(CopyToDeviceCuda(grads.data(), s.size * sizeof(float), grad_loss, nullptr));
  BENCH_OK(CopyToDeviceCuda(hyper_host.data(), 5 * sizeof(float), hyper, nullptr));

  const double bytes = connections * (sizeof(T) + 2.0) + s.classes * 4.0;
  const double gathered = 1.0 * sizeof(X) * connections * batch.padded(),
               gradients_gathered = 4.0 * connections * batch.padded();
  int64_t bad;
  for (const FanInLoss kind :
       {FanInLoss::kBinaryCrossentropy, FanInLoss::kSoftmax, FanInLoss::kSquaredHinge}) {
    const bool hinge = kind == FanInLoss::kSquaredHinge;
    // Almost every class far beyond the margin, as in training.
    const std::vector<float> biases(s.classes, hinge ? -4.f : 0.f);
    BENCH_OK(cudaMemcpy(bias, biases.data(), s.classes * sizeof(float), cudaMemcpyHostToDevice));
    const std::string of = kFanInLossNames[static_cast<int>(kind)];
    const Times forward = bench->Time([&](int) {
      memory.Reset(taken);
      BENCH_OK(device.LossForward(layer, kind, positives, {loss, lse, mass, active}, &bad));
    });
    bench->Report(name, of, forward, bytes);
    bench->Report(name, of + ", gathered", forward, gathered);
    FanInGradients gradients;
    gradients.loss = kind, gradients.positives = &positives, gradients.grad_loss = grad_loss;
    gradients.lse = lse, gradients.mass = mass, gradients.active = hinge ? active : nullptr;
    for (const FanInRule rule : {FanInRule::kSgd, FanInRule::kLazyAdam}) {
      FanInStep<T> step;
      step.rule = rule, step.weights = weights, step.bias = bias, step.hyper = hyper;
      for (int i = 0; i < 2; ++i) {
        step.slots[i] = slots[i], step.bias_slots[i] = bias_slots[i];
        BENCH_OK(cudaMemset(slots[i], 0, connections * sizeof(float)));
        BENCH_OK(cudaMemset(bias_slots[i], 0, s.classes * sizeof(float)));
      }
      const Times t = bench->Time([&](int i) {
        step.key = RandomKey(3, i);
        memory.Reset(taken);
        BENCH_OK(device.Backward(layer, gradients, step, /*input_gradient=*/true, &bad));
      });
      const FanInRuleInfo& info = kFanInRuleInfo[static_cast<int>(rule)];
      bench->Report(name, of + ", step " + info.name, t,
                    hinge ? 0.0 : bytes + connections * (sizeof(T) + 8.0 * info.slots));
      // Logits and weights' gradient, by one gather where batch and fan-in are small; and the gradient of the
      // inputs (that of the logit, read and written sum), where it does not stay in shared memory.
      const bool fused = s.size <= 256 && s.fan_in <= 32, stays = s.size <= 32 && fused && s.inputs <= 1600;
      const double of_step = (fused ? 1 : 2) * gathered + (stays ? 0 : 3) * gradients_gathered;
      if (!hinge) bench->Report(name, of + ", step " + info.name + ", gathered", t, of_step);
    }
  }
  if (!whole) return;
  bench->Report(name, "top 10", bench->Time([&](int) {
    memory.Reset(taken);
    BENCH_OK(device.TopK(layer, 10, scores, rows, &bad));
  }),
                bytes);
  bench->Report(name, "rewire 30%", bench->Time([&](int i) {
    const FanInRewiring<T, uint16_t> r{weights,        indices, slots, 2,         s.fan_in,          s.inputs,
                                       RandomKey(4, i), 0,       0,     s.classes, s.fan_in * 3 / 10, -1,
                                       nullptr,        nullptr, 0};
    bool bad_candidate;
    memory.Reset(taken);
    BENCH_OK(rewiring.Rewire(r, changes, &bad, &bad_candidate));
  }),
                bytes);
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("fan_in", argc, argv);
  Sizes s = bench.quick() ? Sizes{20000, 16, 512, 32} : Sizes{670091, 32, 32768, 32};
  while (s.classes > 1024 && s.classes * s.fan_in * 14.0 + 1e9 > 0.8 * bench.free_bytes()) s.classes /= 2;
  Run<bfloat16>(&bench, s, true);
  Run<float>(&bench, s, true);
  if (!bench.quick()) {  // inputs whose gradient fits shared memory
    Sizes few = s;
    few.inputs = 1600;
    Run<bfloat16>(&bench, few, false);
    Run<float>(&bench, few, false);
    Run<float, bfloat16>(&bench, few, false);
    Run<float, bfloat16>(&bench, s, false);
  }
  for (const int64_t size : {128, 256}) {
    s.size = size;
    Run<bfloat16>(&bench, s, false);
    Run<bfloat16, bfloat16>(&bench, s, false);
  }
  s.size = 128;
  Run<float>(&bench, s, false);
  return 0;
}
