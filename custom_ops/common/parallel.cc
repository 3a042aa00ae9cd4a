#include "common/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace largeout {

struct ThreadParallel::Pool {
  explicit Pool(int n) {
    for (int i = 1; i < n; ++i) workers.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mu);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void Work() {
    int64_t seen = 0;
    std::unique_lock<std::mutex> lock(mu);
    for (;;) {
      wake.wait(lock, [&] { return stop || round != seen; });
      if (stop) return;
      seen = round;
      ++busy;
      Drain(&lock);
      if (--busy == 0) done.notify_all();
    }
  }

  // Takes blocks until none is left. Holds the lock between blocks only.
  void Drain(std::unique_lock<std::mutex>* lock) {
    while (next < n) {
      const int64_t begin = next, end = std::min(n, begin + block);
      next = end;
      const Body* task = body;
      lock->unlock();
      (*task)(begin, end);
      lock->lock();
    }
  }

  void Run(int64_t count, int64_t block_size, const Body& task) {
    std::unique_lock<std::mutex> lock(mu);
    n = count, next = 0, block = block_size, body = &task;
    ++round;
    wake.notify_all();
    Drain(&lock);
    done.wait(lock, [&] { return busy == 0; });
  }

  std::mutex mu;
  std::condition_variable wake, done;
  std::vector<std::thread> workers;
  const Body* body = nullptr;
  int64_t n = 0, next = 0, block = 1, round = 0;
  int busy = 0;
  bool stop = false;
};

ThreadParallel::ThreadParallel(int threads) : pool_(new Pool(std::max(1, threads))) {}
ThreadParallel::~ThreadParallel() = default;
int ThreadParallel::threads() const { return static_cast<int>(pool_->workers.size()) + 1; }

void ThreadParallel::For(int64_t n, int64_t cost, const Body& body) {
  if (n <= 0) return;
  constexpr int64_t kMinCycles = 10000;
  const int64_t worth = std::max<int64_t>(1, kMinCycles / std::max<int64_t>(1, cost));
  const int64_t block = std::max(worth, (n + 4 * threads() - 1) / (4 * threads()));
  if (block >= n || threads() == 1) {
    body(0, n);
  } else {
    pool_->Run(n, block, body);
  }
}

}  // namespace largeout
