// Tests of FullSoftmaxCpu and FullSoftmaxGpu against float64, one token and class at a time.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CASES_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CASES_H_

#include <cmath>
#include <limits>
#include <vector>

#include "common/test/test_call.h"
#include "full_softmax/full_softmax.h"
#include "gemm/test/every_product.h"

namespace largeout {

template <typename X>
std::vector<X> RandomValues(int64_t n, float scale, Random* random) {
  std::vector<X> values(n);
  for (X& x : values) FromFloat(scale * random->Normalish(), &x);
  return values;
}

// A random problem, and what should come out.
template <typename T, typename H>
struct SoftmaxProblem {
  SoftmaxProblem(int64_t classes, int64_t tokens, int64_t dim, uint64_t seed, bool use_bias = true,
                 bool skip = false)
      : classes(classes),
        tokens(tokens),
        dim(dim),
        use_bias(use_bias),
        skip(skip),
        random(seed),
        rows(RandomValues<T>(classes * dim, 1.f, &random)),
        hidden(RandomValues<H>(tokens * dim, 1.f, &random)),
        bias(RandomValues<float>(use_bias ? classes : 0, 1.f, &random)),
        targets(tokens),
        of_lse(tokens),
        of_ce(tokens),
        of_sum(tokens) {
    for (int64_t t = 0; t < tokens; ++t) {
      targets[t] = random.Below(5) == 0 ? -1 : random.Below(classes);
      of_lse[t] = random.Normalish(), of_ce[t] = random.Normalish(), of_sum[t] = 0.1f * random.Normalish();
    }
  }

  double Logit(int64_t t, int64_t c) const {
    double sum = use_bias ? bias[c] : 0.0;
    for (int64_t k = 0; k < dim; ++k)
      sum += double(ToFloat(hidden[t * dim + k])) * ToFloat(rows[c * dim + k]);
    return sum;
  }

  int64_t classes, tokens, dim;
  bool use_bias, skip;
  Random random;
  std::vector<T> rows;
  std::vector<H> hidden;
  std::vector<float> bias;
  std::vector<int64_t> targets;
  std::vector<float> of_lse, of_ce, of_sum;
};

struct SoftmaxTruth {
  template <typename T, typename H>
  explicit SoftmaxTruth(const SoftmaxProblem<T, H>& p)
      : lse(p.tokens),
        ce(p.tokens),
        sum(p.tokens),
        d_hidden(p.tokens * p.dim),
        d_rows(p.classes * p.dim),
        d_bias(p.classes) {
    for (int64_t t = 0; t < p.tokens; ++t) {
      const int64_t target = p.targets[t];
      std::vector<double> z(p.classes);
      double high = -std::numeric_limits<double>::infinity(), total = 0.0;
      for (int64_t c = 0; c < p.classes; ++c) {
        z[c] = p.Logit(t, c);
        sum[t] += p.skip ? 0.0 : z[c];
        if (!(p.skip && c == target)) high = std::max(high, z[c]);
      }
      for (int64_t c = 0; c < p.classes; ++c) total += p.skip && c == target ? 0.0 : std::exp(z[c] - high);
      lse[t] = high + std::log(total);
      const bool aimed = target >= 0 && !p.skip;
      ce[t] = aimed ? lse[t] - z[target] : 0.0;
      const double of_ce = aimed ? p.of_ce[t] : 0.0;
      for (int64_t c = 0; c < p.classes; ++c) {
        if (p.skip && c == target) continue;
        const double g = (p.of_lse[t] + of_ce) * std::exp(z[c] - lse[t]) -
                         (aimed && c == target ? of_ce : 0.0) + (p.skip ? 0.0 : p.of_sum[t]);
        d_bias[c] += g;
        for (int64_t k = 0; k < p.dim; ++k) {
          d_hidden[t * p.dim + k] += g * ToFloat(p.rows[c * p.dim + k]);
          d_rows[c * p.dim + k] += g * ToFloat(p.hidden[t * p.dim + k]);
        }
      }
    }
  }
  std::vector<double> lse, ce, sum, d_hidden, d_rows, d_bias;
};

template <typename T, typename H>
struct SoftmaxResult {
  std::vector<float> lse, ce, sum;
  std::vector<H> d_hidden;
  std::vector<T> d_rows;
  std::vector<float> d_bias;
  BadTarget bad;

