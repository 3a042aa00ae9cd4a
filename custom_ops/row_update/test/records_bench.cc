// Times of records in a file: lookups and updates of `touched` random records of 64 float32 with two slots.
// Usage: records_bench PATH [rows=1000000] [touched=20000] [threads=2]
//
// PATH is written (772 bytes a row) and removed. All but the last lines: its pages are in memory. "Cold":
// they were dropped from there, and come from the disk.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "common/parallel.h"
#include "common/test/check.h"
#include "row_update/records.h"

namespace largeout {
namespace {

constexpr int64_t kDim = 64, kWords = 193;

double Milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

class Bench {
 public:
  Bench(const std::string& path, int64_t rows, int64_t touched, int threads)
      : path_(path), rows_(rows), bytes_(rows * kWords * 4), parallel_(threads), ids_(touched) {
    std::vector<float> some(kWords * 10000, 0.5f);
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int64_t row = 0; row < rows; row += 10000) {
      for (int64_t i = 0; i < 10000; ++i) {
        const uint32_t mark = RecordMark(some.data() + i * kWords, kWords, row + i);
        std::memcpy(some.data() + i * kWords, &mark, sizeof(mark));
      }
      const size_t bytes = std::min<int64_t>(10000, rows - row) * kWords * 4;
      if (write(file_, some.data(), bytes) != static_cast<ssize_t>(bytes)) std::abort();
    }
    out_.resize(touched * kDim);
    values_.assign(touched * kDim, 0.1f);
    written_.resize(touched);
  }
  ~Bench() {
    close(file_);
    unlink(path_.c_str());
  }

  void Run() {
    Warm("lookup of rows, compared", [&] { Gather(kDim); });
    std::vector<uint64_t> checked(rows_ / 64 + 1, ~uint64_t{0});
    checked_ = checked.data();
    Warm("lookup of rows", [&] { Gather(kDim); });
    Warm("lookup of marks", [&] { Gather(0); });
    Warm("whole records by memcpy", [&] { Copy(); });
    Warm("WillNeed", [&] { Ask(); });
    Warm("update, lazy_adam", [&] { Update(); });
    for (int round = 0; round < 2; ++round) {
      Cold(false, false);
      Cold(true, false);
      Cold(true, true);
    }
  }

 private:
  void Draw() {
    for (int64_t& id : ids_) id = random_.Below(rows_);
  }
  void Map() {
    std::string error;
    data_ = static_cast<float*>(MapFile(path_, bytes_, false, &error));
    if (data_ == nullptr) std::abort();
  }
  void Gather(int64_t dim) {
    BadIndex bad;
    Device().Gather({dim, 4}, data_, rows_, kWords, ids_.data(), Touched(), out_.data(),
                    reinterpret_cast<bool*>(written_.data()), checked_, &damaged_, &bad);
    if (damaged_ >= 0) std::abort();
  }
  void Copy() {
    all_.resize(Touched() * kWords);
    parallel_.For(Touched(), 1000, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(data_ + ids_[i] * kWords, kWords, all_.data() + i * kWords);
      }
    });
  }
  void Ask() { WillNeed(data_, kWords * 4, ids_.data(), Touched(), &parallel_); }
  void Update() {
    const float hyper[] = {1e-3f, 0.f, 0.1f, 0.001f, 1e-7f};
    BadIndex bad;
    Device().Update<float>(UpdateRule::kLazyAdam, data_, rows_, kWords, kDim, ids_.data(), Touched(),
                           values_.data(), hyper, &bad);
  }
  RecordsCpu Device() { return RecordsCpu({&parallel_, nullptr}); }
  int64_t Touched() const { return static_cast<int64_t>(ids_.size()); }

  // 20 rounds, after every page was touched in this mapping.
  void Warm(const char* name, const std::function<void()>& body) {
    Map();
    float sum = 0;
    for (int64_t i = 0; i < rows_ * kWords; i += 1024) sum += data_[i];
    std::vector<double> times;
    for (int round = 0; round < 20; ++round) {
      Draw();
      times.push_back(Milliseconds(body));
    }
    std::sort(times.begin(), times.end());
    std::printf("%-26s median %.3f ms, best %.3f ms%s\n", name, times[10], times[0], sum < 0 ? "!" : "");
    UnmapFile(data_, bytes_);
  }

  void Cold(bool ask, bool sorted) {
    fsync(file_);
    posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    Map();
    Draw();
    if (sorted) std::sort(ids_.begin(), ids_.end());
    const double asking = ask ? Milliseconds([&] { Ask(); }) : 0.0;
    const double gathering = Milliseconds([&] { Gather(kDim); });
    std::printf("cold%-22s asking %.1f ms, then the lookup %.1f ms\n", sorted ? ", ascending" : "", asking,
                gathering);
    UnmapFile(data_, bytes_);
  }

  const std::string path_;
  const int64_t rows_;
  const size_t bytes_;
  ThreadParallel parallel_;
  Random random_{1};
  std::vector<int64_t> ids_;
  std::vector<float> out_, all_, values_;
  std::vector<char> written_;
  int64_t damaged_ = -1;
  uint64_t* checked_ = nullptr;
  float* data_ = nullptr;
  int file_ = -1;
};

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  const auto argument = [&](int i, int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
  if (argc < 2) {
    std::printf("Usage: records_bench PATH [rows=1000000] [touched=20000] [threads=2]\n");
    return 1;
  }
  const int64_t rows = argument(2, 1000000), touched = argument(3, 20000);
  largeout::Bench(argv[1], rows, touched, static_cast<int>(argument(4, 2))).Run();
  return 0;
}
