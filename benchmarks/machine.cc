// What the machine itself can do, so that a measured step can be set against it: copy bandwidth and random rows.
// Compiled and run by _machine.py. Arguments: buffer MiB, row floats. Prints one JSON object.
//
// Bandwidths count bytes read plus bytes written. Random rows are read (or read and written back) with software
// prefetch a few rows ahead, which is how an embedding kernel would do it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best of `repeats` of fn(thread, threads), run on all threads at once: limits are what was reached, not what was usual.
double BestSeconds(int threads, int repeats, const std::function<void(int, int)>& fn) {
  double best = 1e30;
  for (int r = 0; r < repeats; ++r) {
    const double start = Seconds();
    std::vector<std::thread> pool;
    for (int t = 1; t < threads; ++t) pool.emplace_back(fn, t, threads);
    fn(0, threads);
    for (auto& thread : pool) thread.join();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t bytes = (argc > 1 ? std::atoll(argv[1]) : 1024) << 20;
  const int64_t dim = argc > 2 ? std::atoll(argv[2]) : 64;
  const int64_t floats = bytes / sizeof(float), rows = floats / dim;
  const int all = std::max(1u, std::thread::hardware_concurrency());
  std::vector<float> a(floats, 1.0f), b(floats, 2.0f);
  std::vector<float> sums(all);

  auto copy = [&](int t, int n) {
    const int64_t from = floats * t / n, to = floats * (t + 1) / n;
    std::memcpy(b.data() + from, a.data() + from, (to - from) * sizeof(float));
  };
  const double copy_one = 2.0 * bytes / BestSeconds(1, 5, copy);
  const double copy_all = 2.0 * bytes / BestSeconds(all, 5, copy);

  const int64_t count = std::min<int64_t>(rows, 1 << 20);
  std::vector<int64_t> ids(count);
  uint64_t state = 88172645463325252ull;  // xorshift64, seeded: the same rows in every run
  for (auto& id : ids) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    id = static_cast<int64_t>(state % static_cast<uint64_t>(rows));
  }
  auto visit = [&](bool write, int t, int n) {
    const int64_t from = count * t / n, to = count * (t + 1) / n;
    float acc[16] = {};
    for (int64_t i = from; i < to; ++i) {
      const char* ahead = reinterpret_cast<const char*>(&a[ids[std::min(i + 12, to - 1)] * dim]);
      for (int64_t c = 0; c < dim * 4; c += 64) __builtin_prefetch(ahead + c, write);
      float* row = &a[ids[i] * dim];
      if (write) {
        for (int64_t c = 0; c < dim; ++c) row[c] += 1.0f;
      } else {
        for (int64_t c = 0; c + 16 <= dim; c += 16)
          for (int64_t k = 0; k < 16; ++k) acc[k] += row[c + k];
      }
    }
    for (float x : acc) sums[t] += x;
  };
  const double read_one = BestSeconds(1, 5, [&](int t, int n) { visit(false, t, n); }) / count;
  const double read_all = BestSeconds(all, 5, [&](int t, int n) { visit(false, t, n); }) / count;
  // Threads may meet in a row when writing; the sums are of no interest, only the traffic.
  const double write_all = BestSeconds(all, 5, [&](int t, int n) { visit(true, t, n); }) / count;
  float keep = b[floats / 2];
  for (float s : sums) keep += s;
  std::printf(
      "{\"threads\": %d, \"copy_one_gb_s\": %.3f, \"copy_all_gb_s\": %.3f, \"row_floats\": %lld, \"row_read_one_ns\": %.3f, "
      "\"row_read_all_ns\": %.3f, \"row_update_all_ns\": %.3f, \"ignore\": %g}\n",
      all, copy_one * 1e-9, copy_all * 1e-9, static_cast<long long>(dim), read_one * 1e9, read_all * 1e9, write_all * 1e9,
      keep);
  return 0;
}
