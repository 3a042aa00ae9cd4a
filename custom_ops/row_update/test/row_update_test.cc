// Row update against a scalar reference in float64: every rule, level, type and thread count.
#include "row_update/row_update.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "common/bfloat16.h"
#include "common/test/check.h"
#include "common/isa.h"

namespace largeout {
namespace {

std::vector<float> HyperOf(UpdateRule rule, float decay) {
  switch (rule) {
    case UpdateRule::kSgd:
      return {0.1f, decay};
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
      return {0.1f, decay, 0.9f};
    case UpdateRule::kAdagrad:
    case UpdateRule::kRowWiseAdagrad:
      return {0.1f, decay, 1e-3f};
    case UpdateRule::kLazyAdam:
      return {0.1f, decay, 0.1f, 0.01f, 1e-3f};
    case UpdateRule::kFtrl:
      return {0.1f, decay, -0.5f, 0.05f, 0.1f, 0.01f};
  }
  return {};
}

// One element by the formulas of row_update.h; mean_square is used by row_wise_adagrad.
void Element(UpdateRule rule, const std::vector<float>& h, double g, double* w, double* s0, double* s1,
             double row_sum) {
  *w -= *w * h[kDecay];
  switch (rule) {
    case UpdateRule::kSgd:
      *w -= g * h[kRate];
      break;
    case UpdateRule::kMomentum:
      *s0 = *s0 * h[kMomentumFactor] - g * h[kRate];
      *w += *s0;
      break;
    case UpdateRule::kNesterov:
      *s0 = *s0 * h[kMomentumFactor] - g * h[kRate];
      *w += *s0 * h[kMomentumFactor] - g * h[kRate];
      break;
    case UpdateRule::kAdagrad:
      *s0 += g * g;
      *w -= h[kRate] * g / std::sqrt(*s0 + h[kAdagradEpsilon]);
      break;
    case UpdateRule::kRowWiseAdagrad:
      *w -= h[kRate] * g / std::sqrt(row_sum + h[kAdagradEpsilon]);
      break;
    case UpdateRule::kLazyAdam:
      *s0 += (g - *s0) * h[kOneMinusBeta1];
      *s1 += (g * g - *s1) * h[kOneMinusBeta2];
      *w -= *s0 * h[kRate] / (std::sqrt(*s1) + h[kAdamEpsilon]);
      break;
    case UpdateRule::kFtrl: {
      const double b = *s0 + g * g, power = std::pow(b, -h[kPower]);
      *s1 += g + 2.0 * h[kShrinkage] * *w - (power - std::pow(*s0, -h[kPower])) / h[kRate] * *w;
      const double clipped = std::max<double>(-h[kL1], std::min<double>(h[kL1], *s1));
      *w = (clipped - *s1) / (power / h[kRate] + 2.0 * h[kL2]);
      *s0 = b;
      break;
    }
  }
}

template <typename T>
std::vector<T> Make(int64_t n, Random* random, float offset) {
  std::vector<T> x(n);
  for (T& v : x) FromFloat(random->Normalish() + offset, &v);
  return x;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T, typename G, typename Id>
void CheckCase(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing, float decay) {
  const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule)];
  const std::vector<float> hyper = HyperOf(rule, decay);
  Random random(static_cast<uint64_t>(rows * 1000 + dim * 10 + n));
  const std::vector<T> start = Make<T>(rows * dim, &random, 0.f);
  const int64_t slot_size = info.slot_per_row ? rows : rows * dim;
  const std::vector<float> slot0 = Make<float>(slot_size, &random, 3.f),
                           slot1 = Make<float>(slot_size, &random, 3.f);
  std::vector<Id> ids(n);
  for (Id& id : ids) id = static_cast<Id>(random.Below(rows));
  if (increasing) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    n = static_cast<int64_t>(ids.size());
  }
  const std::vector<G> values = Make<G>(n * dim, &random, 0.f);

