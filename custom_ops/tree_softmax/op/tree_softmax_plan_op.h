// Hands what a loss found out about its batch to the gradient, which so need not look at the saved tensors again
// (on a GPU, nor wait for what it finds there).
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_OP_H_

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/op/call_op.h"
#include "tree_softmax/op/tree_softmax_op.h"

namespace largeout {

// The tensors that a plan is of: node_start, node_parent, pair_token, pair_row, group_node, group_start.
using TreePlanKey = std::array<tensorflow::Tensor, 6>;
// Tokens, dim, and rows of the table.
using TreePlanSizes = std::array<int64_t, 3>;

// The plans of one device whose gradients have not been asked yet. A plan belongs to the very tensors that
// the loss was given and left, whose values never change. It is found by their addresses, and keeps them
// alive, so that their memory is nobody else's; tensors with the same values elsewhere have none.
template <typename Plan>
class TreePlans : public tensorflow::ResourceBase {
 public:
  struct Entry {
    TreePlanKey key;
    TreePlanSizes sizes;
    Plan plan;
    std::vector<tensorflow::Tensor> memory;  // that holds the plan
  };

  // Those of the device that `context` is on.
  static absl::Status Of(tensorflow::OpKernelContext* context,
                         tensorflow::core::RefCountPtr<TreePlans>* plans) {
    tensorflow::ResourceMgr* all = context->resource_manager();
    TreePlans* found;
    TF_RETURN_IF_ERROR(all->LookupOrCreate<TreePlans>(all->default_container(), "largeout_tree_plans", &found,
                                                      [](TreePlans** made) {
                                                        *made = new TreePlans;
                                                        return absl::OkStatus();
                                                      }));
    plans->reset(found);
    return absl::OkStatus();
  }

  void Keep(Entry entry) {
    constexpr size_t kMost = 64;
    tensorflow::mutex_lock lock(mu_);
    // Losses whose gradient can no longer be asked for, and the oldest one of very many.
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [](const Entry& e) { return e.key[kPairToken].RefCountIsOne(); }),
                   entries_.end());
    if (entries_.size() == kMost) entries_.erase(entries_.begin());
    entries_.push_back(std::move(entry));
  }

  // Hands the plan of these tensors over. False: there is none.
  bool Take(const TreePlanKey& key, const TreePlanSizes& sizes, Entry* entry) {
    tensorflow::mutex_lock lock(mu_);
    const auto same = [](const tensorflow::Tensor& a, const tensorflow::Tensor& b) {
      return a.data() == b.data() && a.NumElements() == b.NumElements();
    };
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
      return e.sizes == sizes && std::equal(key.begin(), key.end(), e.key.begin(), same);
    });
    if (found == entries_.end()) return false;
    *entry = std::move(*found);
    entries_.erase(found);
    return true;
  }

  std::string DebugString() const override { return "plans of tree softmax losses"; }

 private:
  static constexpr int kPairToken = 2;
  tensorflow::mutex mu_;
  std::vector<Entry> entries_ TF_GUARDED_BY(mu_);  // the oldest first
};

// After the loss that `device` made, whose plan is in `memory`. The outputs from pair_token on are set.
// T is the table's type; save: probabilities are saved.
template <typename T, typename Device>
absl::Status KeepTreePlan(tensorflow::OpKernelContext* context, int node_start, int node_parent,
                          int pair_token_output, const TreePlanSizes& sizes, bool save, const Device& device,
                          OpScratch* memory) {
  using Plans = TreePlans<typename Device::Plan>;
  if (context->mutable_output(pair_token_output)->NumElements() == 0 ||
      !Device::template CanResume<T>(device.GradientPlan(), save))
    return absl::OkStatus();
  tensorflow::core::RefCountPtr<Plans> plans;
  TF_RETURN_IF_ERROR(Plans::Of(context, &plans));
  typename Plans::Entry entry{{context->input(node_start), context->input(node_parent)},
                              sizes,
                              device.GradientPlan(),
                              memory->Release()};
  for (int i = 0; i < 4; ++i) entry.key[2 + i] = *context->mutable_output(pair_token_output + i);
  plans->Keep(std::move(entry));
  return absl::OkStatus();
}

// Plans the gradient by `device`: from what the loss has kept, or by a look at the saved tensors. Inputs are
// node_start at `at`, node_parent and the six saved tensors after it; T is the table's type. *memory must live
// until the gradient has been launched.
template <typename T, typename Device>
absl::Status PlanTreeGradient(tensorflow::OpKernelContext* context, int at, const TreeArrays& tree,
                              const TreeSaved& saved, int64_t tokens, int64_t dim,
                              const OpCall<typename Device::Call>& call, Device* device,
                              std::vector<tensorflow::Tensor>* memory, TreeTouched* touched) {
  using Plans = TreePlans<typename Device::Plan>;
  tensorflow::core::RefCountPtr<Plans> plans;
  TF_RETURN_IF_ERROR(Plans::Of(context, &plans));
  TreePlanKey key;
  for (int i = 0; i < 6; ++i) key[i] = context->input(at + i);
  typename Plans::Entry entry;
  if (plans->Take(key, {tokens, dim, tree.rows}, &entry) &&
      Device::template CanResume<T>(entry.plan, saved.probs != nullptr)) {
    *touched = device->Resume(entry.plan);
    *memory = std::move(entry.memory);
  } else {
    TF_RETURN_IF_ERROR(call.Status(device->template Check<T>(tree, saved, tokens, dim, touched)));
  }
  if (!touched->ok || (saved.probs != nullptr && context->input(at + 7).NumElements() != touched->probs))
    return BadSaved();
  return absl::OkStatus();
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_OP_H_
