// The variables behind an op's resource handles: found, checked, locked, and given their own memory where
// they are written.
#ifndef LARGEOUT_COMMON_LOCKED_VARIABLES_OP_H_
#define LARGEOUT_COMMON_LOCKED_VARIABLES_OP_H_

#include <functional>
#include <map>
#include <vector>

#include "common/op/call_op.h"
#include "common/op/mapped_tensor_op.h"

namespace largeout {

// Gives a locked variable its own memory if a read still shares it. With copy_on_read every dense read of
// it copies from now on, so that none of them can see an update half done; otherwise reads go on sharing its
// memory. (TensorFlow's EnsureSparseVariableAccess and PrepareToUpdateVariable do that for CPUs; for GPUs
// they need kernels that only its own library has.)
//
// A variable whose memory is a file keeps it, whoever shares it: a copy would fill the memory, and what is
// written there would not be in the file.
template <typename Call>
absl::Status OwnMemory(OpCall<Call>* call, tensorflow::Var* variable, bool copy_on_read = true) {
  tensorflow::Tensor* tensor = variable->tensor();
  const FileAccess access = FileAccessOf(*tensor);
  if (access == FileAccess::kRead) {
    return absl::FailedPreconditionError(
        absl::StrCat("A variable that is updated must not be a file that was opened to be read only. "
                     "Received: such a variable of shape ",
                     tensor->shape().DebugString()));
  }
  if (variable->copy_on_read_mode.load()) return absl::OkStatus();
  if (access == FileAccess::kNoFile && !tensor->RefCountIsOne()) {
    tensorflow::Tensor copy;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    TF_RETURN_IF_ERROR(call->context()->allocate_temp(tensor->dtype(), tensor->shape(), &copy, attributes));
    TF_RETURN_IF_ERROR(call->Status(call->Copy(tensor->data(), copy.TotalBytes(), copy.data())));
    *tensor = copy;
  }
  if (copy_on_read) variable->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

// Variables of one call, numbered in the order in which they were found. Locked from Lock until this object
// goes: all in the order of their addresses, as every op locks them, so that no two ops wait for each other.
//
//   LockedVariables variables;
//   OP_REQUIRES_OK(context, variables.Find(context, 0, DT_FLOAT, "table", LockedVariables::kWrite));
//   variables.Lock();
//   OP_REQUIRES_OK(context, variables.Own(&call));   // where one is written
//   ... variables[0] ...
class LockedVariables {
 public:
  enum Access { kRead, kWrite };

  LockedVariables() = default;
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;
  ~LockedVariables() {
    for (auto it = locked_.rbegin(); it != locked_.rend(); ++it) {
      if (it->second == kWrite) {
        it->first->mu()->unlock();
      } else {
        it->first->mu()->unlock_shared();
      }
    }
  }

  // The variable at input `at`: initialised, and of type `dtype` (DT_INVALID: of any). `name` is what errors
  // call it. An op that takes tensors in the place of variables may have one there: it is only read, and
  // needs no lock.
  absl::Status Find(tensorflow::OpKernelContext* context, int at, tensorflow::DataType dtype,
                    const char* name, Access access = kRead) {
    Entry entry;
    entry.access = access;
    if (context->input_dtype(at) != tensorflow::DT_RESOURCE) {
      entry.tensor = &context->input(at);
    } else {
      tensorflow::ResourceHandle handle;  // the input may be a tensor of no handles
      absl::Status found = tensorflow::HandleFromInput(context, at, &handle);
      if (found.ok()) found = tensorflow::LookupResource(context, handle, &entry.variable);
      if (!found.ok()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "`", name,
            "` must be an initialized variable on the device of the op. Received: ", found.message()));
      }
      entry.tensor = entry.variable->tensor();
    }
    if (dtype != tensorflow::DT_INVALID && entry.tensor->dtype() != dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", name, "` must be of type ", tensorflow::DataTypeString(dtype),
                       ". Received: ", tensorflow::DataTypeString(entry.tensor->dtype())));
    }
    entries_.push_back(std::move(entry));
    return absl::OkStatus();
  }

  // `names` are what an error calls them all: "`variable` and `slots`".
  absl::Status CheckDifferent(const char* names) const {
    for (size_t i = 0; i < entries_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (entries_[i].tensor == entries_[j].tensor) {
          return absl::InvalidArgumentError(
              absl::StrCat(names, " must be different variables. Received: one of them twice"));
        }
      }
    }
    return absl::OkStatus();
  }

  // A variable that was found twice is locked once: for writing, if that was asked for once.
  void Lock() {
    std::map<tensorflow::Var*, Access, std::less<tensorflow::Var*>> wanted;
    for (const Entry& entry : entries_) {
      if (!entry.variable) continue;
      Access& access = wanted[entry.variable.get()];  // kRead at first
      if (entry.access == kWrite) access = kWrite;
    }
    for (const auto& [variable, access] : wanted) {
      if (access == kWrite) {
        variable->mu()->lock();
      } else {
        variable->mu()->lock_shared();
      }
      locked_.emplace_back(variable, access);
    }
  }

  // OwnMemory for those that are written. With the locks held.
  template <typename Call>
  absl::Status Own(OpCall<Call>* call, bool copy_on_read = true) {
    for (const auto& [variable, access] : locked_) {
      if (access == kWrite) TF_RETURN_IF_ERROR(OwnMemory(call, variable, copy_on_read));
    }
    return absl::OkStatus();
  }

  int size() const { return static_cast<int>(entries_.size()); }
  const tensorflow::Tensor& operator[](int i) const { return *entries_[i].tensor; }
  // One that was found for writing.
  tensorflow::Tensor* writable(int i) { return entries_[i].variable->tensor(); }

 private:
  struct Entry {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;  // null: a tensor
    const tensorflow::Tensor* tensor = nullptr;
    Access access = kRead;
  };
  std::vector<Entry> entries_;
  std::vector<std::pair<tensorflow::Var*, Access>> locked_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_LOCKED_VARIABLES_OP_H_
