// Optimizer updates of single rows of a table, in place: the rows listed and their slots are read, updated
// and written once; nothing else is touched. All rules of the optimizers in keras_largeout/optimizers go
// through this one entry.
//
//   table [rows, dim], slots [rows, dim] float32 (row_wise_adagrad: [rows]), indices [n], values [n, dim]
//   RowUpdateCpu device(call);                                // or RowUpdateGpu
//   device.Update(UpdateRule::kAdagrad, table, rows, dim, slots, indices, n, values, hyper, &bad);
//
// g is the gradient of a row: the sum, in float32 and in order of occurrence, of the values of its index.
// Arithmetic is float32 without fused multiply-adds, so every instruction-set level and every number of
// threads gives the same bits. Before its rule, a row decays: w -= w * decay (lazy weight decay: only the
// rows listed). A row of bfloat16 is rounded to nearest, or stochastically: up with the probability of what
// is cut off, so that steps far below a value's last bit move it in the mean. The random bits of a value are
// a function of (seed, step, row, column) alone.
//
//   rule              slots        update (Keras 3.15's own formulas, on one row)
//   sgd               -            w -= g * lr
//   momentum          m            m = m * momentum - g * lr; w += m
//   nesterov          m            m = m * momentum - g * lr; w += m * momentum - g * lr
//   adagrad           a            a += g^2; w -= lr * g / sqrt(a + epsilon)
//   row_wise_adagrad  a [rows]     a += mean(g^2); w -= lr * g / sqrt(a + epsilon)
//                                  (FBGEMM's EXACT_ROWWISE_ADAGRAD)
//   lazy_adam         m, v         m += (g - m) * (1 - beta_1); v += (g^2 - v) * (1 - beta_2);
//                                  w -= m * alpha / (sqrt(v) + epsilon)
//   ftrl              a, z         b = a + g^2; z += g + 2 shrinkage w - (b^-power - a^-power) / lr * w;
//                                  w = (clip(z, -l1, l1) - z) / (b^-power / lr + 2 l2); a = b
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_H_

#include <cstdint>

#include "common/scratch.h"

namespace largeout {

enum class UpdateRule { kSgd, kMomentum, kNesterov, kAdagrad, kRowWiseAdagrad, kLazyAdam, kFtrl };
constexpr int kUpdateRules = 7;
constexpr int kMaxSlots = 2;

// Positions in `hyper`, a float32 vector. The first two are common to all rules.
enum Hyper {
  kRate = 0,   // learning rate; lazy_adam: alpha = lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)
  kDecay = 1,  // learning rate * weight decay; 0: none
};
enum MomentumHyper { kMomentumFactor = 2 };  // momentum, nesterov
enum AdagradHyper { kAdagradEpsilon = 2 };   // adagrad, row_wise_adagrad
enum AdamHyper { kOneMinusBeta1 = 2, kOneMinusBeta2 = 3, kAdamEpsilon = 4 };
enum FtrlHyper { kPower = 2, kL1 = 3, kL2 = 4, kShrinkage = 5 };  // power <= 0; l2 includes beta / (2 lr)

// The int64 numbers of which the bits of stochastic rounding are a function, for rows of bfloat16. Row r and column
// c of the table count as row (r * multiplier + addend) % modulus (0: no modulo) and column c + first column:
// where the table is a part of a larger one, those of that one. So bits do not depend on how it is cut.
enum RoundingNumbers { kSeed, kStep, kRowMultiplier, kRowAddend, kRowModulus, kFirstColumn };
constexpr int kRoundingNumbers = 6;

// The numbers of one step, in memory of the device.
struct StepNumbers {
  StepNumbers(const float* hyper, const int64_t* rounding = nullptr) : hyper(hyper), rounding(rounding) {}
  const float* hyper;
  const int64_t* rounding;  // [kRoundingNumbers], for bfloat16 alone; null: to nearest
};

struct UpdateRuleInfo {
  const char* name;
  int slots;
  int hyper;          // length of `hyper`
  bool slot_per_row;  // slots are [rows] instead of [rows, dim]
};
constexpr UpdateRuleInfo kUpdateRuleInfo[kUpdateRules] = {
    {"sgd", 0, 2, false},     {"momentum", 1, 3, false},        {"nesterov", 1, 3, false},
    {"adagrad", 1, 3, false}, {"row_wise_adagrad", 1, 3, true}, {"lazy_adam", 2, 5, false},
    {"ftrl", 2, 6, false},
};

// The rule called `name` in *rule; false if there is none.
bool FindUpdateRule(const char* name, UpdateRule* rule);

// An index outside the table: its position (-1: none) and its value.
struct BadIndex {
  int64_t position = -1;
  int64_t index = 0;
  // On a GPU that nobody waits for: it was in an earlier call, and the table had so many rows; this call did nothing.
  bool late = false, out_of_order = false;
  int64_t rows = 0;
};

// C: CpuCall (row_update.cc) or GpuCall (cuda/row_update.cu). Methods return 0 or an error
// (common/scratch.h).
template <typename C>
class RowUpdate {
 public:
  using Call = C;
  explicit RowUpdate(const Call& call) : call_(call) {}

  // Updates the rows `indices[0 .. n)` of table and slots. T and G (the type of values) are float or
  // bfloat16; n < 2^31. Duplicates are allowed; indices that strictly increase, as our gradients deliver
  // them, are neither sorted nor summed. All pointers but `slots` itself are to memory of the device, those
  // in `numbers` included. If *bad holds the position of an index outside [0, rows), nothing was changed.
  //
  // A GPU waits for the stream after the look at the indices, before anything is written. With the call's
  // `late` it does not wait: such indices change nothing either, and *bad is what an earlier call has found
  // (this one did nothing then). The host does not know whether indices increase: all are sorted, unless
  // `increasing`, the promise of the caller. If it is broken, nothing is changed. (A CPU looks for itself.)
  template <typename T, typename G, typename Id>
  int Update(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots, const Id* indices,
             int64_t n, const G* values, const StepNumbers& numbers, BadIndex* bad, bool increasing = false);

 private:
  const Call call_;
};

using RowUpdateCpu = RowUpdate<CpuCall>;
using RowUpdateGpu = RowUpdate<GpuCall>;

// The distance from one row to the next: in elements of the table, and in floats of a slot.
struct RowStrides {
  int64_t table;
  int64_t slot;
  int64_t words = 0;  // of the record that holds each row and its slots (records.h); 0: there are no records
};

// The update of a CPU where other things are between the rows. Of records the marks are set again. Returns
// -1, or the position of the first index outside [0, rows).
template <typename T, typename G, typename Id>
int64_t UpdateStridedRows(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                          const RowStrides& strides, const Id* indices, int64_t n, const G* values,
                          const StepNumbers& numbers, Parallel* parallel);

// RowUpdate of some rows at a time, for who makes their gradients as he goes. Any number of threads may use one object,
// each row being updated once. The table and its slots have one row after another.
template <typename T, typename G>
class RowUpdater {
 public:
  RowUpdater(UpdateRule rule, T* table, int64_t dim, float* const* slots, const StepNumbers& numbers);
  // rows [n]: different ones, all in the table; values [n, dim]: the gradient of each. rows [n .. n + next) come next on
  // this thread.
  void Update(const int64_t* rows, int64_t n, int64_t next, const G* values) const;

 private:
  UpdateRule rule_;
  T* table_;
  int64_t dim_;
  float* slots_[kMaxSlots] = {};
  RowStrides strides_;
  StepNumbers numbers_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_H_
