// Tests of RowUpdateCpu and RowUpdateGpu against the formulas of row_update.h in float64: every rule and
// type, and the same bits for every level, number of threads and run.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_CASES_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_CASES_H_

#include <cstring>
#include <map>
#include <vector>

#include "common/isa.h"
#include "common/test/test_call.h"
#include "row_update/test/row_update_reference.h"

namespace largeout {

// Updates `state` on the device.
template <typename Device, typename T, typename G, typename Id>
BadIndex Update(UpdateRule rule, int64_t rows, int64_t dim, const std::vector<Id>& ids,
                const std::vector<G>& values, const std::vector<float>& hyper, UpdateState<T>* state,
                int threads = 1) {
  const ArrayOf<Device, T> table(state->table);
  const ArrayOf<Device, float> slot0(state->slots[0]), slot1(state->slots[1]), numbers(hyper);
  const ArrayOf<Device, Id> indices(ids);
  const ArrayOf<Device, G> gradients(values);
  float* slots[] = {slot0.get(), slot1.get()};
  TestCall<typename Device::Call> call(threads);
  BadIndex bad;
  CHECK_TRUE(Device(call.get())
                 .Update(rule, table.get(), rows, dim, slots, indices.get(), static_cast<int64_t>(ids.size()),
                         gradients.get(), numbers.get(), &bad) == 0);
  *state = {table.Host(), {slot0.Host(), slot1.Host()}};
  return bad;
}

template <typename Device, typename T, typename G, typename Id>
UpdateState<T> RunUpdate(const UpdateProblem<T, G, Id>& p, int threads = 1) {
  UpdateState<T> state = p.start;
  CHECK_TRUE(
      (Update<Device>(p.rule, p.rows, p.dim, p.ids, p.values, p.hyper, &state, threads).position == -1));
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

template <typename Device>
void OneRowAndManyTimesTheSame() {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    CheckUpdate<Device, float, float, int64_t>(rule, 1, 64, 1, true, 0.f);
    CheckUpdate<Device, float, float, int64_t>(rule, 1, 64, 20, false, 0.f);
    CheckUpdate<Device, float, float, int64_t>(rule, 1, 1, 20, false, 0.f);
  }
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
}

}  // namespace largeout

#define LARGEOUT_ROW_UPDATE_CASES(Device)          \
  LARGEOUT_CASE(EveryRuleEqualsItsFormula, Device) \
  LARGEOUT_CASE(EveryRuleInBfloat16, Device)       \
  LARGEOUT_CASE(OneRowAndManyTimesTheSame, Device) \
  LARGEOUT_CASE(FtrlTakesAnyPower, Device)         \
  LARGEOUT_CASE(ABadIndexChangesNothing, Device)   \
  LARGEOUT_CASE(NothingToUpdate, Device)           \
  LARGEOUT_CASE(NanStaysInItsRow, Device)

// A case of a gradient and a row update in one pass, Device, against the two passes.
#define LARGEOUT_FUSED_CASE(name, Device, Gradient, Updater) \
  static ::largeout::TestRegistrar registrar_##name(#name, &name<Device, Gradient, Updater>);

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_CASES_H_
