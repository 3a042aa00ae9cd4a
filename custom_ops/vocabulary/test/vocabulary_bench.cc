// Ids per second of steps of a vocabulary, beside a loop over a std::unordered_map. Usage: vocabulary_bench
// [capacity=4194304] [batch=65536] [distinct=100000000] [admit_after=2] [threads=2] [steps=100]
//
// Zipf: id k is drawn with a probability proportional to k^-1.05. Cold: the first steps, into an empty table;
// steady: once the table is full. Uniform: all ids are as likely, so that nearly all are missing, and the
// sketch, which has fewer counters than there are ids, takes most of them for known ones. "Bytes" are those
// of vocabulary.h.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unordered_map>
#include <vector>

#include "common/huge_pages.h"
#include "common/isa.h"
#include "common/test/check.h"
#include "common/test/kept_scratch.h"
#include "common/test/test_call.h"
#include "vocabulary/vocabulary.h"

namespace largeout {
namespace {

// Zipf numbers of [1, n] by inverting the integral of x^-s, and rejection (Hoermann and Derflinger 1996).
class Zipf {
 public:
  Zipf(double s, int64_t n) : s_(s), low_(Integral(1.5) - 1), high_(Integral(static_cast<double>(n) + 0.5)) {}

  int64_t Next(Random* random) const {
    for (;;) {
      const double u = high_ + random->Unit() * (low_ - high_);
      const double x = std::pow(1 + u * (1 - s_), 1 / (1 - s_)), k = std::max(1.0, std::floor(x + 0.5));
      if (u >= Integral(k + 0.5) - std::pow(k, -s_)) return static_cast<int64_t>(k);
    }
  }

