// Tests of RowUpdateCpu and RowUpdateGpu against the formulas of row_update.h in float64: every rule and
// type, and the same bits for every level, number of threads and run.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_CASES_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_CASES_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "common/isa.h"
#include "common/random.h"
#include "common/test/repeat.h"
#include "common/test/test_call.h"
#include "row_update/test/row_update_reference.h"

namespace largeout {

// The numbers of a step in memory of the device.
template <typename Device>
class NumbersOn {
 public:
  NumbersOn(const std::vector<float>& hyper, const std::vector<int64_t>& rounding)
      : hyper_(hyper), rounding_(rounding), to_nearest_(rounding.empty()) {}
  StepNumbers get() const { return {hyper_.get(), to_nearest_ ? nullptr : rounding_.get()}; }

 private:
  const ArrayOf<Device, float> hyper_;
  const ArrayOf<Device, int64_t> rounding_;
  const bool to_nearest_;
};

// Updates `state` on the device.
template <typename Device, typename T, typename G, typename Id>
BadIndex Update(UpdateRule rule, int64_t rows, int64_t dim, const std::vector<Id>& ids,
                const std::vector<G>& values, const std::vector<float>& hyper, UpdateState<T>* state,
                int threads = 1, const std::vector<int64_t>& rounding = {}) {
  const ArrayOf<Device, T> table(state->table);
  const ArrayOf<Device, float> slot0(state->slots[0]), slot1(state->slots[1]);
  const NumbersOn<Device> step(hyper, rounding);
  const ArrayOf<Device, Id> indices(ids);
  const ArrayOf<Device, G> gradients(values);
  float* slots[] = {slot0.get(), slot1.get()};
  TestCall<typename Device::Call> call(threads);
  BadIndex bad;
  CHECK_TRUE(Device(call.get())
                 .Update(rule, table.get(), rows, dim, slots, indices.get(), static_cast<int64_t>(ids.size()),
                         gradients.get(), step.get(), &bad) == 0);
  *state = {table.Host(), {slot0.Host(), slot1.Host()}};
  return bad;
}

template <typename Device, typename T, typename G, typename Id>
UpdateState<T> RunUpdate(const UpdateProblem<T, G, Id>& p, int threads = 1) {
  UpdateState<T> state = p.start;
  CHECK_TRUE((
      Update<Device>(p.rule, p.rows, p.dim, p.ids, p.values, p.hyper, &state, threads, p.rounding).position ==
      -1));
  return state;
}

template <typename Device, typename T, typename G, typename Id>
void CheckTruth(const UpdateProblem<T, G, Id>& p, const UpdateState<T>& got) {
  std::map<int64_t, std::vector<double>> gradients;
  for (size_t i = 0; i < p.ids.size(); ++i) {
    std::vector<double>& g = gradients[p.ids[i]];
    g.resize(p.dim);
    for (int64_t j = 0; j < p.dim; ++j) g[j] += ToFloat(p.values[i * p.dim + j]);
  }
  std::vector<double> want, want_slots[kMaxSlots];
  for (T x : p.start.table) want.push_back(ToFloat(x));
  for (int k = 0; k < kMaxSlots; ++k) want_slots[k].assign(p.start.slots[k].begin(), p.start.slots[k].end());
  for (const auto& [row, g] : gradients) {
    double square = 0;
    for (double x : g) square += x * x;
    if (p.info().slot_per_row) want_slots[0][row] += square / p.dim;
    for (int64_t j = 0; j < p.dim; ++j) {
      const int64_t at = row * p.dim + j, slot = p.info().slot_per_row ? row : at;
      Element(p.rule, p.hyper, g[j], &want[at], &want_slots[0][slot], &want_slots[1][slot],
              want_slots[0][row]);
    }
  }
  // Ftrl subtracts two roots and divides by the learning rate: its formula loses a digit in float32. GPUs
  // fuse multiply-adds; a bfloat16 may then round to its neighbour.
  const bool cpu = std::is_same_v<typename Device::Call, CpuCall>, ftrl = p.rule == UpdateRule::kFtrl;
  const double tolerance = sizeof(T) == 2 ? (cpu ? 4e-3 : 8e-3)
                           : cpu          ? (ftrl ? 2e-5 : 2e-6)
                                          : (ftrl ? 4e-5 : 2e-5);
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK_CLOSE(ToFloat(got.table[i]), want[i], tolerance);
    if (gradients.count(i / p.dim) == 0)
      CHECK_TRUE(std::memcmp(&got.table[i], &p.start.table[i], sizeof(T)) == 0);
  }
  for (int k = 0; k < p.info().slots; ++k) {
    for (size_t i = 0; i < want_slots[k].size(); ++i)
      CHECK_CLOSE(got.slots[k][i], want_slots[k][i], tolerance);
  }
}