  // Truth.
  std::map<int64_t, std::vector<double>> gradients;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double>& g = gradients[ids[i]];
    g.resize(dim);
    for (int64_t j = 0; j < dim; ++j) g[j] += ToFloat(values[i * dim + j]);
  }
  std::vector<double> want(rows * dim), want0(slot0.begin(), slot0.end()), want1(slot1.begin(), slot1.end());
  for (int64_t i = 0; i < rows * dim; ++i) want[i] = ToFloat(start[i]);
  for (const auto& [row, g] : gradients) {
    double square = 0;
    for (double x : g) square += x * x;
    if (info.slot_per_row) want0[row] += square / dim;
    for (int64_t j = 0; j < dim; ++j) {
      const int64_t at = row * dim + j, slot = info.slot_per_row ? row : at;
      Element(rule, hyper, g[j], &want[at], &want0[slot], &want1[slot], want0[row]);
    }
  }

  std::vector<T> first_table;
  std::vector<float> first0, first1;
  for (Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    SetIsa(isa);
    for (int threads : {1, 2, 3}) {
      ThreadParallel parallel(threads);
      std::vector<T> table = start;
      std::vector<float> s0 = slot0, s1 = slot1;
      float* slots[] = {s0.data(), s1.data()};
      CHECK_TRUE(RowUpdate(rule, table.data(), rows, dim, slots, ids.data(), n, values.data(), hyper.data(),
                           &parallel) == -1);
      if (first_table.empty()) {
        first_table = table, first0 = s0, first1 = s1;
        // Ftrl subtracts two roots and divides by the learning rate: its formula loses a digit in float32.
        const double tolerance = sizeof(T) == 2 ? 4e-3 : (rule == UpdateRule::kFtrl ? 2e-5 : 2e-6);
        for (int64_t i = 0; i < rows * dim; ++i) {
          CHECK_CLOSE(ToFloat(table[i]), want[i], tolerance);
          if (gradients.count(i / dim) == 0) CHECK_TRUE(std::memcmp(&table[i], &start[i], sizeof(T)) == 0);
        }
        for (int64_t i = 0; i < slot_size; ++i) {
          if (info.slots > 0) CHECK_CLOSE(s0[i], want0[i], tolerance);
          if (info.slots > 1) CHECK_CLOSE(s1[i], want1[i], tolerance);
        }
      }
      CHECK_TRUE(SameBits(table, first_table) && SameBits(s0, first0) && SameBits(s1, first1));
    }
  }
  SetIsa(Isa::kV4);
}

}  // namespace

LARGEOUT_TEST(EveryRuleEqualsItsFormula) {
  for (int rule = 0; rule < kUpdateRules; ++rule) {
    for (int64_t dim : {1, 3, 16, 17, 64, 123, 304}) {
      for (bool increasing : {false, true}) {
        CheckCase<float, float, int64_t>(static_cast<UpdateRule>(rule), 123, dim, 252, increasing, 0.f);
        CheckCase<float, float, int32_t>(static_cast<UpdateRule>(rule), 507, dim, 123, increasing, 0.01f);
      }
    }
  }
}

LARGEOUT_TEST(EveryRuleInBfloat16) {
  for (int rule = 0; rule < kUpdateRules; ++rule) {
    for (int64_t dim : {1, 17, 64}) {
      for (bool increasing : {false, true}) {
        CheckCase<bfloat16, bfloat16, int32_t>(static_cast<UpdateRule>(rule), 57, dim, 123, increasing,
                                               0.01f);
        CheckCase<bfloat16, float, int64_t>(static_cast<UpdateRule>(rule), 57, dim, 123, increasing, 0.f);
        CheckCase<float, bfloat16, int64_t>(static_cast<UpdateRule>(rule), 57, dim, 123, increasing, 0.f);
      }
    }
  }
}

LARGEOUT_TEST(OneRowAndManyTimesTheSame) {
  for (int rule = 0; rule < kUpdateRules; ++rule) {
    CheckCase<float, float, int64_t>(static_cast<UpdateRule>(rule), 1, 64, 1, true, 0.f);
    CheckCase<float, float, int64_t>(static_cast<UpdateRule>(rule), 1, 64, 20, false, 0.f);
    CheckCase<float, float, int64_t>(static_cast<UpdateRule>(rule), 1, 1, 20, false, 0.f);
  }
}