 private:
  double Integral(double x) const { return (std::pow(x, 1 - s_) - 1) / (1 - s_); }
  double s_, low_, high_;
};

// Memory in large pages, as that of a large variable should.
template <typename T>
T* Large(int64_t n, T value) {
  const size_t bytes = (n * sizeof(T) + (2 << 20)) >> 21 << 21;
  T* data = static_cast<T*>(std::aligned_alloc(2 << 20, bytes));
  AdviseHugePages(data, bytes);
  std::fill(data, data + n, value);
  return data;
}

// The same with what C++ brings: ids that were seen often enough get the next row, until there is none.
struct MapPeer {
  std::unordered_map<int64_t, int64_t> rows;
  std::unordered_map<int64_t, int> counts;
  int64_t capacity, admit_after;
  void Update(const int64_t* ids, int64_t n, int64_t* out) {
    for (int64_t i = 0; i < n; ++i) {
      const auto found = rows.find(ids[i]);
      out[i] = -1;
      if (found != rows.end()) {
        out[i] = found->second;
      } else if (static_cast<int64_t>(rows.size()) < capacity && ++counts[ids[i]] >= admit_after) {
        counts.erase(ids[i]);
        out[i] = static_cast<int64_t>(rows.size());
        rows.emplace(ids[i], out[i]);
      }
    }
  }
};

// Of one step.
struct Times {
  double wall, cpu;  // seconds; cpu: of all threads together
};

template <typename Body>
Times TimeOf(const Body& body) {
  const auto seconds = [](clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  const double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
  body();
  return {seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu};
}

// The best of the steps: on a machine that others use too, a median says what these did.
double Best(const std::vector<Times>& times, double Times::* which) {
  double best = times[0].*which;
  for (const Times& t : times) best = std::min(best, t.*which);
  return best;
}

void Report(const char* name, int64_t batch, const std::vector<Times>& times, double missing,
            double replaced) {
  const double wall = Best(times, &Times::wall), cpu = Best(times, &Times::cpu);
  const double bytes = 272 + missing * 64 + replaced * 256;
  std::printf(
      "%-16s %6.1f M ids/s, %6.1f M per second of CPU; %5.1f%% missing, %5.1f%% replaced; %3.0f bytes an id, "
      "%5.1f GB/s\n",
      name, batch / wall * 1e-6, batch / cpu * 1e-6, missing * 100, replaced * 100, bytes,
      batch * bytes / wall * 1e-9);
}

int Main(int argc, char** argv) {
  const auto argument = [&](int i, int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
  const int64_t capacity = argument(1, 1 << 22), batch = argument(2, 65536),
                distinct = argument(3, 100000000), admit_after = argument(4, 2), steps = argument(6, 100);
  const int threads = static_cast<int>(argument(5, 2));
  const int64_t blocks = capacity / 16;  // four counters for each row
  ThreadParallel pool(threads);
  SerialParallel serial;
  Parallel* parallel = threads == 1 ? static_cast<Parallel*>(&serial) : &pool;
  std::printf("capacity %lld, batches of %lld, %lld distinct ids, admit_after %lld, %d threads, %s\n",
              static_cast<long long>(capacity), static_cast<long long>(batch),
              static_cast<long long>(distinct), static_cast<long long>(admit_after), threads,
              IsaName(CurrentIsa()));
  const Zipf zipf(1.05, distinct);
  Random random(1);
  KeptScratch scratch;
  // Between two steps a training has other work, and what was in the caches is gone.
  constexpr int64_t kOtherWork = 8 << 20;
  int64_t* other_work = Large<int64_t>(kOtherWork, 0);
  VocabularyCpu device({parallel, &scratch});
  int64_t *ids = Large<int64_t>(batch * steps, 0), *rows = Large<int64_t>(batch, 0),
          *replaced = Large<int64_t>(batch, 0);
  const VocabularyView v = {Large<int64_t>(capacity, kEmptyKey),
                            Large<int64_t>(capacity, 0),
                            capacity,
                            Large<uint8_t>(blocks * 64, 0),
                            blocks,
                            Large<int64_t>(2, 0)};
  const auto draw = [&](bool uniform) {
    for (int64_t i = 0; i < batch * steps; ++i)
      ids[i] = static_cast<int64_t>(
          Random(static_cast<uint64_t>(uniform ? random.Below(distinct) : zipf.Next(&random))).Next());
  };
  for (const Evict evict : {Evict::kLfu, Evict::kLru}) {
    std::fill(v.keys, v.keys + capacity, kEmptyKey);
    std::fill(v.sketch, v.sketch + blocks * 64, uint8_t{0});
    v.clock[0] = v.clock[1] = 0;
    const auto run = [&](const char* name, int64_t count) {
      std::vector<Times> times;
      double missing = 0, placed = 0;
      for (int64_t step = 0; step < count; ++step) {
        int64_t num_replaced = 0;
        device.Find(v.keys, capacity, ids + step * batch, batch, rows);
        for (int64_t i = 0; i < batch; ++i) missing += rows[i] < 0;
        for (int64_t i = 0; i < kOtherWork; ++i) ++other_work[i];
        times.push_back(TimeOf([&] {
          scratch.Reset();
          scratch.Reset();
          device.Update(v, {admit_after, evict}, ids + step * batch, batch, rows, replaced, &num_replaced);
        }));
        placed += static_cast<double>(num_replaced);
      }
      Report(name, batch, times, missing / (count * batch), placed / (count * batch));
    };
    const bool lfu = evict == Evict::kLfu;
    draw(false);
    run(lfu ? "lfu zipf cold" : "lru zipf cold", std::min<int64_t>(steps, 20));
    for (int round = 0; round < 8; ++round) {  // until the table is full
      int64_t num_replaced = 0;
      draw(false);
      for (int64_t step = 0; step < steps; ++step) {
        scratch.Reset();
        device.Update(v, {admit_after, evict}, ids + step * batch, batch, rows, replaced, &num_replaced);
      }
    }
    draw(false);
    run(lfu ? "lfu zipf steady" : "lru zipf steady", steps);
    draw(true);
    run(lfu ? "lfu uniform" : "lru uniform", steps);
  }
  std::vector<Times> finds, peers;
  draw(false);
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < kOtherWork; ++i) ++other_work[i];
    finds.push_back(TimeOf([&] { device.Find(v.keys, capacity, ids + step * batch, batch, rows); }));
  }
  Report("find zipf", batch, finds, 0, 0);  // (its missing ids are not counted)
  MapPeer peer = {{}, {}, capacity, admit_after};
  for (int64_t step = 0; step < steps; ++step) {
    const Times times = TimeOf([&] { peer.Update(ids + step * batch, batch, rows); });
    if (step >= steps / 2) peers.push_back(times);
  }
  std::printf("unordered_map    %6.1f M ids/s on one thread (it has %lld rows by then, and evicts nothing)\n",
              batch / Best(peers, &Times::wall) * 1e-6, static_cast<long long>(peer.rows.size()));
  return 0;
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) { return largeout::Main(argc, argv); }