template <typename Device, typename T, typename G, typename Id>
void CheckUpdate(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing, float decay) {
  const UpdateProblem<T, G, Id> p(rule, rows, dim, n, increasing, decay);
  const UpdateState<T> first = RunUpdate<Device>(p);
  CheckTruth<Device>(p, first);
  if (!std::is_same_v<typename Device::Call, CpuCall>) {
    CHECK_TRUE(RunUpdate<Device>(p) == first);
    return;
  }
  for (Isa isa : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    SetIsa(isa);
    for (int threads : {1, 2, 3}) CHECK_TRUE(RunUpdate<Device>(p, threads) == first);
  }
  SetIsa(BestIsa());
}

template <typename Device>
void EveryRuleEqualsItsFormula() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 2, 3, 4, 8, 16, 17, 64, 123, 304}) {
      for (bool increasing : {false, true}) {
        CheckUpdate<Device, float, float, int64_t>(rule, 123, dim, 252, increasing, 0.f);
        CheckUpdate<Device, float, float, int32_t>(rule, 507, dim, 123, increasing, 0.01f);
      }
    }
  }
}

template <typename Device>
void EveryRuleInBfloat16() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 2, 4, 8, 17, 64}) {
      for (bool increasing : {false, true}) {
        CheckUpdate<Device, bfloat16, bfloat16, int32_t>(rule, 57, dim, 123, increasing, 0.01f);
        CheckUpdate<Device, bfloat16, float, int64_t>(rule, 57, dim, 123, increasing, 0.f);
        CheckUpdate<Device, float, bfloat16, int64_t>(rule, 57, dim, 123, increasing, 0.f);
      }
    }
  }
}

// The bits of a table in float32, rounded by the bits of each row and column.
template <typename Device, typename G, typename Id>
void CheckRounding(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing) {
  UpdateProblem<bfloat16, G, Id> p(rule, rows, dim, n, increasing, 0.01f);
  UpdateProblem<float, G, Id> exact(rule, rows, dim, n, increasing, 0.01f);
  p.rounding = RoundingOf<bfloat16>(static_cast<uint64_t>(dim));
  exact.ids = p.ids, exact.values = p.values, exact.start.slots[0] = p.start.slots[0];
  exact.start.slots[1] = p.start.slots[1];
  for (size_t i = 0; i < p.start.table.size(); ++i) exact.start.table[i] = ToFloat(p.start.table[i]);
  const UpdateState<float> before = RunUpdate<Device>(exact);
  const UpdateState<bfloat16> got = RunUpdate<Device>(p);
  int64_t others = 0;  // a GPU may fuse multiply-adds otherwise
  for (int64_t at = 0; at < rows * dim; ++at) {
    uint32_t bits;
    std::memcpy(&bits, &before.table[at], sizeof(bits));
    const uint64_t number = static_cast<uint64_t>(at / dim) * 5 + 3;  // as RoundingOf says
    const uint32_t of_row = FoldKey(RandomKey(p.rounding[kSeed], 7), dim % 2 == 0 ? number : number % 1009);
    const uint32_t column = static_cast<uint32_t>(at % dim) + 11;
    const bfloat16 want{RoundStochastically(bits, RandomBits(of_row, column))};
    others += want.bits != got.table[at].bits;
    CHECK_CLOSE(ToFloat(got.table[at]), ToFloat(want), 8e-3);
  }
  if (!std::is_same_v<typename Device::Call, CpuCall>) {
    CHECK_TRUE(others <= rows * dim / 100 && RunUpdate<Device>(p) == got);
    return;
  }
  CHECK_TRUE(others == 0 && SameBits(before.slots[0], got.slots[0]) &&
             SameBits(before.slots[1], got.slots[1]));
  ForEachLevel<Device>([&] {
    for (int threads : {1, 2, 3}) CHECK_TRUE(RunUpdate<Device>(p, threads) == got);
  });
}