  bool operator==(const SoftmaxResult& other) const {
    return SameBits(lse, other.lse) && SameBits(ce, other.ce) && SameBits(sum, other.sum) &&
           SameBits(d_hidden, other.d_hidden) && SameBits(d_rows, other.d_rows) &&
           SameBits(d_bias, other.d_bias);
  }
};

// The problem in the memory of a device.
template <typename Device, typename T, typename H, typename Id>
struct SoftmaxOn {
  explicit SoftmaxOn(const SoftmaxProblem<T, H>& p)
      : rows(p.rows),
        hidden(p.hidden),
        bias(p.bias),
        of_lse(p.of_lse),
        of_ce(p.of_ce),
        of_sum(p.of_sum),
        targets(std::vector<Id>(p.targets.begin(), p.targets.end())),
        table{rows.get(), p.use_bias ? bias.get() : nullptr, p.classes, p.dim},
        batch{hidden.get(), targets.get(), p.tokens, p.skip},
        lse(Unwritten<float>(p.tokens)),
        ce(Unwritten<float>(p.tokens)),
        sum(Unwritten<float>(p.tokens)),
        d_hidden(Unwritten<H>(p.tokens * p.dim)),
        d_rows(Unwritten<T>(p.classes * p.dim)),
        d_bias(Unwritten<float>(p.use_bias ? p.classes : 0)) {}

  SoftmaxTerms terms() const { return {lse.get(), ce.get(), sum.get()}; }
  SoftmaxBatchGradients<H, T> gradients() const {
    return {d_hidden.get(), d_rows.get(), table.bias != nullptr ? d_bias.get() : nullptr};
  }
  SoftmaxResult<T, H> Result(const BadTarget& bad) const {
    return {lse.Host(), ce.Host(), sum.Host(), d_hidden.Host(), d_rows.Host(), d_bias.Host(), bad};
  }

  const ArrayOf<Device, T> rows;
  const ArrayOf<Device, H> hidden;
  const ArrayOf<Device, float> bias, of_lse, of_ce, of_sum;
  const ArrayOf<Device, Id> targets;
  const SoftmaxRows<T> table;
  const SoftmaxBatch<H, Id> batch;
  const ArrayOf<Device, float> lse, ce, sum;
  const ArrayOf<Device, H> d_hidden;
  const ArrayOf<Device, T> d_rows;
  const ArrayOf<Device, float> d_bias;
};

template <typename Device, typename Id = int64_t, typename T, typename H>
SoftmaxResult<T, H> RunSoftmax(const SoftmaxProblem<T, H>& p, int threads = 1) {
  const SoftmaxOn<Device, T, H, Id> on(p);
  BadTarget bad{-7};
  {
    TestCall<typename Device::Call> call(threads);
    CHECK_TRUE(Device(call.get()).Terms(on.table, on.batch, on.terms(), &bad) == 0);
  }
  if (bad.found()) return on.Result(bad);
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(Device(call.get())
                 .Gradient(on.table, on.batch, on.lse.get(),
                           {on.of_lse.get(), on.of_ce.get(), on.of_sum.get()}, on.gradients(), &bad) == 0);
  return on.Result(bad);
}

template <typename X>
void CheckAllClose(const std::vector<X>& got, const std::vector<double>& want, double tolerance) {
  CHECK_TRUE(got.size() == want.size());
  double size = 0.0, worst = 0.0;
  for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
    const double off = std::fabs(double(ToFloat(got[i])) - want[i]);
    size = std::max(size, std::fabs(want[i]));
    if (!(off <= worst)) worst = off;
  }
  CHECK_TRUE(worst <= tolerance * (1.0 + size));
}

constexpr double kInBfloat16 = 1e-2;

