#include "common/cuda/late_report.h"

#include <atomic>
#include <vector>

#include "common/cuda/cuda.h"

namespace largeout {
namespace {

// Slots are used again and never freed: a kernel that was launched may still write to one when its LateReport goes.
struct Slots {
  std::mutex mutex;
  std::vector<LateFinding*> free;
};

Slots& AllSlots() {
  static auto* slots = new Slots;
  return *slots;
}

// The word by which the device hands over the others.
std::atomic<int64_t>* Posted(LateFinding* slot) { return reinterpret_cast<std::atomic<int64_t>*>(&slot->posted); }

}  // namespace

int LateReport::Open(LateFinding** slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_ == nullptr) {
    constexpr int kSlots = 64;
    Slots& slots = AllSlots();
    std::lock_guard<std::mutex> all(slots.mutex);
    if (slots.free.empty()) {
      void* memory;
      LARGEOUT_CUDA_RETURN(
          cudaHostAlloc(&memory, kSlots * sizeof(LateFinding), cudaHostAllocPortable | cudaHostAllocMapped));
      auto* made = static_cast<LateFinding*>(memory);
      for (int i = 0; i < kSlots; ++i) slots.free.push_back(new (made + i) LateFinding);
    }
    slot_ = slots.free.back();
    slots.free.pop_back();
    Posted(slot_)->store(0);
  }
  *slot = slot_;
  return 0;
}

bool LateReport::Take(LateFinding* found) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_ == nullptr || Posted(slot_)->load(std::memory_order_acquire) == 0) return false;
  *found = *slot_;
  Posted(slot_)->store(0, std::memory_order_release);
  return true;
}

LateReport::~LateReport() {
  if (slot_ == nullptr) return;
  Slots& slots = AllSlots();
  std::lock_guard<std::mutex> all(slots.mutex);
  slots.free.push_back(slot_);
}

}  // namespace largeout