template <typename Device>
void RoundingHasTheBitsOfRowAndColumn() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 2, 3, 4, 8, 17, 64, 123}) {
      if (kEmulated && dim != 1 && dim != 17 && dim != 64) continue;
      for (bool increasing : {false, true}) {
        CheckRounding<Device, float, int64_t>(rule, 57, dim, 123, increasing);
        CheckRounding<Device, bfloat16, int32_t>(rule, 57, dim, 123, increasing);
      }
    }
    CheckRounding<Device, float, int32_t>(rule, 1, 64, 1, true);
    CheckRounding<Device, float, int32_t>(rule, 2, 8, 300, false);  // many times the same
    CheckRounding<Device, float, int64_t>(rule, 5, 8, 0, true);
  }
}

// Steps of a hundredth of the distance of neighbours, which to nearest change nothing.
template <typename Device>
void StochasticRoundingIsRightInTheMean() {
  constexpr int64_t kRows = 512, kDim = 16, kSteps = 20;
  constexpr float kStep = 0.01f / 128;
  const std::vector<float> hyper = {kStep, 0.f};
  UpdateState<bfloat16> s, nearest;
  s.table.assign(kRows * kDim, bfloat16{0x3fc0});  // 1.5
  nearest.table = s.table;
  const std::vector<bfloat16> start = s.table;
  std::vector<int64_t> ids(kRows);
  for (int64_t i = 0; i < kRows; ++i) ids[i] = i;
  const std::vector<float> ones(kRows * kDim, 1.f);
  for (int64_t step = 0; step < kSteps; ++step) {
    Update<Device>(UpdateRule::kSgd, kRows, kDim, ids, ones, hyper, &s, 1, {1, step, 1, 0, 0, 0});
    Update<Device>(UpdateRule::kSgd, kRows, kDim, ids, ones, hyper, &nearest);
  }
  CHECK_TRUE(SameBits(nearest.table, start));
  double sum = 0, columns[kDim] = {};
  for (int64_t at = 0; at < kRows * kDim; ++at) {
    const double moved = 1.5 - ToFloat(s.table[at]);
    CHECK_CLOSE(moved * 128, std::round(moved * 128), 1e-6);  // on the grid of bfloat16
    sum += moved, columns[at % kDim] += moved;
  }
  // Of n values and 20 steps of variance 0.01 x 0.99 each, in units of 1 / 128.
  const auto five_deviations = [](double n) { return 5 * std::sqrt(kSteps * 0.01 * 0.99 / n) / 128; };
  CHECK_TRUE(std::fabs(sum / (kRows * kDim) - kSteps * kStep) < five_deviations(kRows * kDim));
  for (double column : columns)
    CHECK_TRUE(std::fabs(column / kRows - kSteps * kStep) < five_deviations(kRows));
}