// rounding: what products may lose for which rows and gradients of logits are rounded; 0: they are not.
template <typename T, typename H>
void CheckSoftmaxTruth(const SoftmaxProblem<T, H>& p, const SoftmaxResult<T, H>& got, double rounding = 0.0) {
  const SoftmaxTruth want(p);
  const double of_rows = std::max(sizeof(T) == 2 ? kInBfloat16 : 3e-5, rounding),
               of_hidden = std::max(sizeof(H) == 2 ? kInBfloat16 : 3e-5, rounding);
  const double of_logits = std::max(3e-6, sizeof(T) == 4 ? rounding : 0.0);
  CheckAllClose(got.lse, want.lse, of_logits);
  CheckAllClose(got.ce, want.ce, of_logits);
  CheckAllClose(got.sum, want.sum, 10.0 * of_logits);
  CheckAllClose(got.d_hidden, want.d_hidden, of_hidden);
  CheckAllClose(got.d_rows, want.d_rows, of_rows);
  if (p.use_bias) CheckAllClose(got.d_bias, want.d_bias, 10.0 * of_logits);
}

template <typename Device, typename T, typename H>
void CheckSoftmax(const SoftmaxProblem<T, H>& p) {
  ForEachProduct<Device, H>([&] {
    const auto got = RunSoftmax<Device>(p);
    CHECK_TRUE(!got.bad.found());
    CheckSoftmaxTruth(p, got, MultipliesInBfloat16<Device, H>() ? kInBfloat16 : 0.0);
    CHECK_TRUE(got == (RunSoftmax<Device, int64_t>(p, 4)));
    CHECK_TRUE(got == (RunSoftmax<Device, int32_t>(p)));
  });
}

template <typename Device>
void EqualsFloat64() {
  uint64_t seed = 0;
  for (const int64_t classes : {1, 2, 17, 100, 700}) {
    for (const int64_t tokens : {1, 3, 14, 37}) {
      for (const int64_t dim : {1, 5, 16, 33}) {
        CheckSoftmax<Device>(SoftmaxProblem<float, float>(classes, tokens, dim, ++seed, seed % 3 != 0,
                                                          classes > 1 && seed % 4 == 0));
      }
    }
  }
  // Several blocks of classes and of tokens.
  CheckSoftmax<Device>(SoftmaxProblem<float, float>(1234, 300, 70, 1));
  CheckSoftmax<Device>(SoftmaxProblem<float, float>(500, 600, kEmulated ? 72 : 304, 2, false));
}

template <typename Device>
void EqualsFloat64InBfloat16() {
  CheckSoftmax<Device>(SoftmaxProblem<bfloat16, float>(700, 37, 33, 1));
  CheckSoftmax<Device>(SoftmaxProblem<float, bfloat16>(300, 270, 20, 2));
  CheckSoftmax<Device>(SoftmaxProblem<bfloat16, bfloat16>(600, 300, 40, 3, false, true));
  if constexpr (!kOnCpu<Device>) return;
  // Odd and even depths of every product, on all sides of what a vector holds.
  uint64_t seed = 3;
  for (const int64_t classes : {1, 2, 31, 100}) {
    for (const int64_t tokens : {1, 6, 15}) {
      for (const int64_t dim : {1, 2, 17, 33, 64}) {
        CheckSoftmax<Device>(SoftmaxProblem<float, bfloat16>(classes, tokens, dim, ++seed));
        CheckSoftmax<Device>(SoftmaxProblem<bfloat16, bfloat16>(classes, tokens, dim, ++seed));
      }
    }
  }
  CheckSoftmax<Device>(SoftmaxProblem<float, bfloat16>(30, 2100, 4, 1));  // chunks of tokens
}

// Rows whose length would allow wide loads, and whose addresses do not.
template <typename Device>
void MisalignedRows() {
  const ShiftedArrays shifted;
  CheckSoftmax<Device>(SoftmaxProblem<float, float>(300, 140, 12, 1));
  CheckSoftmax<Device>(SoftmaxProblem<float, bfloat16>(150, 40, 16, 2));
  CheckSoftmax<Device>(SoftmaxProblem<bfloat16, float>(150, 40, 24, 3));
  CheckSoftmax<Device>(SoftmaxProblem<bfloat16, bfloat16>(150, 40, 16, 4));
}

