// Cutting work into tasks, and memory for them. Tasks are cut by the sizes of a problem alone, never by the
// number of threads, so that results do not depend on it.
#ifndef LARGEOUT_COMMON_TASKS_H_
#define LARGEOUT_COMMON_TASKS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "common/parallel.h"

namespace largeout {

// Runs body(task, scratch) for every task in [0, n); a worker takes the next task when it is free and has its
// own Scratch. `cost`: cycles of one task.
template <typename Scratch, typename Body>
void RunTasks(Parallel* parallel, int64_t n, int64_t cost, const Body& body) {
  if (n <= 0) return;
  constexpr int64_t kWorthAThread = 20000;
  const int64_t worth = std::max<int64_t>(1, n * std::max<int64_t>(1, cost) / kWorthAThread);
  const int64_t workers = std::min<int64_t>({static_cast<int64_t>(parallel->threads()), n, worth});
  std::atomic<int64_t> next{0};
  parallel->For(workers, workers > 1 ? int64_t{1} << 30 : 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<Scratch> scratch;
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t i = next++; i < n; i = next++) {
        if (!scratch) scratch.reset(new Scratch);
        body(i, scratch.get());
      }
    }
  });
}

// A buffer that grows and is never initialised.
template <typename T>
class Buffer {
 public:
  T* Get(int64_t n) {
    if (n > size_) data_.reset(new T[n]), size_ = n;
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_TASKS_H_