template <typename Device>
void OneRowAndManyTimesTheSame() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    CheckUpdate<Device, float, float, int64_t>(rule, 1, 64, 1, true, 0.f);
    CheckUpdate<Device, float, float, int64_t>(rule, 1, 64, 20, false, 0.f);
    CheckUpdate<Device, float, float, int64_t>(rule, 1, 1, 20, false, 0.f);
  }
}

// 10^5 gradients of one row in bfloat16, all of one sign: a sum in bfloat16 would stop at 1024. The slot has their sum
// in float32, and the table is rounded once.
template <typename Device>
void ManyGradientsOfOneRowInBfloat16() {
  constexpr int64_t kRow = 5, kDim = 4, kGradients = 100000;
  UpdateProblem<bfloat16, bfloat16, int32_t> p(UpdateRule::kMomentum, 9, kDim, kGradients, false, 0.f);
  std::fill(p.ids.begin(), p.ids.end(), static_cast<int32_t>(kRow));
  for (bfloat16& x : p.values) FromFloat(0.5f + std::fabs(ToFloat(x)), &x);
  const UpdateState<bfloat16> got = RunUpdate<Device>(p);
  for (int64_t j = 0; j < kDim; ++j) {
    const int64_t at = kRow * kDim + j;
    double sum = 0;
    for (int64_t i = 0; i < kGradients; ++i) sum += ToFloat(p.values[i * kDim + j]);
    const double velocity = p.start.slots[0][at] * double(p.hyper[kMomentumFactor]) - sum * p.hyper[kRate];
    const double want = ToFloat(p.start.table[at]) + velocity;
    CHECK_TRUE(std::fabs(got.slots[0][at] - velocity) <= 2e-5 * std::fabs(velocity));
    CHECK_TRUE(std::fabs(ToFloat(got.table[at]) - want) <= (1.0 / 256 + 2e-5) * std::fabs(want));
  }
  for (int64_t at = 0; at < p.rows * kDim; ++at) {
    if (at / kDim != kRow)
      CHECK_TRUE(got.table[at].bits == p.start.table[at].bits && got.slots[0][at] == p.start.slots[0][at]);
  }
  for (int threads : {1, 2, 3}) CHECK_TRUE(RunUpdate<Device>(p, threads) == got);
}

// With a row that most gradients are of.
template <typename Device>
void UpdatesAmidOtherWork() {
  UpdateProblem<float, float, int64_t> p(UpdateRule::kAdagrad, 57, 17, 700, false, 0.01f);
  for (int64_t k = 0; k < 700; ++k) p.ids[k] = k % 10 == 0 ? p.ids[k] : 31;
  const UpdateProblem<bfloat16, float, int32_t> other(UpdateRule::kLazyAdam, 123, 64, 252, false, 0.f);
  CheckRepeats<Device>([&] { return RunUpdate<Device>(p); }, [&] { RunUpdate<Device>(other); });
}

template <typename Device>
void FtrlTakesAnyPower() {
  UpdateState<float> s = {{0.5f}, {{0.1f}, {0.2f}}};
  Update<Device>(UpdateRule::kFtrl, 1, 1, std::vector<int64_t>{0}, std::vector<float>{0.7f},
                 {0.1f, 0.f, -0.75f, 0.05f, 0.f, 0.f}, &s);
  const double b = 0.1 + 0.49, linear = 0.2 + 0.7 - (std::pow(b, 0.75) - std::pow(0.1, 0.75)) / 0.1 * 0.5;
  const double clipped = std::max(-0.05, std::min(0.05, linear));
  CHECK_CLOSE(s.slots[1][0], linear, 1e-6);
  CHECK_CLOSE(s.table[0], (clipped - linear) / (std::pow(b, 0.75) / 0.1), 1e-6);
}

