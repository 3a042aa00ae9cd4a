// The three numbers of every token, and their gradients, for 100,000 classes and 3200 tokens, in float32, in
// TF32, in bfloat16, and with hidden vectors alone of bfloat16 (mixed_bfloat16), next to 2 and 6 flops per token,
// class and column on the GPU's float32 units. The last three also by products of cuBLASLt, where it is found.
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/test/cuda_bench.cuh"
#include "full_softmax/full_softmax.h"

namespace largeout {
namespace {

// T: the type of rows, H: of hidden vectors. tf32: factors of float32 are rounded to TF32. library: products are
// those of cuBLASLt.
template <typename T, typename H>
void Run(Bench* bench, int64_t classes, int64_t tokens, int64_t dim, bool tf32 = false, bool library = false) {
  const std::string name = std::to_string(classes) + " x " + std::to_string(tokens) + " x " +
                           std::to_string(dim) + ", " +
                           (tf32 ? "TF32" : sizeof(T) == sizeof(H) ? BenchTypeName<T>() : "mixed") +
                           (library ? ", cuBLASLt" : "");
  const double need = classes * dim * 10.0 + tokens * dim * 20.0 + (bench->quick() ? 3e8 : 5e8);
  if (need > 0.9 * bench->free_bytes()) {
    std::printf("%-14s %-34s left out: %.1f GB are free\n", "full_softmax", name.c_str(),
                bench->free_bytes() * 1e-9);
    return;
  }
  BenchArena memory(static_cast<int64_t>(need));
  if (library && !bench->HasLibrary(name, &memory)) return;
  Random random(1);
  std::vector<int32_t> host_targets(tokens);
  for (int32_t& target : host_targets) target = static_cast<int32_t>(random.Below(classes));
  int32_t* targets = memory.Take<int32_t>(tokens);
  BENCH_OK(cudaMemcpy(targets, host_targets.data(), tokens * sizeof(int32_t), cudaMemcpyHostToDevice));
  const SoftmaxRows<T> table{BenchFilled<T>(&memory, classes * dim, 1, 0.05f),
                             BenchFilled<float>(&memory, classes, 2, 1.f), classes, dim};
  const SoftmaxBatch<H, int32_t> batch{BenchFilled<H>(&memory, tokens * dim, 3, 1.f), targets, tokens, false};
  const SoftmaxTerms terms{memory.Take<float>(tokens), memory.Take<float>(tokens),
                           memory.Take<float>(tokens)};
  const SoftmaxUpstream upstream{BenchFilled<float>(&memory, tokens, 4, 1.f),
                                 BenchFilled<float>(&memory, tokens, 5, 1.f),
                                 BenchFilled<float>(&memory, tokens, 6, 0.1f)};
  const SoftmaxBatchGradients<H, T> gradients{memory.Take<H>(tokens * dim), memory.Take<T>(classes * dim),
                                              memory.Take<float>(classes)};
  const int64_t base = memory.used();
  const double flops = 2.0 * tokens * classes * dim,
               bytes = 1.0 * (classes * sizeof(T) + tokens * sizeof(H)) * dim;
  const auto report = [&](const char* part, const Times& t, double products, double all_bytes) {
    bench->Report(name, part, t, all_bytes, products * flops);
  };
  // Its verdict on the targets is waited for, as in an op.
  const auto call = [&](const auto& body) {
    memory.Reset(base);
    ArenaScratch scratch(&memory);
    BadTarget bad;
    BENCH_OK(body(FullSoftmaxGpu({nullptr, &scratch, nullptr, tf32, library}), &bad));
  };
  const Times forward = bench->Time(
      [&](int) {
        call([&](FullSoftmaxGpu device, BadTarget* bad) { return device.Terms(table, batch, terms, bad); });
      },
      15);
  report("terms", forward, 1, bytes);
  const Times backward = bench->Time(
      [&](int) {
        call([&](FullSoftmaxGpu device, BadTarget* bad) {
          return device.Gradient(table, batch, terms.lse, upstream, gradients, bad);
        });
      },
      15);
  report("gradient", backward, 3, 2 * bytes);
  const Times both = bench->Time(
      [&](int) {
        call([&](FullSoftmaxGpu device, BadTarget* bad) { return device.Terms(table, batch, terms, bad); });
        call([&](FullSoftmaxGpu device, BadTarget* bad) {
          return device.Gradient(table, batch, terms.lse, upstream, gradients, bad);
        });
      },
      15);
  report("terms + gradient", both, 3, 2 * bytes);  // whoever keeps the logits needs three products, not four
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("full_softmax", argc, argv);
  const int64_t classes = bench.quick() ? 1000 : 100000, tokens = bench.quick() ? 200 : 3200;
  for (const int64_t dim : bench.quick() ? std::vector<int64_t>{36} : std::vector<int64_t>{304, 1024}) {
    Run<float, float>(&bench, classes, tokens, dim);
    for (const bool library : {false, true}) {
      Run<float, float>(&bench, classes, tokens, dim, true, library);
      Run<bfloat16, bfloat16>(&bench, classes, tokens, dim, false, library);
      Run<float, bfloat16>(&bench, classes, tokens, dim, false, library);
    }
  }
  return 0;
}