LARGEOUT_TEST(FtrlTakesAnyPower) {
  const float hyper[] = {0.1f, 0.f, -0.75f, 0.05f, 0.f, 0.f};
  float w = 0.5f, a = 0.1f, z = 0.2f, g = 0.7f;
  float* slots[] = {&a, &z};
  const int64_t id = 0;
  SerialParallel serial;
  RowUpdate(UpdateRule::kFtrl, &w, 1, 1, slots, &id, 1, &g, hyper, &serial);
  const double b = 0.1 + 0.49, linear = 0.2 + 0.7 - (std::pow(b, 0.75) - std::pow(0.1, 0.75)) / 0.1 * 0.5;
  const double clipped = std::max(-0.05, std::min(0.05, linear));
  CHECK_CLOSE(z, linear, 1e-6);
  CHECK_CLOSE(w, (clipped - linear) / (std::pow(b, 0.75) / 0.1), 1e-6);
}

LARGEOUT_TEST(ABadIndexChangesNothing) {
  SerialParallel serial;
  const float hyper[] = {0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f};
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{0, 1, 4}, {2, -1, 3}, {3, 1, 4}, {-1}, {4}}) {
    const int64_t n = static_cast<int64_t>(ids.size());
    for (int rule = 0; rule < kUpdateRules; ++rule) {
      std::vector<float> table(4 * 3, 1.f), s0(table), s1(table), values(n * 3, 1.f);
      float* slots[] = {s0.data(), s1.data()};
      const int64_t bad = RowUpdate(static_cast<UpdateRule>(rule), table.data(), 4, 3, slots, ids.data(), n,
                                    values.data(), hyper, &serial);
      CHECK_TRUE(bad >= 0 && (ids[bad] < 0 || ids[bad] >= 4));
      CHECK_TRUE(SameBits(table, std::vector<float>(12, 1.f)) && SameBits(s0, table) && SameBits(s1, table));
    }
  }
}

LARGEOUT_TEST(NothingToUpdate) {
  SerialParallel serial;
  const float hyper[] = {0.1f, 0.f};
  float one = 1.f;
  CHECK_TRUE((RowUpdate<float, float, int64_t>(UpdateRule::kSgd, &one, 1, 1, nullptr, nullptr, 0, nullptr,
                                               hyper, &serial) == -1));
  const int64_t id = 0;
  CHECK_TRUE((RowUpdate<float, float, int64_t>(UpdateRule::kSgd, nullptr, 1, 0, nullptr, &id, 1, nullptr,
                                               hyper, &serial) == -1));
  CHECK_TRUE(one == 1.f);
}

LARGEOUT_TEST(NanStaysInItsRow) {
  SerialParallel serial;
  for (int rule = 0; rule < kUpdateRules; ++rule) {
    const std::vector<float> hyper = HyperOf(static_cast<UpdateRule>(rule), 0.f);
    std::vector<float> table(4 * 3, 1.f), s0(table), s1(table), values(2 * 3, NAN);
    float* slots[] = {s0.data(), s1.data()};
    const int64_t ids[] = {2, 2};
    RowUpdate(static_cast<UpdateRule>(rule), table.data(), 4, 3, slots, ids, 2, values.data(), hyper.data(),
              &serial);
    for (int i = 0; i < 12; ++i) CHECK_TRUE(i / 3 == 2 ? std::isnan(table[i]) : table[i] == 1.f);
  }
}

LARGEOUT_TEST(RulesAreFoundByName) {
  UpdateRule rule;
  CHECK_TRUE(FindUpdateRule("row_wise_adagrad", &rule) && rule == UpdateRule::kRowWiseAdagrad);
  CHECK_TRUE(FindUpdateRule("ftrl", &rule) && rule == UpdateRule::kFtrl);
  CHECK_TRUE(!FindUpdateRule("adam", &rule));
}

}  // namespace largeout