template <typename Device>
void ABadIndexChangesNothing() {
  const std::vector<std::pair<std::vector<int32_t>, int64_t>> cases = {
      {{0, 1, 4}, 2}, {{2, -1, 3}, 1}, {{3, 1, 4}, 2}, {{-1}, 0}, {{4}, 0}, {{3, -1, 0}, 1}, {{3, 4, 0}, 1}};
  for (const auto& [ids, position] : cases) {
    for (int rule = 0; rule < kUpdateRules; ++rule) {
      const std::vector<float> ones(12, 1.f);
      UpdateState<float> s = {ones, {ones, ones}};
      const BadIndex bad =
          Update<Device>(static_cast<UpdateRule>(rule), 4, 3, ids, std::vector<float>(ids.size() * 3, 1.f),
                         std::vector<float>(6, 0.1f), &s);
      CHECK_TRUE(bad.position == position && bad.index == ids[position]);
      CHECK_TRUE((s == UpdateState<float>{ones, {ones, ones}}));
    }
  }
}

template <typename Device>
void NothingToUpdate() {
  UpdateState<float> s = {{1.f}, {}}, none;
  const std::vector<float> hyper = {0.1f, 0.f};
  const std::vector<int64_t> nobody, first = {0};
  CHECK_TRUE(
      (Update<Device>(UpdateRule::kSgd, 1, 1, nobody, std::vector<float>(), hyper, &s).position == -1));
  CHECK_TRUE(
      (Update<Device>(UpdateRule::kSgd, 1, 0, first, std::vector<float>(), hyper, &none).position == -1));
  CHECK_TRUE(s.table[0] == 1.f);
}

template <typename Device>
void NanStaysInItsRow() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    const std::vector<float> ones(12, 1.f);
    UpdateState<float> s = {ones, {ones, ones}};
    Update<Device>(rule, 4, 3, std::vector<int64_t>{2, 2}, std::vector<float>(6, NAN), HyperOf(rule, 0.f),
                   &s);
    for (int k = 0; k < 12; ++k) CHECK_TRUE(k / 3 == 2 ? std::isnan(s.table[k]) : s.table[k] == 1.f);
  }
  // Infinity, too, where it is rounded.
  UpdateState<bfloat16> s = {std::vector<bfloat16>(4, bfloat16{0x3f80}), {}};
  Update<Device>(UpdateRule::kSgd, 4, 1, std::vector<int64_t>{1, 2, 3},
                 std::vector<float>{NAN, INFINITY, -INFINITY}, {0.1f, 0.f}, &s, 1, {1, 2, 1, 0, 0, 0});
  CHECK_TRUE(s.table[0].bits == 0x3f80 && s.table[1].bits == 0x7fc0 && s.table[2].bits == 0xff80);
  CHECK_TRUE(s.table[3].bits == 0x7f80);
}

}  // namespace largeout

#define LARGEOUT_ROW_UPDATE_CASES(Device)                   \
  LARGEOUT_CASE(EveryRuleEqualsItsFormula, Device)          \
  LARGEOUT_CASE(EveryRuleInBfloat16, Device)                \
  LARGEOUT_CASE(RoundingHasTheBitsOfRowAndColumn, Device)   \
  LARGEOUT_CASE(StochasticRoundingIsRightInTheMean, Device) \
  LARGEOUT_CASE(OneRowAndManyTimesTheSame, Device)          \
  LARGEOUT_CASE(ManyGradientsOfOneRowInBfloat16, Device)    \
  LARGEOUT_CASE(UpdatesAmidOtherWork, Device)               \
  LARGEOUT_CASE(FtrlTakesAnyPower, Device)                  \
  LARGEOUT_CASE(ABadIndexChangesNothing, Device)            \
  LARGEOUT_CASE(NothingToUpdate, Device)                    \
  LARGEOUT_CASE(NanStaysInItsRow, Device)

// A case of a gradient and a row update in one pass, Device, against the two passes.
#define LARGEOUT_FUSED_CASE(name, Device, Gradient, Updater) \
  static ::largeout::TestRegistrar registrar_##name(#name, &name<Device, Gradient, Updater>);

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_CASES_H_
