// Times of the three calls, beside 2 and 6 flops per token, class and column.
//
//   full_softmax_bench [threads] [classes] [tokens] [dim] [1: hidden vectors were bfloat16]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/huge_pages.h"
#include "common/isa.h"
#include "common/test/check.h"
#include "common/test/kept_scratch.h"
#include "full_softmax/full_softmax.h"

namespace largeout {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Body>
double Median(const Body& body) {
  double times[5];
  body();
  for (double& time : times) {
    const double start = Now();
    body();
    time = Now() - start;
  }
  std::sort(times, times + 5);
  return times[2];
}

std::vector<float> Numbers(int64_t n, float scale, Random* random) {
  std::vector<float> values(n);
  AdviseHugePages(values.data(), n * sizeof(float));
  for (float& x : values) x = scale * random->Normalish();
  return values;
}

// H: the type of hidden vectors.
template <typename H>
void Run(int threads, int64_t classes, int64_t tokens, int64_t dim) {
  Random random(1);
  ThreadParallel parallel(threads);
  KeptScratch scratch;
  FullSoftmaxCpu device({&parallel, &scratch});
  const std::vector<float> rows = Numbers(classes * dim, 0.05f, &random),
                           numbers = Numbers(tokens * dim, 1.f, &random);
  std::vector<H> hidden(tokens * dim), d_hidden(tokens * dim);
  for (int64_t i = 0; i < tokens * dim; ++i) FromFloat(numbers[i], &hidden[i]);
  const std::vector<float> bias(classes), ones(tokens, 1.f), zeros(tokens);
  std::vector<int32_t> targets(tokens);
  for (int32_t& target : targets) target = static_cast<int32_t>(random.Below(classes));
  std::vector<float> lse(tokens), ce(tokens), sum(tokens), d_rows, d_bias(classes);
  d_rows = Numbers(classes * dim, 0.f, &random);
  const SoftmaxRows<float> table{rows.data(), bias.data(), classes, dim};
  const SoftmaxBatch<H, int32_t> batch{hidden.data(), targets.data(), tokens, false};
  const SoftmaxTerms terms{lse.data(), ce.data(), sum.data()};
  const SoftmaxBatchGradients<H, float> gradients{d_hidden.data(), d_rows.data(), d_bias.data()};
  BadTarget bad;
  const double flops = 2e-9 * tokens * classes * dim;
  const auto report = [&](const char* name, double products, double time) {
    std::printf("  %-14s %8.1f ms  %6.1f GFLOP/s (%g products)\n", name, 1e3 * time, products * flops / time,
                products);
  };
  std::printf("%s, %d threads, %ld classes, %ld tokens, %ld columns%s\n", IsaName(CurrentIsa()), threads,
              static_cast<long>(classes), static_cast<long>(tokens), static_cast<long>(dim),
              sizeof(H) == 2 ? ", bfloat16" : "");
  report("terms", 1, Median([&] {
           scratch.Reset();
           device.Terms(table, batch, terms, &bad);
         }));
  report("gradient", 3, Median([&] {
           scratch.Reset();
           device.Gradient(table, batch, lse.data(), {zeros.data(), ones.data(), zeros.data()}, gradients,
                           &bad);
         }));
  report("both at once", 3, Median([&] {
           scratch.Reset();
           device.TermsAndGradient(table, batch, {ones.data(), nullptr, 0.f, 0.f, 0.f}, int64_t{192} << 20,
                                   terms, gradients, &bad);
         }));
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  const auto argument = [&](int at, int64_t otherwise) {
    return argc > at ? std::atoll(argv[at]) : otherwise;
  };
  const auto run = argument(5, 0) != 0 ? largeout::Run<largeout::bfloat16> : largeout::Run<float>;
  run(static_cast<int>(argument(1, 2)), argument(2, 100000), argument(3, 3200), argument(4, 304));
}
