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

// Gives the same memory in every call, as an op does.
class KeptScratch final : public Scratch {
 public:
  void* Allocate(int64_t bytes) override {
    if (next_ == pieces_.size()) pieces_.emplace_back();
    std::unique_ptr<char[]>& piece = pieces_[next_++].data;
    if (pieces_[next_ - 1].bytes < bytes) piece.reset(new char[bytes + 64]), pieces_[next_ - 1].bytes = bytes;
    return piece.get() + (64 - reinterpret_cast<uintptr_t>(piece.get()) % 64) % 64;
  }
  void Rewind() { next_ = 0; }

 private:
  struct Piece {
    std::unique_ptr<char[]> data;
    int64_t bytes = -1;
  };
  std::vector<Piece> pieces_;
  size_t next_ = 0;
};

void Run(int threads, int64_t classes, int64_t tokens, int64_t dim, bool in_bfloat16) {
  Random random(1);
  ThreadParallel parallel(threads);
  KeptScratch scratch;
  const CpuCall call{&parallel, &scratch};
  const std::vector<float> rows = Numbers(classes * dim, 0.05f, &random),
                           hidden = Numbers(tokens * dim, 1.f, &random);
  const std::vector<float> bias(classes), ones(tokens, 1.f), zeros(tokens);
  std::vector<int32_t> targets(tokens);
  for (int32_t& target : targets) target = static_cast<int32_t>(random.Below(classes));
  std::vector<float> lse(tokens), ce(tokens), sum(tokens), d_hidden(tokens * dim), d_rows, d_bias(classes);
  d_rows = Numbers(classes * dim, 0.f, &random);
  const SoftmaxRows<float> table{rows.data(), bias.data(), classes, dim};
  const SoftmaxTokens batch{hidden.data(), targets.data(), tokens, false, in_bfloat16};
  const SoftmaxTerms terms{lse.data(), ce.data(), sum.data()};
  const SoftmaxGradients<float> gradients{d_hidden.data(), d_rows.data(), d_bias.data()};
  const double flops = 2e-9 * tokens * classes * dim;
  const auto report = [&](const char* name, double products, double time) {
    std::printf("  %-14s %8.1f ms  %6.1f GFLOP/s (%g products)\n", name, 1e3 * time, products * flops / time,
                products);
  };
  std::printf("%s, %d threads, %ld classes, %ld tokens, %ld columns%s\n", IsaName(CurrentIsa()), threads,
              static_cast<long>(classes), static_cast<long>(tokens), static_cast<long>(dim),
              in_bfloat16 ? ", bfloat16" : "");
  report("terms", 1, Median([&] {
           scratch.Rewind();
           FullSoftmaxTerms(table, batch, terms, call);
         }));
  report("gradient", 3, Median([&] {
           scratch.Rewind();
           FullSoftmaxGrad(table, batch, lse.data(), {zeros.data(), ones.data(), zeros.data()}, gradients,
                           call);
         }));
  report("both at once", 3, Median([&] {
           scratch.Rewind();
           FullSoftmaxTermsAndGrad(table, batch, {ones.data(), nullptr, 0.f, 0.f, 0.f}, int64_t{192} << 20,
                                   terms, gradients, call);
         }));
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  const auto argument = [&](int at, int64_t otherwise) {
    return argc > at ? std::atoll(argv[at]) : otherwise;
  };
  largeout::Run(static_cast<int>(argument(1, 2)), argument(2, 100000), argument(3, 3200), argument(4, 304),
                argument(5, 0) != 0);
}
