// Optimizer updates of consecutive weights, by the rules of row_update; bfloat16 weights are rounded
// stochastically: up with the probability of what is cut off, so that updates far below a weight's last bit
// move it in the mean.
#include "common/simd_random.h"
#include "fan_in/fan_in_kernels.h"
#include "row_update/row_update_rules.h"

namespace largeout {
namespace LARGEOUT_ISA {
namespace {

// Elements that share the upper half of their number.
template <typename RuleT, typename T>
LARGEOUT_INLINE void UpdateRun(const RuleT& rule, T* w, float* const* slots, const float* g, int64_t n,
                               uint32_t folded, uint32_t low) {
  const VU lanes = LaneNumbers() + low;
  VF s[kFanInMaxSlots] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int k = 0; k < RuleT::kSlots; ++k) s[k] = Load(slots[k] + j);
    VF next = rule.Step(Load(g + j), Load(w + j), s);
    if constexpr (sizeof(T) == 2)
      next = RoundStochastically(next, RandomBits(VU{} + folded, lanes + static_cast<uint32_t>(j)));
    Store(w + j, next);
    for (int k = 0; k < RuleT::kSlots; ++k) Store(slots[k] + j, s[k]);
  }
  if (j < n) {
    const int rest = static_cast<int>(n - j);
    for (int k = 0; k < RuleT::kSlots; ++k) s[k] = LoadPart(slots[k] + j, rest);
    VF next = rule.Step(LoadPart(g + j, rest), LoadPart(w + j, rest), s);
    if constexpr (sizeof(T) == 2)
      next = RoundStochastically(next, RandomBits(VU{} + folded, lanes + static_cast<uint32_t>(j)));
    StorePart(w + j, next, rest);
    for (int k = 0; k < RuleT::kSlots; ++k) StorePart(slots[k] + j, s[k], rest);
  }
}

template <typename RuleT, typename T>
void Update(T* w, float* const* slots, const float* g, int64_t n, const float* hyper, uint64_t key,
            uint64_t element) {
  const RuleT rule(hyper);
  float* at[kFanInMaxSlots] = {};
  for (int k = 0; k < RuleT::kSlots; ++k) at[k] = slots[k];
  while (n > 0) {
    const uint64_t left = (uint64_t{1} << 32) - (element & 0xffffffffu);
    const int64_t run = static_cast<uint64_t>(n) < left ? n : static_cast<int64_t>(left);
    UpdateRun(rule, w, at, g, run, FoldKey(key, element >> 32), static_cast<uint32_t>(element));
    w += run, g += run, n -= run, element += static_cast<uint64_t>(run);
    for (int k = 0; k < RuleT::kSlots; ++k) at[k] += run;
  }
}

}  // namespace

extern const FanInUpdateKernels kFanInUpdate = {{nullptr, &Update<Sgd, float>, &Update<Adagrad, float>,
                                                 &Update<LazyAdam, float>, &Update<LazyAdam, float>},
                                                {nullptr, &Update<Sgd, bfloat16>, &Update<Adagrad, bfloat16>,
                                                 &Update<LazyAdam, bfloat16>, &Update<LazyAdam, bfloat16>}};

}  // namespace LARGEOUT_ISA
}  // namespace largeout
