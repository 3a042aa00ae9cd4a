// What the machine itself can do, so that a measured step can be set against it: copy bandwidth and random rows.
// Compiled and run by __init__.py. Arguments: buffer MiB, row floats, rows to gather from (0: none). Prints one
// JSON object.
//
// Bandwidths count bytes read plus bytes written. Random rows are read (or read and written back) with software
// prefetch a few rows ahead, which is how an embedding kernel would do it.
//
// Gathers are of rows of a table so small that caches hold much of it, such as a batch laid out [inputs, batch]: rows
// are scaled and summed, or a scaled vector is added to them; each thread adds to its own table. Here bytes
// count once, also where they are written back.
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

// Four vectors of 8 floats: what is summed, or added, stays in registers.
struct Row32 {
  using Floats = float __attribute__((vector_size(32), aligned(4), may_alias));
  explicit Row32(const float* from) {
    for (int v = 0; v < 4; ++v) part[v] = reinterpret_cast<const Floats*>(from)[v];
  }
  void AddScaled(const float* from) {
    for (int v = 0; v < 4; ++v) part[v] += 0.5f * reinterpret_cast<const Floats*>(from)[v];
  }
  void ScaleAndAddTo(float* to) const {
    for (int v = 0; v < 4; ++v) reinterpret_cast<Floats*>(to)[v] += 0.5f * part[v];
  }
  float __attribute__((vector_size(32))) part[4];
};

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

  const int64_t table_rows = argc > 3 ? std::min<int64_t>(std::atoll(argv[3]), rows) : 0;
  double gather = 0, scatter = 0;
  if (table_rows > 0) {
    std::vector<int32_t> picked(1 << 22);
    for (size_t i = 0; i < picked.size(); ++i) picked[i] = static_cast<int32_t>(ids[i % ids.size()] % table_rows);
    std::vector<float> own(all * table_rows * dim);
    const int64_t picks = picked.size();
    const auto gathers = [&](bool write, int t, int n) {
      const float* table = a.data();
      float* own_table = own.data() + t * table_rows * dim;
      float total = 0;
      for (int64_t i = picks / 32 * t / n * 32; i < picks / 32 * (t + 1) / n * 32; i += 32) {
        for (int64_t c = 0; c + 32 <= dim; c += 32) {
          Row32 row(table + c);
          if (write) {
            for (int64_t p = 0; p < 32; ++p) row.ScaleAndAddTo(own_table + picked[i + p] * dim + c);
          } else {
            for (int64_t p = 0; p < 32; ++p) row.AddScaled(table + picked[i + p] * dim + c);
          }
          total += row.part[0][0] + row.part[1][0] + row.part[2][0] + row.part[3][0];
        }
      }
      sums[t] += total;
    };
    const double moved = 4.0 * picks * (dim / 32 * 32);
    gather = moved / BestSeconds(all, 5, [&](int t, int n) { gathers(false, t, n); });
    scatter = moved / BestSeconds(all, 5, [&](int t, int n) { gathers(true, t, n); });
  }
  float keep = b[floats / 2];
  for (float s : sums) keep += s;
  std::printf(
      "{\"threads\": %d, \"copy_one_gb_s\": %.3f, \"copy_all_gb_s\": %.3f, \"row_floats\": %lld, \"row_read_one_ns\": %.3f, "
      "\"row_read_all_ns\": %.3f, \"row_update_all_ns\": %.3f, \"gather_rows\": %lld, "
      "\"gather_all_gb_s\": %.3f, \"gather_add_all_gb_s\": %.3f, \"ignore\": %g}\n",
      all, copy_one * 1e-9, copy_all * 1e-9, static_cast<long long>(dim), read_one * 1e9, read_all * 1e9, write_all * 1e9,
      static_cast<long long>(table_rows), gather * 1e-9, scatter * 1e-9, keep);
  return 0;
}
