#include "common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace largeout {
namespace {

// Closes a file descriptor where its scope ends. (A mapping outlives it.)
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

void* Failed(const char* what, std::string* error) {
  *error = std::string(what) + ": " + std::strerror(errno);
  return nullptr;
}

}  // namespace

void* MapFile(const std::string& path, size_t bytes, bool read_only, std::string* error) {
  const Descriptor file{open(path.c_str(), read_only ? O_RDONLY | O_CLOEXEC : O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (file.number < 0) return Failed("it cannot be opened", error);
  struct stat found;
  if (fstat(file.number, &found) != 0) return Failed("its size is not known", error);
  size_t size = static_cast<size_t>(found.st_size);
  if (size == 0 && !read_only) {
    if (ftruncate(file.number, static_cast<off_t>(bytes)) != 0) return Failed("it cannot have its size", error);
    size = bytes;
  }
  if (size != bytes) {
    *error = "it must have " + std::to_string(bytes) + " bytes, and has " + std::to_string(size);
    return nullptr;
  }
  const int access = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, bytes, access, MAP_SHARED, file.number, 0);
  if (data == MAP_FAILED) return Failed("it cannot be mapped", error);
  madvise(data, bytes, MADV_RANDOM);
  return data;
}

void UnmapFile(void* data, size_t bytes) { munmap(data, bytes); }

template <typename Id>
void WillNeed(const void* data, int64_t row_bytes, const Id* rows, int64_t n, Parallel* parallel) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
                  bytes = static_cast<uintptr_t>(row_bytes);
  const uintptr_t base = reinterpret_cast<uintptr_t>(data);
  constexpr int64_t kSystemCall = 2000;  // cycles
  parallel->For(n, kSystemCall, [=](int64_t start, int64_t stop) {
    uintptr_t begin = 0, end = 0;  // whole pages that were not asked for yet
    const auto ask = [&] {
      if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
    };
    for (int64_t i = start; i < stop; ++i) {
      const uintptr_t row = base + static_cast<uintptr_t>(rows[i]) * bytes;
      const uintptr_t first = row / page * page, last = (row + bytes + page - 1) / page * page;
      if (first >= begin && first <= end) {
        end = last > end ? last : end;
      } else {
        ask();
        begin = first, end = last;
      }
    }
    ask();
  });
}

template void WillNeed<int32_t>(const void*, int64_t, const int32_t*, int64_t, Parallel*);
template void WillNeed<int64_t>(const void*, int64_t, const int64_t*, int64_t, Parallel*);

}  // namespace largeout