// More tokens than a chunk has.
template <typename Device>
void ManyTokens() {
  CheckSoftmax<Device>(SoftmaxProblem<float, float>(30, 4100, 4, 1));
  CheckSoftmax<Device>(SoftmaxProblem<bfloat16, float>(30, 2100, 4, 2));
}

template <typename Device>
void NothingAtAll() {
  const auto none = RunSoftmax<Device>(SoftmaxProblem<float, float>(40, 0, 6, 1));
  CHECK_TRUE(none.d_rows == std::vector<float>(240) && none.d_bias == std::vector<float>(40) &&
             none.lse.empty());
  CheckSoftmax<Device>(SoftmaxProblem<float, float>(90, 7, 0, 2));  // rows without elements: biases decide
  CheckSoftmax<Device>(SoftmaxProblem<float, float>(90, 7, 0, 2, false));  // or nothing does
}

template <typename Device>
void BadTargets() {
  for (const int64_t wrong : {int64_t{-2}, int64_t{50}, int64_t{1} << 20}) {
    SoftmaxProblem<float, float> p(50, 300, 4, 1);
    p.targets[207] = wrong, p.targets[299] = -9;
    const BadTarget bad = RunSoftmax<Device>(p).bad, of_int32 = RunSoftmax<Device, int32_t>(p).bad;
    CHECK_TRUE(bad.position == 207 && bad.value == wrong);
    CHECK_TRUE(of_int32.position == 207 && of_int32.value == wrong);
  }
}

// A target far above the others: what is left of the loss is small, and exact.
template <typename Device>
void ExtremeLogits() {
  SoftmaxProblem<float, float> p(700, 5, 3, 9);
  for (float& x : p.hidden) x *= 300.f;
  for (int64_t t = 0; t < p.tokens; ++t) p.targets[t] = 3;
  ForEachLevel<Device>([&] { CheckSoftmaxTruth(p, RunSoftmax<Device>(p)); });
  p.bias.assign(700, -INFINITY);
  p.bias[3] = 0.f, p.bias[650] = 1.f;
  ForEachLevel<Device>([&] {
    const auto got = RunSoftmax<Device>(p);
    for (int64_t t = 0; t < p.tokens; ++t)
      CHECK_TRUE(std::isfinite(got.ce[t]) && std::isfinite(got.d_hidden[3 * t]));
  });
  p.hidden[0] = NAN;
  ForEachLevel<Device>([&] {
    const auto got = RunSoftmax<Device>(p);
    CHECK_TRUE(std::isnan(got.lse[0]) && std::isnan(got.ce[0]) && std::isfinite(got.ce[1]) &&
               std::isfinite(got.d_hidden[4]));
  });
}

// All that a token could lose to is left out: the sum over no class.
template <typename Device>
void OneClassAndThatSkipped() {
  SoftmaxProblem<float, float> p(1, 2, 3, 9, true, true);
  p.targets = {0, -1};
  ForEachLevel<Device>([&] {
    const auto got = RunSoftmax<Device>(p);
    CHECK_TRUE(got.lse[0] == -INFINITY && std::isfinite(got.lse[1]) && got.ce == std::vector<float>(2));
    for (int i = 0; i < 3; ++i) CHECK_TRUE(got.d_hidden[i] == 0.f && std::isfinite(got.d_rows[i]));
  });
}

#define LARGEOUT_FULL_SOFTMAX_CASES(Device)      \
  LARGEOUT_CASE(EqualsFloat64, Device)           \
  LARGEOUT_CASE(EqualsFloat64InBfloat16, Device) \
  LARGEOUT_CASE(MisalignedRows, Device)          \
  LARGEOUT_CASE(ManyTokens, Device)              \
  LARGEOUT_CASE(NothingAtAll, Device)            \
  LARGEOUT_CASE(BadTargets, Device)              \
  LARGEOUT_CASE(ExtremeLogits, Device)           \
  LARGEOUT_CASE(OneClassAndThatSkipped, Device)

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CASES_H_
