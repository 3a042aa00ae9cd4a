#include "row_update/row_update.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/bfloat16.h"
#include "common/sort.h"
#include "row_update/records.h"
#include "row_update/records_kernels.h"
#include "row_update/row_update_kernels.h"

namespace largeout {

bool FindUpdateRule(const char* name, UpdateRule* rule) {
  for (int i = 0; i < kUpdateRules; ++i) {
    if (std::strcmp(name, kUpdateRuleInfo[i].name) == 0) {
      *rule = static_cast<UpdateRule>(i);
      return true;
    }
  }
  return false;
}

namespace {

RowStrides DenseStrides(UpdateRule rule, int64_t dim) {
  return {dim, kUpdateRuleInfo[static_cast<int>(rule)].slot_per_row ? 1 : dim};
}

// Everything but the rows and their gradients.
template <typename T>
RowUpdateTask TaskOf(UpdateRule rule, T* table, int64_t dim, float* const* slots, const RowStrides& strides,
                     const StepNumbers& numbers) {
  RowUpdateTask task = {};
  task.table = table;
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) task.slots[k] = slots[k];
  task.hyper = numbers.hyper;
  task.rounding = numbers.rounding;
  task.dim = dim;
  task.strides = strides;
  return task;
}

template <typename T, typename G>
UpdateRowsFunction FunctionOf(UpdateRule rule, int64_t dim, const StepNumbers& numbers) {
  // With one column, a per-row slot is an element-wise one.
  if (dim == 1 && rule == UpdateRule::kRowWiseAdagrad) rule = UpdateRule::kAdagrad;
  const int stored = std::is_same_v<T, bfloat16> ? (numbers.rounding == nullptr ? 1 : 2) : 0;
  return LARGEOUT_SELECT(kRowUpdateKernels)
      .update[static_cast<int>(rule)][stored][std::is_same_v<G, bfloat16>];
}

}  // namespace

template <typename T, typename G>
RowUpdater<T, G>::RowUpdater(UpdateRule rule, T* table, int64_t dim, float* const* slots,
                             const StepNumbers& numbers)
    : rule_(rule), table_(table), dim_(dim), strides_(DenseStrides(rule, dim)), numbers_(numbers) {
  for (int k = 0; k < kUpdateRuleInfo[static_cast<int>(rule)].slots; ++k) slots_[k] = slots[k];
}

template <typename T, typename G>
void RowUpdater<T, G>::Update(const int64_t* rows, int64_t n, int64_t next, const G* values) const {
  if (dim_ == 0) return;
  RowUpdateTask task = TaskOf(rule_, table_, dim_, slots_, strides_, numbers_);
  task.rows = rows;
  task.known = n + next;
  task.values = values;
  FunctionOf<T, G>(rule_, dim_, numbers_)(task, 0, n, nullptr);
}

template <typename T, typename G, typename Id>
int64_t UpdateStridedRows(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                          const RowStrides& strides, const Id* indices, int64_t n, const G* values,
                          const StepNumbers& numbers, Parallel* parallel) {
  if (n == 0) return -1;
  // The largest of increasing indices is the last one; others are all looked at before anything is written.
  const bool increasing = StrictlyIncreasing(indices, n);
  if (!increasing || indices[n - 1] >= rows) {
    for (int64_t i = 0; i < n; ++i) {
      if (indices[i] < 0 || indices[i] >= rows) return i;
    }
  }
  if (dim == 0) return -1;

  const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule)];
  RowUpdateTask task = TaskOf(rule, table, dim, slots, strides, numbers);
  task.values = values;

  Groups groups;
  int64_t count = n;
  if (!increasing) {
    GroupIds(indices, n, &groups);
    count = static_cast<int64_t>(groups.unique.size());
    task.starts = groups.starts.data();
    task.order = groups.order.data();
  } else if constexpr (!std::is_same_v<Id, int64_t>) {
    groups.unique.assign(indices, indices + n);
  }
  if constexpr (std::is_same_v<Id, int64_t>) {
    task.rows = increasing ? indices : groups.unique.data();
  } else {
    task.rows = groups.unique.data();
  }

  const UpdateRowsFunction update = FunctionOf<T, G>(rule, dim, numbers);
  // About one cache line in 40 cycles where rows are far apart, read and written.
  const int64_t cost = 60 + dim * static_cast<int64_t>(sizeof(T) + info.slots * sizeof(float));
  const auto mark_again = LARGEOUT_SELECT(kRecordKernels).mark_again;
  constexpr int64_t kMarkedAtOnce = 16;  // records that are in the first-level cache still
  parallel->For(count, cost, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(task.starts != nullptr ? dim : 0);
    if (strides.words == 0) return update(task, begin, end, scratch.data());
    float* records = reinterpret_cast<float*>(table) - RecordLayout::kMarkWords;
    for (int64_t next; begin < end; begin = next) {
      next = std::min(begin + kMarkedAtOnce, end);
      update(task, begin, next, scratch.data());
      mark_again(records, strides.words, task.rows + begin, next - begin);
    }
  });
  return -1;
}

template <>
template <typename T, typename G, typename Id>
int RowUpdateCpu::Update(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                         const Id* indices, int64_t n, const G* values, const StepNumbers& numbers,
                         BadIndex* bad, bool /*increasing*/) {
  bad->position = UpdateStridedRows(rule, table, rows, dim, slots, DenseStrides(rule, dim), indices, n,
                                    values, numbers, call_.parallel);
  bad->index = bad->position < 0 ? 0 : indices[bad->position];
  return 0;
}

#define INSTANTIATE(T, G, Id)                                                                             \
  template int RowUpdateCpu::Update<T, G, Id>(UpdateRule, T*, int64_t, int64_t, float* const*, const Id*, \
                                              int64_t, const G*, const StepNumbers&, BadIndex*, bool);    \
  template int64_t UpdateStridedRows<T, G, Id>(UpdateRule, T*, int64_t, int64_t, float* const*,           \
                                               const RowStrides&, const Id*, int64_t, const G*,           \
                                               const StepNumbers&, Parallel*);
INSTANTIATE(float, float, int32_t)
INSTANTIATE(float, float, int64_t)
INSTANTIATE(float, bfloat16, int32_t)
INSTANTIATE(float, bfloat16, int64_t)
INSTANTIATE(bfloat16, float, int32_t)
INSTANTIATE(bfloat16, float, int64_t)
INSTANTIATE(bfloat16, bfloat16, int32_t)
INSTANTIATE(bfloat16, bfloat16, int64_t)
#undef INSTANTIATE
template class RowUpdater<float, float>;
template class RowUpdater<float, bfloat16>;
template class RowUpdater<bfloat16, float>;
template class RowUpdater<bfloat16, bfloat16>;

}  // namespace largeout
